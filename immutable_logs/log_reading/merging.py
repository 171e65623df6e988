"""Merge the logs of all ranks into one stream by time, in memory that grows with the ranks and not with the logs."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from immutable_logs.log_reading.log_bytes import find_time, last_records, piece_size, read_records, size_of

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from immutable_logs.log_reading.log_files import LogFile
    from immutable_logs.log_reading.log_records import Record


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are wanted; everything that is given must hold.

    Attributes:
        ranks: Of these ranks; of all, and of files of no rank, where it is None.
        since: From this moment on, in the form of `log_lines`. Records of files without any time are left out.
        pattern: In their text.
    """

    ranks: frozenset[int] | None = None
    since: str | None = None
    pattern: re.Pattern[str] | None = None

    def includes(self, log: LogFile) -> bool:
        """Tell whether a file can have wanted records."""
        return self.ranks is None or log.rank in self.ranks

    def lets_through(self, record: Record) -> bool:
        """Tell whether a record is wanted."""
        if self.since is not None and record.time < self.since:
            return False
        return self.pattern is None or self.pattern.search(record.text) is not None


def merge_logs(
    logs: Sequence[LogFile],
    selection: Selection,
    *,
    last: int | None = None,
    ends: Mapping[Path, int] | None = None,
    on_problem: Callable[[OSError], None],
) -> Iterator[Record]:
    """Yield the wanted records of logs by time; what has the same time comes rank by rank.

    Within a log the order stays that of the file, also where its times go back, as after a clock was set. Lines
    above the first time of a log come before everything else.

    Args:
        logs: The files.
        selection: Which records.
        last: Only so many, the last ones; all if None.
        ends: How far each file counts; as far as it goes now, where it is not named.
        on_problem: Told of each file that cannot be read, which then ends there.
    """
    chosen = [log for log in logs if selection.includes(log)]
    piece = piece_size(len(chosen))
    ends = {log.path: (ends or {}).get(log.path, size_of(log.path)) for log in chosen}

    def read(log: LogFile) -> Iterable[Record]:
        end = ends[log.path]
        # A pattern may match none of the last records, so that all have to be read.
        if last is not None and selection.pattern is None:
            return last_records(log, last, end, on_problem=on_problem)
        start = 0
        if selection.since is not None:
            try:
                start = find_time(log, selection.since, end)
            except OSError as error:
                on_problem(error)
                return ()
        return read_records(log, start=start, end=end, piece=piece, on_problem=on_problem)

    merged = heapq.merge(*(filter(selection.lets_through, read(log)) for log in chosen), key=_key)
    return merged if last is None else iter(deque(merged, maxlen=last))


def in_order(logs: Iterable[Iterable[Record]]) -> list[Record]:
    """Return the records of several logs by time, as `merge_logs` does."""
    return list(heapq.merge(*logs, key=_key))


def _key(record: Record) -> tuple[str, tuple[float, str]]:
    return record.time, record.log.order
