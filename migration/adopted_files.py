"""Which old files are in the immutable layout already: known by their inode, whatever their old name is by now.

Stock NeMo may have moved an old file since it was adopted; its inode stays. Kept in arrays, so that a million files
take some tens of megabytes.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from immutable_logs.manifest import read_manifest
from immutable_logs.records import ADOPTED, PRUNED
from immutable_logs.run_id import is_run_id
from migration.journal import FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from immutable_logs.layout import ExperimentLayout
    from immutable_logs.records import ManifestRecord
    from migration.evidence import FileEvidence
    from migration.journal import Journal

COPY = "copy"


class Holding(NamedTuple):
    """How a run holds an old file.

    Attributes:
        run: The run id.
        shares: Whether it is the same file under a second name, not a link or a copy.
    """

    run: str
    shares: bool


class AdoptedFiles:
    """The files of the runs that a migration made.

    Attributes:
        runs: Those runs, by id.
        pruned: Runs that were adopted and have been pruned since.
        dangling: Links in those runs that lead nowhere; paths relative to the experiment.
    """

    def __init__(self, layout: ExperimentLayout, journal: Journal) -> None:
        """Look into the run directories."""
        records = manifest_records(layout)
        self.pruned = {record.run for record in records if record.event == PRUNED}
        named = {record.run for record in records if record.event == ADOPTED} | journal.runs()
        self.runs: list[str] = sorted(run for run in named if is_run_id(run) and layout.run(run).path.is_dir())
        self._present = frozenset(self.runs)
        self.dangling: list[str] = []
        found: dict[int, tuple[array[int], array[int]]] = {}
        for number, run in enumerate(self.runs):
            with os.scandir(layout.run(run).path) as entries:
                for entry in entries:
                    is_link = entry.is_symlink()
                    try:
                        status = entry.stat()
                    except OSError:
                        self.dangling.append(os.path.relpath(entry.path, layout.path))
                        continue
                    inodes, holders = found.setdefault(status.st_dev, (array("Q"), array("q")))
                    inodes.append(status.st_ino)
                    holders.append(-number - 1 if is_link else number)
        self._index = {device: _sorted(*columns) for device, columns in found.items()}
        self._copies = _read_copies(journal)

    def has_run(self, run: str) -> bool:
        """Tell whether a run directory is there that a migration made."""
        return run in self._present

    def holdings(self, file: FileEvidence) -> list[Holding]:
        """Return the runs that hold a file."""
        held: list[Holding] = []
        if not self._index and not self._copies:
            return held
        columns = self._index.get(file.device)
        if columns is not None:
            inodes, holders = columns
            position = bisect_left(inodes, file.inode)
            while position < len(inodes) and inodes[position] == file.inode:
                holder = holders[position]
                held.append(Holding(self.runs[holder if holder >= 0 else -holder - 1], holder >= 0))
                position += 1
        copied = self._copies.get(file.inode)
        if copied and (copied[1], copied[2]) == (file.size, file.mtime):
            held.append(Holding(copied[0], shares=False))
        return held

    def has_inode(self, inode: int) -> bool:
        """Tell whether a file with this number is in a run, not as a link."""
        for inodes, holders in self._index.values():
            position = bisect_left(inodes, inode)
            while position < len(inodes) and inodes[position] == inode:
                if holders[position] >= 0:
                    return True
                position += 1
        return False


def manifest_records(layout: ExperimentLayout) -> Sequence[ManifestRecord]:
    """Return the records of the manifest; none where a file is in the place of `runs`, which the plan names."""
    try:
        return read_manifest(layout).records
    except NotADirectoryError:
        return ()


def _sorted(inodes: array[int], holders: array[int]) -> tuple[array[int], array[int]]:
    order = array("q", sorted(range(len(inodes)), key=inodes.__getitem__))
    return array("Q", map(inodes.__getitem__, order)), array("q", map(holders.__getitem__, order))


def _read_copies(journal: Journal) -> dict[int, tuple[str, int, float]]:
    """Return the copies by the inode of what was copied; there are none where the mount has any kind of link."""
    copies = {}
    for step in journal.read():
        if step.get("step") == FILES and step.get("how") == COPY:
            for _, new, inode, size, mtime in step["names"]:
                with suppress(OSError):
                    if os.stat(journal.layout.run(step["run"]).path / new).st_size == size:
                        copies[inode] = (step["run"], size, mtime)
    return copies
