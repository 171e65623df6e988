"""Follow the logs of a run as they grow, by looking again and again: a mount over the network tells of no change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from immutable_logs.log_reading.log_bytes import end_of_lines, piece_size, read_piece, size_of, year_of
from immutable_logs.log_reading.log_files import find_log_files
from immutable_logs.log_reading.log_records import Record, RecordParser
from immutable_logs.log_reading.merging import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from immutable_logs.log_reading.log_files import LogFile
    from immutable_logs.log_reading.merging import Selection

_MAX_PIECES: Final = 64
"""Pieces of one log that are read at one look, so that one that was silent for long does not hold up the others."""


@dataclass(slots=True)
class _Followed:
    log: LogFile
    parser: RecordParser
    offset: int


class RunFollower:
    """Reads what was written to the logs of a run since the last look; logs that appear later belong to it too."""

    def __init__(
        self,
        directory: Path,
        selection: Selection,
        *,
        ends: Mapping[Path, int] | None = None,
        on_problem: Callable[[OSError], None],
    ) -> None:
        """Begin to follow a run.

        Args:
            directory: The run directory.
            selection: Which records are wanted.
            ends: Where each log was read to, as `current_ends` tells; logs that are not named are read from their
                beginning.
            on_problem: Told of what cannot be read; it is tried again at the next look.
        """
        self._directory = directory
        self._selection = selection
        self._ends = ends or {}
        self._on_problem = on_problem
        self._followed: dict[Path, _Followed] = {}

    def look(self) -> list[Record]:
        """Return what is new, by time."""
        try:
            for log in find_log_files(self._directory):
                if log.path not in self._followed and self._selection.includes(log):
                    parser = RecordParser(log, year=year_of(log.path))
                    self._followed[log.path] = _Followed(log, parser, self._ends.get(log.path, 0))
        except OSError as error:
            self._on_problem(error)
        return in_order([self._wanted(each, self._news) for each in self._followed.values()])

    def finish(self) -> list[Record]:
        """Return what is left at the end: last lines without an end."""
        return [*self.look(), *in_order([self._wanted(each, _rest) for each in self._followed.values()])]

    def _wanted(self, each: _Followed, read: Callable[[_Followed], list[Record]]) -> list[Record]:
        return list(filter(self._selection.lets_through, read(each)))

    def _news(self, each: _Followed) -> list[Record]:
        path = each.log.path
        size = size_of(path)
        if size < each.offset:
            # Written anew from its beginning, as with `>` in a shell.
            each.parser, each.offset = RecordParser(each.log, year=year_of(path)), 0
        records: list[Record] = []
        piece = piece_size(len(self._followed))
        for _ in range(_MAX_PIECES):
            if size <= each.offset:
                break
            try:
                data = read_piece(path, each.offset, piece)
            except OSError as error:
                self._on_problem(error)
                break
            if not data:
                break
            each.offset += len(data)
            records += each.parser.feed(data)
        records += each.parser.flush(is_ended=False)
        return records


def _rest(each: _Followed) -> list[Record]:
    return list(each.parser.flush())


def current_ends(logs: Iterable[LogFile], *, on_problem: Callable[[OSError], None]) -> dict[Path, int]:
    """Return how far each log goes now, in complete lines: up to there for a merge, from there on for a follower."""
    ends = {}
    for log in logs:
        try:
            ends[log.path] = end_of_lines(log.path)
        except OSError as error:
            on_problem(error)
    return ends
