"""Take away exactly what a migration has added.

Who may call: one migration an experiment at a time.

1. ``latest``, if it still shows what the migration made it show, and the links in ``tensorboard/``.
2. The names of files in the run directories. One that is the only name left of its file is kept, with its run.
3. The manifest lines: the file is as it was before, and gone if it was made for them.
4. The records and the directories, and last the journal.

After a crash at any point: the journal is still there, and the next `undo` goes on; what is gone already is no fault.
Not promised: that a manifest line which another process writes during step 3 survives on a mount without locks.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from immutable_logs import durable_files
from immutable_logs.errors import ImmutableLogsError
from immutable_logs.manifest import manifest_lock
from immutable_logs.records import ManifestRecord
from migration.adopted_files import COPY
from migration.journal import DIRECTORY, DOCUMENT, FILES, LINE, LINK, REMOVE, Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from immutable_logs.layout import ExperimentLayout


class FinalizedError(ImmutableLogsError, RuntimeError):
    """Old names have been removed, so that the new ones are all there is.

    Attributes:
        path: The experiment.
    """

    def __init__(self, path: Path) -> None:
        """Say why this cannot be undone."""
        super().__init__(
            f"`finalize` has removed old names here, so that undoing would remove the only ones left: {path}"
        )
        self.path = path


@dataclass(slots=True)
class Undone:
    """What an `undo` did.

    Attributes:
        names: Names removed.
        kept: Names that were not removed, and why.
        foreign: Directories that stay, since something is in them that the migration did not make.
    """

    names: int = 0
    kept: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


def undo_migration(layout: ExperimentLayout, *, on_file: Callable[[], None] = lambda: None) -> Undone:
    """Undo what was applied to an experiment.

    Args:
        layout: The experiment.
        on_file: Called for every name looked at.

    Raises:
        FinalizedError: If `finalize` has removed old names.
        MigrationBusyError: If another migration is at work there.
        OSError: If the file system refuses; the next call goes on.
    """
    journal = Journal(layout)
    undone = Undone()
    if not journal.exists():
        return undone
    with journal.held():
        if any(step["step"] == REMOVE for step in journal.read()):
            raise FinalizedError(layout.path)
        for step in _steps(journal, LINK):
            undone.names += _remove_link(layout.path / step["path"], step["text"])  # 1
        keeping = _remove_files(journal, undone, on_file)  # 2
        undone.names += _remove_lines(journal, keeping)  # 3
        _remove_frame(journal, keeping, undone)  # 4
        if not keeping:
            journal.remove()
    return undone


def _remove_files(journal: Journal, undone: Undone, on_file: Callable[[], None]) -> set[str]:
    """Remove the names of files; returns the runs in which one had to be kept."""
    keeping: set[str] = set()
    # What was copied in the end was to be linked first: those lines know less of it.
    for is_copy in (True, False):
        for step in _steps(journal, FILES):
            if (step["how"] == COPY) is not is_copy:
                continue
            for name in step["names"]:
                on_file()
                # A name alone is the old one and the new one.
                names = [name, name] if isinstance(name, str) else name
                if not _remove_file(journal.layout, step, names, undone):
                    keeping.add(step["run"])
    undone.kept = list(dict.fromkeys(undone.kept))
    return keeping


def _remove_frame(journal: Journal, keeping: set[str], undone: Undone) -> None:
    """Remove the records and directories of the runs that are not kept."""
    layout = journal.layout
    kept_directories = {os.path.relpath(layout.run(run).path, layout.path) for run in keeping}
    for step in _steps(journal, DOCUMENT):
        if step["path"].rpartition("/")[0] not in kept_directories:
            undone.names += _remove_name(layout.path / step["path"])
    for path in reversed(list(dict.fromkeys(step["path"] for step in _steps(journal, DIRECTORY)))):
        if path not in kept_directories:
            undone.names += _remove_directory(layout.path / path, path, undone)


def _steps(journal: Journal, kind: str) -> Iterator[dict[str, Any]]:
    return (step for step in journal.read() if step["step"] == kind)


def _remove_link(path: Path, text: str) -> bool:
    """Remove a link that still has our text; a file, where it stands for a link."""
    with suppress(FileNotFoundError, NotADirectoryError):
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            is_ours = os.readlink(path) == text
        else:
            is_ours = stat.S_ISREG(status.st_mode) and durable_files.read_bytes(path).strip() == text.encode()
        return is_ours and _remove_name(path)
    return False


def _remove_lines(journal: Journal, keeping: set[str]) -> int:
    layout = journal.layout
    steps = [step for step in _steps(journal, LINE) if step["run"] not in keeping]
    if not steps or not layout.manifest.exists():
        return 0
    ours = {step["line"].encode("ascii").rstrip(b"\n") for step in steps}
    before = min(step["size"] for step in steps)
    with manifest_lock(layout):
        data = durable_files.read_bytes(layout.manifest)
        added = [line for line in data[before:].split(b"\n") if line.strip()]
        others = [line + b"\n" for line in added if line not in ours and not _is_torn(line, ours)]
        head = data[:before]
        if others and head and not head.endswith(b"\n"):
            head += b"\n"
        wanted = head + b"".join(others)
        if not wanted and any(step["makes_manifest"] for step in steps):
            layout.manifest.unlink()
        elif wanted != data:
            with suppress(FileNotFoundError):
                journal.unfinished_document.unlink()
            durable_files.create_exclusive(journal.unfinished_document, wanted, durable=True)
            journal.unfinished_document.chmod(stat.S_IMODE(layout.manifest.stat().st_mode))
            durable_files.replace(journal.unfinished_document, layout.manifest)
    return len(added) - len(others)


def _is_torn(line: bytes, ours: set[bytes]) -> bool:
    """Tell whether a line is the beginning of one of ours, cut by a kill."""
    return ManifestRecord.decode(line) is None and any(each.startswith(line) for each in ours)


def _remove_file(layout: ExperimentLayout, step: dict[str, Any], names: list[Any], undone: Undone) -> bool:
    """Remove one name in a run directory; returns False if it had to be kept."""
    new = layout.run(step["run"]).path / names[1]
    try:
        status = os.lstat(new)
    except FileNotFoundError:
        return True
    if step["how"] == COPY:
        old = layout.path / step["source"] / names[0]
        is_safe = old.is_file() and (old.stat().st_size, old.stat().st_mtime) == (names[3], names[4])
    else:
        is_safe = stat.S_ISLNK(status.st_mode) or status.st_nlink > 1
    if is_safe:
        undone.names += _remove_name(new)
    else:
        path = os.path.relpath(new, layout.path)
        undone.kept.append(f"{path}: it may be all that is left of {step['source'] or '.'}/{names[0]}")
    return is_safe


def _remove_name(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _remove_directory(path: Path, name: str, undone: Undone) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return False
    except OSError:
        undone.foreign.append(name)
        return False
    return True
