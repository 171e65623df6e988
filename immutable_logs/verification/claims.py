"""Check the claims in ``runs/.launches``, and which ranks came to the run of an earlier launch with the same key."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from immutable_logs import durable_files
from immutable_logs.launch import LAUNCH_ID_VARIABLE
from immutable_logs.layout import claim
from immutable_logs.run_id import is_cut_run_id, is_run_id
from immutable_logs.verification.findings import LEFTOVER, PROBLEM, Finding
from immutable_logs.verification.late_ranks import Entry, Generation, LateRank, find_late_ranks, lacks_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from immutable_logs.records import RankRecord
    from immutable_logs.verification.state import ExperimentState


@dataclass(slots=True)
class _Launch:
    """The claims of one launch key.

    Attributes:
        directory: Where they are.
        claims: The text of each, by generation.
        files: The names of the files beside them.
        foreign: Every other name.
    """

    directory: Path
    claims: dict[int, str] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    foreign: list[str] = field(default_factory=list)


def check_launches(state: ExperimentState) -> Iterator[Finding]:
    """Yield what is wrong with the claims of every launch key."""
    owners: dict[str, Path] = {}
    for name, is_directory in _launch_names(state.layout.launches):
        if not is_directory:
            yield _foreign(state, state.layout.launch(name))
            continue
        launch = _read_launch(state.layout.launch(name))
        for generation, text in sorted(launch.claims.items()):
            path = claim(launch.directory, generation)
            if not is_run_id(text):
                yield _untrusted(state, path, text)
                continue
            if text in owners:
                yield _claimed_twice(state, path, owners[text], text)
            owners.setdefault(text, path)
            yield from _check_claimed_run(state, launch, path, text)
        unused = sorted(launch.files - set(launch.claims.values()))
        if unused:
            yield Finding(
                "claim-unused",
                LEFTOVER,
                state.relative(launch.directory),
                None,
                f"empty files that no claim leads to: {len(unused)}. Ranks that wanted to claim a run left them, when "
                "another rank was quicker or they were killed",
                details={"files": unused},
            )
        for each in launch.foreign:
            yield _foreign(state, launch.directory / each)
        yield from _check_late_ranks(state, launch)
    for run in state.runs.values():
        if run.is_running and run.joined and run.id not in owners:
            yield Finding(
                "run-unclaimed",
                PROBLEM,
                state.relative(state.layout.launches),
                run.id,
                "the run goes on; expected the claim that leads to it, found none: somebody removed it. A rank that "
                "is still to come will start a run of its own. HINT: leave `runs/.launches` alone while a launch runs",
            )


def _launch_names(directory: Path) -> list[tuple[str, bool]]:
    if not os.path.isdir(directory):
        return []
    with os.scandir(directory) as entries:
        return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)


def _read_launch(directory: Path) -> _Launch:
    launch = _Launch(directory)
    for name in sorted(os.listdir(directory)):
        if is_run_id(name):
            launch.files.add(name)
        elif name.isascii() and name.isdigit() and name == str(int(name)):
            launch.claims[int(name)] = _read_claim(directory / name)
        elif not name.startswith("."):
            launch.foreign.append(name)
    return launch


def _read_claim(path: Path) -> str:
    """Return the text of a claim, which is a file on a mount without symbolic links; nobody is waited for.

    A file with no more than the beginning of a run id was never finished: it is empty text, as for a rank.
    """
    try:
        return durable_files.read_link(path)
    except OSError as error:
        if durable_files.is_link_hidden(error):
            return "(a link that this mount does not show)"
        if error.errno != errno.EINVAL:
            raise
    try:
        text = durable_files.read_bytes(path).decode("utf-8", "replace")
        return "" if is_cut_run_id(text) else text
    except IsADirectoryError:
        return "(a directory)"
    except OSError as error:
        return f"({error.strerror})"


def _check_claimed_run(state: ExperimentState, launch: _Launch, path: Path, run_id: str) -> Iterator[Finding]:
    run = state.runs.get(run_id)
    is_present = run is not None and run.is_present
    if run_id not in launch.files:
        yield Finding(
            "claim-dangling",
            PROBLEM,
            state.relative(path),
            run_id,
            f"expected the file {run_id} beside the claim, found none, so that the claim dangles: copies that follow "
            f"links fail on it{'' if is_present else ', and so does a rank that wants to join'}. HINT: make the empty "
            "file again",
        )
        return
    is_pruned = run is not None and run.lines.is_pruned
    is_marked = (is_pruned or not is_present) and _size(launch.directory / run_id) > 0
    if is_pruned and not is_marked:
        yield Finding(
            "prune-unfinished",
            LEFTOVER,
            state.relative(launch.directory / run_id),
            run_id,
            "the manifest says that the run was pruned, and its claim is not marked: `prune` was interrupted, and a "
            "late rank would make the directory again. HINT: call `immutable-logs prune` again",
        )
    elif run is None and not is_marked:
        yield Finding(
            "claim-without-run",
            LEFTOVER,
            state.relative(path),
            run_id,
            "the claimed run has no directory: its launch was killed before a rank joined, or is about to",
        )


def _check_late_ranks(state: ExperimentState, launch: _Launch) -> Iterator[Finding]:
    """Look at a key with several generations; the entries' times are asked for only where a rank is lacking."""
    runs = [(generation, state.runs.get(text)) for generation, text in sorted(launch.claims.items())]
    there = [(generation, run) for generation, run in runs if run is not None and run.joined]
    if not lacks_ranks([run.joined for _, run in there]):
        return
    generations = [
        Generation(
            generation,
            run.id,
            {rank: Entry(record, _written(state, run.id, rank)) for rank, record in run.ranks.items()},
            run.joined,
        )
        for generation, run in there
    ]
    for late in find_late_ranks(generations):
        yield _in_older_run(state, late, is_restart=launch.directory.name.startswith("torchrun-"))


def _in_older_run(state: ExperimentState, late: LateRank, *, is_restart: bool) -> Finding:
    record, found, home = late.entry.record, late.found, late.home
    layout = state.layout.run(found.run)
    log = layout.rank_log(record.global_rank, record.local_rank)
    zero = (
        f" As it is rank zero, `run.json` of {found.run} describes the later launch, and {home.run} has none."
        if record.global_rank == 0
        else ""
    )
    advice = (
        "nothing sets the workers before a restart apart from those after it, where there are several agents"
        if is_restart
        else f"to keep launches apart set {LAUNCH_ID_VARIABLE} to the same text on all ranks, another for each launch"
    )
    return Finding(
        "rank-in-older-run",
        PROBLEM,
        state.relative(layout.rank_entry(record.global_rank)),
        found.run,
        f"rank {record.global_rank} (pid {record.pid} on {record.host}) is in run {found.run} of an earlier launch "
        f"with the same key, and belongs to run {home.run}, which lacks it. It joined at {record.joined}; nearest to "
        f"it in {home.run} is {_describe(late.home_peer.record)}, in {found.run} {_describe(late.found_peer.record)}; "
        f"compared: {late.evidence}.{zero} HINT: its log is {state.relative(log)} if it wrote one; {advice}",
        details={
            "rank": record.global_rank,
            "host": record.host,
            "pid": record.pid,
            "joined": record.joined,
            "belongs_to": home.run,
            "generation": found.number,
            "belongs_to_generation": home.number,
            "evidence": late.evidence,
            "log": state.relative(log),
        },
    )


def _describe(record: RankRecord) -> str:
    return f"rank {record.global_rank} (pid {record.pid}, joined at {record.joined})"


def _written(state: ExperimentState, run_id: str, rank: int) -> float:
    with suppress(OSError):
        return os.stat(state.layout.run(run_id).rank_entry(rank)).st_mtime
    return 0.0


def _size(path: Path) -> int:
    with suppress(OSError):
        return os.stat(path).st_size
    return 0


def _untrusted(state: ExperimentState, path: Path, text: str) -> Finding:
    if text == "":
        return Finding(
            "claim-unfinished",
            LEFTOVER,
            state.relative(path),
            None,
            "the claim is a file without a whole run id: a rank was killed while it wrote the claim, on a mount "
            "without symbolic links. Ranks pass it over after a minute",
        )
    return Finding(
        "claim-untrusted",
        PROBLEM,
        state.relative(path),
        None,
        f"expected a run id, found {text[:80]!r}: nobody follows it, and a rank with this key ends with an "
        "error. HINT: remove it if no launch with this key goes on",
    )


def _claimed_twice(state: ExperimentState, path: Path, other: Path, run_id: str) -> Finding:
    return Finding(
        "run-claimed-twice",
        PROBLEM,
        state.relative(path),
        run_id,
        f"expected a run of its own, found that of another claim, {state.relative(other)}: two launches can come to "
        "one directory. HINT: the claim was made by hand; remove the wrong one if no launch with this key goes on",
    )


def _foreign(state: ExperimentState, path: Path) -> Finding:
    return Finding("foreign-entry", LEFTOVER, state.relative(path), None, "not a claim, and not ours; left alone")
