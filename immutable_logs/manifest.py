"""The manifest: the ordered, append-only index of all runs of an experiment.

It is an index, not the proof: readers take the union of it and of the run directories, so that a torn, cut, doubled
or lost line loses no run. Lines are only ever added.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from immutable_logs import durable_files
from immutable_logs.records import STARTED, ManifestRecord
from immutable_logs.regular_files import open_regular
from immutable_logs.run_id import is_run_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from immutable_logs.layout import ExperimentLayout

LOCK_TIMEOUT: Final = 10.0
"""Seconds to wait for another writer at the most: bookkeeping never holds up a training."""

_TAIL_BYTES: Final = 64 * 1024
_MAX_TAIL_BYTES: Final = 8**3 * _TAIL_BYTES
"""32 MiB: more than a hundred thousand lines."""

_MAX_LINE_BYTES: Final = 1024 * 1024
"""A line is some hundred bytes; one that is longer than this was not written by a launch."""

_NO_RECORD: Final = b"?"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What can be read of a manifest.

    Attributes:
        records: Every line that could be read, in order.
        damaged: How many lines could not.
    """

    records: tuple[ManifestRecord, ...] = ()
    damaged: int = 0


@contextmanager
def manifest_lock(layout: ExperimentLayout, *, timeout: float = LOCK_TIMEOUT) -> Iterator[bool]:
    """Hold the manifest's lock for a `with` block, if it can be had; yields whether it is held."""
    with durable_files.locked(layout.manifest, timeout=timeout) as is_held:
        yield is_held


def append_record(layout: ExperimentLayout, record: ManifestRecord, *, is_locked: bool) -> None:
    """Append one line, durably.

    Who may call: rank zero of a run, ``prune`` and the migration. After a crash in the middle: a torn last line, which
    the next writer ends and readers count. Without the lock two lines can be mixed up on NFS; both runs are still
    found by their directories.

    Args:
        layout: The experiment.
        record: What happened.
        is_locked: Whether the caller holds `manifest_lock`.
    """
    durable_files.append(layout.manifest, record.encode(), after_newline=is_locked)


def read_manifest(layout: ExperimentLayout) -> Manifest:
    """Return everything that can be read; nothing if there is no manifest.

    The file is read piece by piece, so that the memory needed is that of the records and not of the damage.

    Raises:
        OSError: If it is there but cannot be read, or is no file.
    """
    try:
        descriptor = open_regular(layout.manifest, os.O_RDONLY, follows_link=False)
    except FileNotFoundError:
        return Manifest()
    with open(descriptor, "rb") as file:
        return _parse_lines(_bounded_lines(file))


def parse_manifest(data: bytes) -> Manifest:
    """Return the records in a manifest's bytes, in order."""
    return _parse_lines(data.split(b"\n"))


def recent_started_runs(layout: ExperimentLayout) -> list[str]:
    """Return the runs that started last, the newest first: all that the manifest's end tells, at least one if any.

    Reads the end of the file only, so that the cost does not grow with the number of earlier runs; at most
    `_MAX_TAIL_BYTES`, since a training waits for the answer. Where these hold no start, none is found.

    Raises:
        OSError: If the manifest cannot be read.
    """
    try:
        descriptor = open_regular(layout.manifest, os.O_RDONLY, follows_link=False)
    except FileNotFoundError:
        return []
    try:
        size = os.fstat(descriptor).st_size
        tail = _TAIL_BYTES
        while True:
            beginning = max(0, size - tail)
            data = os.pread(descriptor, size - beginning, beginning)
            if beginning:
                data = data.partition(b"\n")[2]
            records = parse_manifest(data).records
            started = [record.run for record in records if record.event == STARTED and is_run_id(record.run)]
            if started or beginning == 0 or tail >= _MAX_TAIL_BYTES:
                return started[::-1]
            tail *= 8
    finally:
        os.close(descriptor)


def _bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; of one that is longer than any record, a piece that is none."""
    is_continued = False
    while piece := file.readline(_MAX_LINE_BYTES):
        is_whole = piece.endswith(b"\n")
        if not is_continued:
            yield piece if is_whole or len(piece) < _MAX_LINE_BYTES else _NO_RECORD
        is_continued = not is_whole


def _parse_lines(lines: Iterable[bytes]) -> Manifest:
    records = []
    damaged = 0
    for line in lines:
        if not line.strip():
            continue
        record = ManifestRecord.decode(line)
        if record is None:
            damaged += 1
        else:
            records.append(record)
    return Manifest(tuple(records), damaged)
