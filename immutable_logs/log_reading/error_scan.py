"""Find the error that matters in a log of any size: by searching its bytes, quicker than lines can be told apart.

What counts, the stronger first:

1. The line with which a rank says what ended it; it is looked for at the end of the log alone.
2. A traceback, unless it stands in a line of a level below an error: then somebody dealt with it.
3. A line of the level critical.
4. A line of the level error, except those that NeMo writes at every start.

The strongest is returned, and of several the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from immutable_logs.log_reading.log_bytes import last_time, read_piece, size_of, year_of
from immutable_logs.log_reading.log_lines import (
    CRITICAL,
    DEBUG,
    ENDED_BY,
    ERROR,
    INFO,
    TRACEBACK,
    WARNING,
    parse_heading,
)
from immutable_logs.log_reading.log_records import RecordParser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from immutable_logs.log_reading.log_files import LogFile
    from immutable_logs.log_reading.log_records import Record

END: Final = "end"
EXCEPTION: Final = "exception"

MAX_TEXT: Final = 16_000
"""Characters of an error that are kept: of a longer one the beginning and the end."""

_PIECE: Final = 1 << 20
_TAIL: Final = 1 << 16
_CONTEXT: Final = 1 << 16
"""Bytes before and after a find in which the record around it is looked for."""

_NEMO_BEGINNING: Final = b"[NeMo "
_BEGINNING: Final = 1 << 13

_NEMO_LEVELS: Final[dict[str, tuple[bytes, ...]]] = {CRITICAL: (b"[NeMo C ",), ERROR: (b"[NeMo E ",)}
_OTHER_LEVELS: Final[dict[str, tuple[bytes, ...]]] = {CRITICAL: (b"CRITICAL", b"FATAL"), ERROR: (b"ERROR", b":[E")}
_OVERLAP: Final = 4096
"""Bytes of a piece that are searched with the next one too: longer than what is looked for, and than most lines."""

_HARMLESS: Final = ("You are running multi-node training without SLURM handling the processes",)
"""Lines of the level error that NeMo writes at every start of some kinds, with nothing wrong."""

_STRENGTH: Final = {END: 3, EXCEPTION: 2, CRITICAL: 1, ERROR: 0}


@dataclass(frozen=True, slots=True)
class LogError:
    """The error that matters in a log.

    Attributes:
        kind: ``end``, ``exception``, ``critical`` or ``error``, as at the top of this module.
        time: As written; empty if nothing tells.
        text: What is written, control characters included, cut in the middle where it is long.
    """

    kind: str
    time: str
    text: str

    @property
    def strength(self) -> int:
        """Order kinds: what is stronger says more about why a rank ended."""
        return _STRENGTH[self.kind]


@dataclass(frozen=True, slots=True)
class ScannedLog:
    """What a log tells about the end of its rank.

    Attributes:
        log: The file.
        error: What went wrong, if anything.
        last_time: When something with a time was written last; empty if never.
        searched: How many bytes were searched.
        problem: Why the file could not be read, if it could not.
    """

    log: LogFile
    error: LogError | None = None
    last_time: str = ""
    searched: int = 0
    problem: str | None = None


def scan_log(log: LogFile, since: str = "") -> ScannedLog:
    """Return what a log tells about the end of its rank.

    Args:
        log: The file.
        since: What has a time before this moment does not count.
    """
    try:
        return _Scan(log, since).run()
    except OSError as error:
        return ScannedLog(log, problem=f"{error.strerror or error}: {log.path}")


def cut_text(text: str) -> str:
    """Return a text that is no longer than `MAX_TEXT` by much."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


class _Scan:
    def __init__(self, log: LogFile, since: str) -> None:
        self._log = log
        self._since = since
        self._size = size_of(log.path)
        self._year = year_of(log.path)
        self._found: dict[str, LogError] = {}

    def run(self) -> ScannedLog:
        latest = last_time(self._log)
        error = self._end()
        searched = min(self._size, _TAIL)
        if error is None:
            self._search()
            searched = self._size
            error = max(self._found.values(), key=lambda each: each.strength, default=None)
        return ScannedLog(self._log, error, latest, searched)

    def _end(self) -> LogError | None:
        start = max(0, self._size - _TAIL)
        data = read_piece(self._log.path, start, self._size - start)
        place = data.find(ENDED_BY)
        if place < 0:
            return None
        record = next((each for each in self._records_around(start + place) if each.is_end), None)
        if record is None or record.time < self._since:
            return None
        return LogError(END, record.time, cut_text(record.text))

    def _search(self) -> None:
        """Search the whole log for an exception, and only if there is none, for lines of the levels of errors.

        Most logs of a training that died have an exception, and one text is looked for more quickly than three.
        """
        self._search_for({EXCEPTION: (TRACEBACK,)})
        if EXCEPTION not in self._found:
            is_nemo = _NEMO_BEGINNING in read_piece(self._log.path, 0, _BEGINNING)
            self._search_for(_NEMO_LEVELS if is_nemo else _OTHER_LEVELS)

    def _search_for(self, needles: dict[str, tuple[bytes, ...]]) -> None:
        """Search the log in pieces that overlap, until the strongest of some kinds was found."""
        strongest = next(iter(needles))
        buffer = bytearray(_PIECE)
        with open(self._log.path, "rb", buffering=0) as file:
            kept = offset = 0
            while strongest not in self._found and (size := file.readinto(memoryview(buffer)[kept:])):
                filled = kept + size
                for kind, of_kind in needles.items():
                    if kind not in self._found:
                        self._search_piece(kind, of_kind, buffer, filled, offset)
                kept = min(filled, _OVERLAP)
                buffer[:kept] = buffer[filled - kept : filled]
                offset += filled - kept

    def _search_piece(
        self, kind: str, needles: tuple[bytes, ...], buffer: bytearray, filled: int, offset: int
    ) -> None:
        """Keep the first error of a kind in a piece that begins at an offset of the file."""
        limit = filled
        for needle in needles:
            place = 0
            while (place := buffer.find(needle, place, limit)) >= 0:
                if kind == EXCEPTION or self._is_heading(kind, buffer, place, filled):
                    error = self._judge(kind, offset + place)
                    if error is not None:
                        self._found[kind] = error
                        limit = place
                        break
                place += len(needle)

    def _is_heading(self, kind: str, buffer: bytearray, place: int, filled: int) -> bool:
        """Tell whether a find stands in a line that begins a record of this level: words like it are in many texts."""
        begin = buffer.rfind(b"\n", 0, place) + 1
        if begin == 0:
            return True  # The line may begin before this piece: a closer look must tell.
        end = buffer.find(b"\n", place, filled)
        heading = parse_heading(bytes(buffer[begin : end if end >= 0 else filled]), self._year)
        return heading is not None and heading.level == kind

    def _judge(self, kind: str, place: int) -> LogError | None:
        """Return the error of this kind at a place of the file, if it is one."""
        record = next(iter(self._records_around(place)), None)
        if record is None or record.time < self._since:
            return None
        if kind == EXCEPTION:
            is_one = record.has_traceback and record.level not in (DEBUG, INFO, WARNING)
        else:
            is_one = record.level == kind and not any(each in record.text for each in _HARMLESS)
        return LogError(kind, record.time, cut_text(record.text)) if is_one else None

    def _records_around(self, place: int) -> Iterator[Record]:
        """Yield the record that holds a place of the file, and those that follow it closely."""
        start = max(0, place - _CONTEXT)
        data = read_piece(self._log.path, start, place - start + _CONTEXT)
        middle = place - start
        begin = self._beginning_of_record(data, middle, is_whole=start == 0)
        parser = RecordParser(self._log, year=self._year)
        for record in chain(parser.feed(data[begin:]), parser.flush()):
            begin += sum(map(len, record.lines)) + len(record.lines)
            if begin > middle:
                yield record

    def _beginning_of_record(self, data: bytes, middle: int, *, is_whole: bool) -> int:
        """Return where the last line with a time before a place begins; else the first whole line."""
        line_end = middle
        while line_end > 0:
            line = data.rfind(b"\n", 0, line_end) + 1
            following = data.find(b"\n", line)
            if (line or is_whole) and parse_heading(data[line : following if following >= 0 else None], self._year):
                return line
            line_end = line - 1
        return 0 if is_whole else data.find(b"\n") + 1
