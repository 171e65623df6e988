"""Read the entries that ranks leave when they join a run, and write ranks in short."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from immutable_logs import durable_files
from immutable_logs.errors import RecordError
from immutable_logs.process import Process
from immutable_logs.records import RankRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from immutable_logs.layout import RunLayout


def count_joined_ranks(run: RunLayout) -> int:
    """Return how many ranks have joined a run: one listing for every `layout.RANKS_PER_SHARD` ranks, no file read."""
    return sum(1 for _ in entry_paths(run))


def read_rank_entries(run: RunLayout) -> list[RankRecord]:
    """Return the readable entries of a run, in the order of the ranks."""
    records = []
    for path in entry_paths(run):
        with suppress(OSError, RecordError):
            records.append(RankRecord.decode(durable_files.read_bytes(path), path))
    return sorted(records, key=lambda record: record.global_rank)


def read_rank_process(run: RunLayout, global_rank: int) -> Process | None:
    """Return the process of a rank, or None if there is no readable entry."""
    path = run.rank_entry(global_rank)
    with suppress(OSError, RecordError):
        record = RankRecord.decode(durable_files.read_bytes(path), path)
        return Process(record.host, record.pid, record.boot_id, record.pid_namespace, record.start_ticks)
    return None


def format_ranges(numbers: Iterable[int]) -> str:
    """Return numbers in ascending order as ranges: ``0-3, 8``."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def entry_paths(run: RunLayout) -> Iterator[Path]:
    """Yield the path of every entry of a run, readable or not."""
    with suppress(OSError), os.scandir(run.ranks) as shards:
        for shard in shards:
            with suppress(OSError), os.scandir(shard.path) as entries:
                for entry in entries:
                    if entry.name.startswith("rank-"):
                        yield run.ranks / shard.name / entry.name
