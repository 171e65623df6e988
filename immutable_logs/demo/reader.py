"""Watch a directory while a training writes into it, and count what a reader loses.

Does what TensorBoard, rsync and people's scripts do: list, and a moment later look at, open and read what was listed.
Runs as a process of its own, ``python -m immutable_logs.demo.reader DIRECTORY``, until its standard input ends (so
that it never outlives who started it), and then prints one JSON object.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from immutable_logs.layout import CHECKPOINTS, ExperimentLayout, RunLayout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VANISHED: Final = "vanished"
REPLACED: Final = "replaced by another file"
DANGLING: Final = "a link that leads nowhere"
INCOMPLETE: Final = "latest shows a run without a complete run.json"

_PAUSE: Final = 0.01
"""Seconds between two passes: the reader shares the machine with the training."""

_NICENESS: Final = 10
_MAX_FAILURES_KEPT: Final = 100


@dataclass(slots=True)
class Findings:
    """What a reader has seen.

    Attributes:
        passes: How often it went over everything.
        names: How many names it has seen in all.
        reads: How many times it opened a file and read it to the end.
        bytes_read: How much that was.
        failure_count: How many times something was lost or wrong.
        failures: The first of them, each with ``path`` and ``problem``.
        rotated: How many checkpoints went away: Lightning keeps the best few, which is no failure.
    """

    passes: int = 0
    names: int = 0
    reads: int = 0
    bytes_read: int = 0
    failure_count: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    rotated: int = 0


class Reader:
    """Remembers every name it has seen in a directory and reads all of them again and again.

    Attributes:
        findings: What it has seen so far.
    """

    def __init__(self, directory: os.PathLike[str] | str) -> None:
        """Look at nothing yet; the directory need not be there."""
        self._layout = ExperimentLayout.of(directory)
        self._known: dict[Path, tuple[int, int] | None] = {}
        self.findings = Findings()

    def list_names(self) -> None:
        """Take in every name that is there now, first of the two halves of a pass."""
        if self._layout.path not in self._known and not os.path.lexists(self._layout.path):
            return
        for path in self._walk(self._layout.path):
            if path not in self._known:
                self._known[path] = None
                self.findings.names += 1

    def read_names(self) -> None:
        """Look at, open and read everything whose name was ever seen, second half of a pass."""
        for path, identity in list(self._known.items()):
            try:
                self._known[path] = self._read(path, identity)
            except OSError as error:
                del self._known[path]
                self._lose(path, VANISHED if isinstance(error, FileNotFoundError) else str(error.strerror))
        self.findings.passes += 1

    def _walk(self, directory: Path) -> Iterator[Path]:
        yield directory
        try:
            with os.scandir(directory) as entries:
                found = list(entries)
        except OSError:
            # Counted by `read_names`, if it was known; otherwise it came and went between two passes.
            return
        for entry in found:
            path = directory / entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(path)
            else:
                yield path

    def _read(self, path: Path, identity: tuple[int, int] | None) -> tuple[int, int]:
        """Read what a name leads to, and return which file that is."""
        status = os.lstat(path)
        found = (status.st_dev, status.st_ino)
        if path == self._layout.latest:
            self._read_latest()
        elif identity not in (None, found):
            self._lose(path, REPLACED)
        if stat.S_ISLNK(status.st_mode):
            try:
                status = os.stat(path)
            except FileNotFoundError:
                # Unless the link itself went away since.
                os.lstat(path)
                self._lose(path, DANGLING)
                return found
        if stat.S_ISREG(status.st_mode):
            self.findings.bytes_read += len(path.read_bytes())
            self.findings.reads += 1
        return found

    def _read_latest(self) -> None:
        try:
            content = RunLayout(self._layout.latest).run_record.read_bytes()
            json.loads(content)
        except (OSError, ValueError):
            self._lose(self._layout.latest, INCOMPLETE)
        else:
            self.findings.bytes_read += len(content)
            self.findings.reads += 1

    def _lose(self, path: Path, problem: str) -> None:
        name = path.relative_to(self._layout.path)
        if CHECKPOINTS in name.parts[:-1]:
            self.findings.rotated += 1
        elif path.parent != self._layout.latest_workshop:
            # The workshop's private names are renamed to `latest`: the one thing in the layout that goes away.
            self.findings.failure_count += 1
            if len(self.findings.failures) < _MAX_FAILURES_KEPT:
                self.findings.failures.append({"path": str(name), "problem": problem})


def main() -> None:
    """Read until standard input ends, and report."""
    os.nice(_NICENESS)
    reader = Reader(sys.argv[1])
    is_wanted = True
    while is_wanted:
        # Asked first: a last pass comes after everything that the caller did before it closed the pipe.
        is_wanted = not select.select([sys.stdin], [], [], _PAUSE)[0]
        reader.list_names()
        reader.read_names()
    json.dump(asdict(reader.findings), sys.stdout)


if __name__ == "__main__":
    main()
