"""Read pieces of many logs, with few open files and little memory, and find places in a log by time."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from immutable_logs.log_reading.log_lines import parse_heading
from immutable_logs.log_reading.log_records import Record, RecordParser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from immutable_logs.log_reading.log_files import LogFile

_MEMORY: Final = 16 << 20
"""Bytes that are held of all logs together, as far as the pieces do not get too small for it."""

_SMALLEST_PIECE: Final = 1 << 13
_LARGEST_PIECE: Final = 1 << 18
_WINDOW: Final = 1 << 16
"""Bytes in which a line with a time is looked for."""

_CLOSE: Final = 1 << 13
"""Bytes before a moment that are read though they are older: finding the very line takes longer than reading them."""

_BYTES_A_RECORD: Final = 256


def piece_size(files: int) -> int:
    """Return how much to read of each file at a time."""
    return min(_LARGEST_PIECE, max(_SMALLEST_PIECE, _MEMORY // max(1, files)))


def read_piece(path: Path, offset: int, size: int) -> bytes:
    """Return a piece of a file; the file is open no longer than that, so that a thousand logs need no thousand files.

    Raises:
        OSError: If it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    """Return the size of a file; 0 if it is gone."""
    with suppress(OSError):
        return os.stat(path).st_size
    return 0


def year_of(path: Path) -> str:
    """Return the year in which a file was written last, for lines that leave it out."""
    with suppress(OSError):
        return time.strftime("%Y", time.localtime(os.stat(path).st_mtime))
    return ""


def read_records(
    log: LogFile,
    *,
    start: int = 0,
    end: int | None = None,
    piece: int = _LARGEST_PIECE,
    on_problem: Callable[[OSError], None],
) -> Iterator[Record]:
    """Yield the records of a log.

    Args:
        log: The file.
        start: Where to begin, at the beginning of a line.
        end: Where to stop, so that a log that grows meanwhile comes to an end; its size if None.
        piece: How many bytes are read at a time.
        on_problem: Told of an error, which ends this log but not the others.
    """
    offset = start
    end = size_of(log.path) if end is None else end
    parser = RecordParser(log, year=year_of(log.path))
    while offset < end:
        try:
            data = read_piece(log.path, offset, min(piece, end - offset))
        except OSError as error:
            on_problem(error)
            break
        if not data:
            break
        offset += len(data)
        yield from parser.feed(data)
    yield from parser.flush()


def end_of_lines(path: Path) -> int:
    """Return where the last complete line of a file ends: there what is written next begins.

    Raises:
        OSError: If it cannot be read.
    """
    size = size_of(path)
    start = max(0, size - _WINDOW)
    newline = read_piece(path, start, size - start).rfind(b"\n")
    return size if newline < 0 < start else start + newline + 1


def find_time(log: LogFile, moment: str, end: int) -> int:
    """Return a place at the beginning of a line, shortly before the first record of a moment or later.

    The times in a log are taken to ascend.

    Args:
        log: The file.
        moment: In the form of `log_lines`.
        end: The end of what counts of the file.

    Raises:
        OSError: If it cannot be read.
    """
    low, high = 0, end
    year = year_of(log.path)
    while high - low > _CLOSE:
        middle = (low + high) // 2
        found = _first_time(read_piece(log.path, middle, _WINDOW), year)
        if found is None or found[0] >= moment:
            high = middle
        else:
            low = middle + found[1]
    return low


def last_records(log: LogFile, count: int, end: int, *, on_problem: Callable[[OSError], None]) -> list[Record]:
    """Return the last records of a log, reading no more of its end than needed."""
    size = max(_CLOSE, count * _BYTES_A_RECORD)
    while True:
        start = max(0, end - size)
        try:
            skipped = 0
            if start:
                found = _first_time(read_piece(log.path, start, min(_WINDOW, end - start)), year_of(log.path))
                skipped = found[1] if found else 0
        except OSError as error:
            on_problem(error)
            return []
        records = deque(read_records(log, start=start + skipped, end=end, on_problem=on_problem), maxlen=count)
        if len(records) == count or start == 0:
            return list(records)
        size *= 4


def last_time(log: LogFile) -> str:
    """Return the time of the last record of a log; empty if there is none.

    Raises:
        OSError: If it cannot be read.
    """
    size = size_of(log.path)
    start = max(0, size - _WINDOW)
    year = year_of(log.path)
    for line in reversed(read_piece(log.path, start, size - start).split(b"\n")):
        heading = parse_heading(line, year)
        if heading is not None:
            return heading.time
    return ""


def _first_time(data: bytes, year: str) -> tuple[str, int] | None:
    """Return the first time in a piece of a log, and where its line begins; not in the line that is cut off."""
    place = data.find(b"\n") + 1
    while place > 0:
        end = data.find(b"\n", place)
        heading = parse_heading(data[place : end if end >= 0 else len(data)], year)
        if heading is not None:
            return heading.time, place
        place = end + 1
    return None
