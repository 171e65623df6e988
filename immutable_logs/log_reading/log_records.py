"""Put the lines of a log together to records: a line with a time, and those below it that have none."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from immutable_logs.log_reading.log_lines import TRACEBACK, parse_heading, readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from immutable_logs.log_reading.log_files import LogFile

MAX_LINES: Final = 1000
"""Lines in one record: a log without times would else be one record as large as the file."""

MAX_LINE_BYTES: Final = 1 << 18
"""Bytes of an unfinished line that are kept in memory."""

_LONG_LINE: Final = 1 << 12
"""Bytes from which on a line may be that of a progress bar, which in a file never ends."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a log.

    Attributes:
        log: The file.
        time: As written; that of the record above for lines that have none, empty where there is none above.
        level: One of the words of `log_lines`, or empty.
        lines: Its lines, as they are in the file.
        is_end: Whether the rank says here what ended it.
    """

    log: LogFile
    time: str
    level: str
    lines: tuple[bytes, ...]
    is_end: bool = False

    @property
    def text(self) -> str:
        """The lines as text, a progress bar in its last state; control characters are still in."""
        return "\n".join(map(readable, self.lines))

    @property
    def has_traceback(self) -> bool:
        """Whether there is a Python traceback in it."""
        return any(TRACEBACK in line for line in self.lines)


class RecordParser:
    """Makes records of the bytes of one log, in pieces of any size, in memory that does not grow with the log.

    A traceback that begins at the margin begins a record: NeMo indents what belongs to a line of its own, so this one
    came from elsewhere, as the interpreter's last words do.
    """

    def __init__(self, log: LogFile, *, year: str = "") -> None:
        """Begin at the beginning of a line.

        Args:
            log: The file, for the records.
            year: For lines that tell the day without the year; this year if empty.
        """
        self._log = log
        self._year = year or time.strftime("%Y")
        self._rest = b""
        self._lines: list[bytes] = []
        self._time = ""
        self._level = ""
        self._is_end = False

    def feed(self, data: bytes) -> Iterator[Record]:
        """Yield the records that are complete: a new one has begun after them."""
        lines = (self._rest + data).split(b"\n")
        self._rest = _shortened(lines.pop())
        for line in lines:
            yield from self._add(line)

    def flush(self, *, is_ended: bool = True) -> Iterator[Record]:
        """Yield what is there of the record that has begun; lines that follow later get its time.

        Args:
            is_ended: Whether nothing follows, so that a line without an end counts too.
        """
        if is_ended and self._rest:
            line, self._rest = self._rest, b""
            yield from self._add(line)
        yield from self._take()

    def _add(self, line: bytes) -> Iterator[Record]:
        heading = parse_heading(line, self._year)
        if heading is not None:
            yield from self._take()
            self._time, self._level, self._is_end = heading.time, heading.level, heading.is_end
        elif line.startswith(TRACEBACK) and self._level not in ("error", "critical"):
            yield from self._take()
            self._level = "error"
        elif len(self._lines) >= MAX_LINES:
            yield from self._take()
        self._lines.append(line)

    def _take(self) -> Iterator[Record]:
        if self._lines:
            lines, self._lines = tuple(self._lines), []
            yield Record(self._log, self._time, self._level, lines, self._is_end)


def _shortened(line: bytes) -> bytes:
    """Return the end of an unfinished line that has become long: of a progress bar no more than its last states."""
    if len(line) > _LONG_LINE:
        line = line[max(0, line.rfind(b"\r", 0, -_LONG_LINE // 2)) :]
    return line[-MAX_LINE_BYTES:]
