"""What a migration is about to do in an experiment, written down before it is done.

One file of JSON lines, only appended to: `undo` reads it to remove exactly what was added, `apply` to know which runs
are the migration's. A line says what was *intended*; whether it was done is looked up on disk.

The journal comes before ``runs/``, in which it lives: it begins in a private directory beside it, and is moved in.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from immutable_logs import durable_files
from immutable_logs.errors import ImmutableLogsError, RecordError
from immutable_logs.layout import RUNS
from immutable_logs.records import FORMAT, decode_json, encode_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from immutable_logs.layout import ExperimentLayout

PRIVATE: Final = ".migrate-nemo-logs"
"""Where the journal is while there is no ``runs/``; hidden, and a directory, so that stock NeMo does not move it."""

LOCK_TIMEOUT: Final = 2.0
"""Seconds to wait for another migration at the most."""

_HOME: Final = ".migration"
_NAME: Final = "journal.jsonl"

BEGIN: Final = "begin"
DIRECTORY: Final = "directory"
FILES: Final = "files"
DOCUMENT: Final = "document"
LINE: Final = "line"
LINK: Final = "link"
REMOVE: Final = "remove"
EMPTY: Final = "empty"


_UNFINISHED: Final = ("copy", "document")


class MigrationBusyError(ImmutableLogsError, RuntimeError):
    """Another migration is at work in the same experiment.

    Attributes:
        path: The experiment.
    """

    def __init__(self, path: Path) -> None:
        """Say where."""
        super().__init__(f"another migrate-nemo-logs is at work here; try again when it has ended: {path}")
        self.path = path


class Journal:
    """The journal of one experiment.

    Attributes:
        layout: The experiment.
    """

    def __init__(self, layout: ExperimentLayout) -> None:
        """Name the journal of an experiment, which need not exist."""
        self.layout = layout
        self._home = layout.runs / _HOME
        self._private = layout.path / PRIVATE

    @property
    def unfinished_document(self) -> Path:
        """Where a record is written before it is moved to its place, complete."""
        return self._home / "document"

    @property
    def unfinished_copy(self) -> Path:
        """Where a file is copied to before it is moved to its place, complete."""
        return self._home / "copy"

    def exists(self) -> bool:
        """Tell whether a migration has begun here and was not undone."""
        return self._home.is_dir() or self._private.is_dir()

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the steps in order; a torn last line was not begun with, so it is left out.

        Raises:
            RecordError: If a newer version wrote them.
        """
        path = self._path()
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        with file:
            for line in file:
                try:
                    step = decode_json(line)
                except ValueError:
                    continue
                if not isinstance(step, dict):
                    continue
                if step.get("format") != FORMAT:
                    raise RecordError(path, f"expected format {FORMAT}, found {step.get('format')!r}")
                yield step

    def runs(self) -> set[str]:
        """Return the runs that this migration made."""
        return {step["run"] for step in self.read() if step.get("step") == DIRECTORY and "run" in step}

    @contextmanager
    def opened(self) -> Iterator[bool]:
        """Make the journal if there is none, and hold it against other migrations for a `with` block.

        Yields whether it was made just now, so that no migration can have changed anything here before.

        1. Begin it in the private directory, saying whether ``runs/`` is this migration's.
        2. Make ``runs/``.
        3. Move the private directory in, under its final name.

        After a crash: the private directory, which the next `apply` moves in and `undo` removes; or ``runs/`` with the
        journal in it.

        Raises:
            MigrationBusyError: If another migration holds it.
            OSError: If the file system refuses.
        """
        is_new = False
        if not self._home.is_dir():
            makes_runs = not self.layout.runs.is_dir()
            with suppress(FileExistsError):
                self._private.mkdir()  # 1
                is_new = True
            # Not "if it exists": a full disk or a kill can have left it empty or cut.
            if not any(step.get("step") == BEGIN for step in self.read()):
                durable_files.append(
                    self._private / _NAME, encode_line({"step": BEGIN, "makes_runs": makes_runs}), after_newline=True
                )
            durable_files.create_directory(self.layout.runs, like=self.layout.path)  # 2
            with suppress(FileNotFoundError):
                durable_files.replace(self._private, self._home)  # 3
        with self.held():
            yield is_new

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold an existing journal against other migrations; a mount without locks does not hold it."""
        with durable_files.locked(self._path(), timeout=LOCK_TIMEOUT) as is_held:
            if not is_held and _has_locks(self._path()):
                raise MigrationBusyError(self.layout.path)
            yield

    def record(self, steps: Iterable[dict[str, Any]]) -> None:
        """Write steps down, durably, in one go."""
        lines = b"".join(encode_line(step) for step in steps)
        if lines:
            durable_files.append(self._path(), lines, after_newline=True)

    def remove(self) -> bool:
        """Remove the journal, as the last step of `undo`; returns whether nothing of it is left.

        The private directory holds it until ``runs/`` is gone, so that a stopped `undo` is known for what it is.
        """
        makes_runs = any(step.get("step") == BEGIN and step.get("makes_runs") for step in self.read())
        if self._home.is_dir():
            durable_files.replace(self._home, self._private)
        if makes_runs:
            with suppress(OSError):
                self.layout.runs.rmdir()
        for name in (*_UNFINISHED, _NAME):
            with suppress(FileNotFoundError):
                (self._private / name).unlink()
        with suppress(OSError):
            self._private.rmdir()
        return not self._private.exists()

    def _path(self) -> Path:
        return (self._home if self._home.is_dir() else self._private) / _NAME


def has_journal(directory: Path, names: Iterable[str]) -> bool:
    """Tell whether a migration has begun in a directory with these subdirectories."""
    return PRIVATE in names or (RUNS in names and (directory / RUNS / _HOME).is_dir())


def _has_locks(path: Path) -> bool:
    """Tell whether a mount has locks, by taking one that nobody else has: on a descriptor of the directory."""
    import fcntl

    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
