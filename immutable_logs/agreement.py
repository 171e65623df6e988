"""All ranks of a launch settle on one run directory, without waiting for each other.

Every rank does this alone, in any order, however late another one is (`join_run`):

1. For generation g = 1, 2, …
2. Read the link ``runs/.launches/<launch key>/<g>``. If there is none, make it: think up a fresh run id, create the
   empty file ``<run id>`` beside it, then the symbolic link whose text is that run id. Making a link is exclusive and
   carries its content, on NFS too; the file keeps it from dangling, so that it is no second way into the run. Then
   read the link back and believe only what is read: a winner can be told "exists".
3. Pass over a generation that cannot be this launch's: its run was pruned; or, only where two launches can share the
   key, its run ended before this process started, or was claimed longer ago than `JOIN_WINDOW`.
4. Create this rank's entry in the run, exclusively. If it exists and is not the one that this call has just written,
   this is another launch with the same key (a second training in one ``srun`` step, a restarted group of workers):
   next generation. Otherwise the run is joined.

After a crash at 2: an empty file of a run that never was. Between 2 and 4: a claim without a run directory, or a run
directory without this rank's entry; the next launch has another key or finds the other ranks' entries. At 4: an entry
that is cut or empty, which counts as another's.

Not promised: if two launches share a key, one follows the other within the window, a rank of the first was killed
before it joined, and nothing recorded its end, then no variable tells them apart and a rank of the second can land in
the run of the first. `verify` reports it; setting ``IMMUTABLE_LOGS_LAUNCH_ID`` makes it impossible.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from immutable_logs import durable_files
from immutable_logs.errors import AgreementError, NotVisibleError
from immutable_logs.launch import LAUNCH_ID_VARIABLE
from immutable_logs.layout import claim
from immutable_logs.records import RankRecord, format_time
from immutable_logs.run_id import is_cut_run_id, is_run_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from immutable_logs.launch import Launch
    from immutable_logs.layout import ExperimentLayout
    from immutable_logs.process import Process

_log = logging.getLogger(__name__)

JOIN_WINDOW: Final = 600.0
"""Seconds after which a claim of a key that is not unique is taken for that of an earlier launch."""

_MAX_GENERATIONS: Final = 10_000
_UNFINISHED_CLAIM_AGE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Joined:
    """The run that a rank has joined.

    Attributes:
        run_id: Its name.
        generation: Which claim of the launch key it is; above 1 if earlier launches had the same key.
    """

    run_id: str
    generation: int


def join_run(
    layout: ExperimentLayout,
    launch: Launch,
    *,
    process: Process,
    process_age: Callable[[], float],
    new_run_id: Callable[[], str],
    now: float,
    nonce: str,
) -> Joined:
    """Join the run of a launch, as described at the top of this module; the numbers are those of its steps.

    Any rank may call it, in any order. When it returns, the run directory and this rank's entry are visible.

    Args:
        layout: The experiment; its directory is made if missing.
        launch: Which launch and rank this is.
        process: Who this is.
        process_age: How many seconds ago this process started; asked only for keys that are not unique.
        new_run_id: Thinks up a run id.
        now: Unix time, for the entry.
        nonce: A random text, another for each call.

    Raises:
        AgreementError: If no run can be joined; says at which path.
    """
    directory = layout.launch(launch.key_name)
    entry = RankRecord(
        joined=format_time(now),
        nonce=nonce,
        global_rank=launch.ranks.global_rank,
        local_rank=launch.ranks.local_rank,
        node_rank=launch.ranks.node_rank,
        **asdict(process),
    ).encode()
    try:
        for generation in range(1, _MAX_GENERATIONS + 1):  # 1
            candidate = new_run_id()
            run_id = _claimed_run(layout, directory, generation, candidate)  # 2
            if run_id is None:
                continue  # 3
            if not launch.unique and _is_earlier(layout, directory, generation, run_id, process_age):
                if run_id == candidate:
                    raise _clocks_differ(launch, claim(directory, generation))
                continue  # 3
            if _create_entry(layout, directory, run_id, launch.ranks.global_rank, entry):  # 3, 4
                return Joined(run_id, generation)
    except NotVisibleError as error:
        message, _, hint = str(error).partition("\nHINT: ")
        if is_run_id(error.path.name):  # the file beside the claim
            hint = f"{hint}; or has somebody removed the empty file, which `immutable-logs verify` names then"
        raise AgreementError(
            message, rank=launch.ranks.global_rank, key=launch.readable_key, path=error.path, hint=hint
        ) from error
    except OSError as error:
        raise AgreementError(
            f"creating a fresh run directory failed with {error.strerror or error}",
            rank=launch.ranks.global_rank,
            key=launch.readable_key,
            # Of `symlink` the first name is the text of the link, the second the link.
            path=_obstacle(Path(os.fsdecode(error.filename2 or error.filename or layout.runs)), error),
            hint=_advice(error, layout),
        ) from error
    except _UntrustedClaimError as error:
        raise AgreementError(
            f"expected a run id in the claim, found {error.text[:80]!r}",
            rank=launch.ranks.global_rank,
            key=launch.readable_key,
            path=error.path,
            hint="its maker was killed while it wrote it: start again in a minute"
            if is_cut_run_id(error.text)
            else "",
        ) from None
    raise AgreementError(
        f"{_MAX_GENERATIONS} launches with this key are there already",
        rank=launch.ranks.global_rank,
        key=launch.readable_key,
        path=directory,
    )


class _UntrustedClaimError(Exception):
    """A claim holds something that is no run id; in a shared directory anyone can have put it there."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(path, text)
        self.path = path
        self.text = text


def _claimed_run(layout: ExperimentLayout, directory: Path, generation: int, candidate: str) -> str | None:
    """Return the run that a generation is tied to, tying it to a fresh one if need be; None if it is to be passed."""
    link = claim(directory, generation)
    try:
        text = _read_claim(link)
    except FileNotFoundError:
        try:
            durable_files.create_exclusive(directory / candidate, b"")
        except FileNotFoundError:
            durable_files.create_directory(directory, like=layout.path)
            durable_files.create_exclusive(directory / candidate, b"")
        _make_claim(candidate, link)
        text = durable_files.wait_until_visible(lambda: _read_claim(link), link)
    if is_cut_run_id(text) and durable_files.server_time(directory) - os.lstat(link).st_mtime > _UNFINISHED_CLAIM_AGE:
        return None
    if not is_run_id(text):
        raise _UntrustedClaimError(link, text)
    return text


def _make_claim(candidate: str, link: Path) -> None:
    """Create the claim, as a file on a mount without symbolic links."""
    try:
        durable_files.create_link(candidate, link)
    except OSError as error:
        if not durable_files.is_without_links(error):
            raise
        _log.warning("This mount has no symbolic links; claims are plain files there: %s", link.parent)
        durable_files.create_exclusive(link, candidate.encode("ascii"))


def _read_claim(link: Path) -> str:
    """Return the text of a claim.

    On a mount without symbolic links the claim is a file, which is complete a moment after it is visible: a cut
    one is read again for a while, and returned as it is if it stays so.
    """
    try:
        return durable_files.read_link(link)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise

    def read_complete() -> str:
        text = durable_files.read_bytes(link).decode("ascii", "replace")
        if is_cut_run_id(text):
            raise FileNotFoundError
        return text

    try:
        return durable_files.wait_until_visible(read_complete, link, timeout=5.0)
    except TimeoutError:
        return durable_files.read_bytes(link).decode("ascii", "replace")


def _is_earlier(
    layout: ExperimentLayout, directory: Path, generation: int, run_id: str, process_age: Callable[[], float]
) -> bool:
    """Tell whether a generation belongs to a launch before this one, by the file server's clock alone."""
    present = durable_files.server_time(directory)
    if present - os.lstat(claim(directory, generation)).st_mtime > JOIN_WINDOW:
        return True
    try:
        ended = os.stat(layout.run(run_id).finish_record).st_mtime
    except FileNotFoundError:
        return False
    return ended < present - process_age()


def _clocks_differ(launch: Launch, link: Path) -> AgreementError:
    """Return the error for a mount on which this node's clock sets some times and the server's clock others.

    Passing over a claim made this moment would go on for ever, and every rank would do so for itself.
    """
    return AgreementError(
        f"a claim made this moment looks more than {JOIN_WINDOW:.0f} s old: the clocks of this node and of the file "
        "server differ",
        rank=launch.ranks.global_rank,
        key=launch.readable_key,
        path=link,
        hint=f"set the clock, or set {LAUNCH_ID_VARIABLE} to the same text on all ranks, another for each launch",
    )


def _create_entry(layout: ExperimentLayout, directory: Path, run_id: str, rank: int, content: bytes) -> bool:
    """Enter a rank into a run; False if the entry is another process's, or the run was pruned."""
    path = layout.run(run_id).rank_entry(rank)
    try:
        is_created = durable_files.create_exclusive(path, content)
    except FileNotFoundError:
        # The run is new, or it is gone: `prune` marks the file beside the claim before it takes a run.
        mark = directory / run_id
        if durable_files.wait_until_visible(lambda: os.stat(mark), mark).st_size > 0:
            return False
        durable_files.create_directory(path.parent, like=layout.path)
        is_created = durable_files.create_exclusive(path, content)
    try:
        return is_created or durable_files.wait_until_visible(lambda: durable_files.read_bytes(path), path) == content
    except PermissionError:
        return False  # another user's: this process can read what it has written itself


def _obstacle(path: Path, error: OSError) -> Path:
    """Return what stood in the way: not the name that was to be made, but what is no directory above it."""
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return next((each for each in (*reversed(path.parents), path) if not each.is_dir()), path)
    return path


def _advice(error: OSError, layout: ExperimentLayout) -> str:
    """Say what can be done."""
    return {
        errno.EACCES: f"give this user write access to {layout.path}",
        errno.EPERM: f"give this user write access to {layout.path}",
        errno.EROFS: "the mount is read-only: choose another exp_dir",
        errno.ENOSPC: "the disk is full: make space",
        errno.EDQUOT: "the quota is used up: make space, or prune old runs",
        errno.ENOTDIR: "move what stands there out of the way",
        errno.ENAMETOOLONG: "the path is too long for this mount: choose a shorter one",
        errno.ELOOP: "the path leads through links in a circle: mend them, or choose another one",
    }.get(error.errno or 0, "")
