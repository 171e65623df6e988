"""What a line of a log tells: when, how bad, and its text without what could act on a terminal; pure.

Times stay as they are written, in the form ``2026-12-01 12:22:28`` or ``2026-12-01 12:22:28.123``, which sorts as
text. NeMo writes local time and no zone, so nothing else could be said of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

DEBUG: Final = "debug"
INFO: Final = "info"
WARNING: Final = "warning"
ERROR: Final = "error"
CRITICAL: Final = "critical"

TRACEBACK: Final = b"Traceback (most recent call last)"

ENDED_BY: Final = b"immutable_logs:ended"
"""Stands where NeMo's lines have module and line number, in the line with which a rank says what ended it."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS: Final = {
    b"D": DEBUG,
    b"I": INFO,
    b"W": WARNING,
    b"E": ERROR,
    b"C": CRITICAL,
    b"F": CRITICAL,
    b"DEBUG": DEBUG,
    b"INFO": INFO,
    b"SUCCESS": INFO,
    b"WARN": WARNING,
    b"WARNING": WARNING,
    b"ERROR": ERROR,
    b"CRITICAL": CRITICAL,
    b"FATAL": CRITICAL,
}
_NEMO: Final = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*\[NeMo ([DIWEC]) (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) ([^\]]*)\]"
)
_DATED: Final = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*[\[(]?(\d{4}-\d\d-\d\d)[T _](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?:Z|[+-]\d\d:?\d\d)?(?=\W|$)"
)
# glog, as torch writes it: E1201 13:21:34.871000 26440 torch/…, with [rank2]: before it from C++.
_GLOG: Final = re.compile(rb"(?:\[rank\d+\]:)?\[?([IWEFC])(\d\d)(\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,9})?) ")
_LEVEL_WORD: Final = re.compile(rb"\b(DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_ROOM_FOR_LEVEL: Final = 120
"""Bytes after the time in which a level is looked for; further on the word belongs to the message."""


@dataclass(frozen=True, slots=True)
class Heading:
    """What the first line of a record tells.

    Attributes:
        time: As written, in a form that sorts.
        level: One of the words above; empty where the line has none.
        is_end: Whether a rank says here what ended it.
    """

    time: str
    level: str
    is_end: bool = False


def parse_heading(line: bytes, year: str) -> Heading | None:
    """Return what a line tells if it begins a record; None for one that belongs to the line above it.

    Args:
        line: The line.
        year: For forms that leave it out.
    """
    first = line[:1]
    if not first or first in b" \t":
        return None
    if match := _NEMO.match(line):
        return Heading(match[2].decode("ascii"), _LEVELS[match[1]], match[3].startswith(ENDED_BY))
    if match := _DATED.match(line):
        fraction = b"." + match[3] if match[3] else b""
        word = _LEVEL_WORD.search(line, match.end(), match.end() + _ROOM_FOR_LEVEL)
        time = b"%b %b%b" % (match[1], match[2], fraction)
        return Heading(time.decode("ascii"), _LEVELS[word[1]] if word else "")
    if match := _GLOG.match(line):
        time = b"-%b-%b %b" % (match[2], match[3], match[4])
        return Heading(year + time.decode("ascii"), _LEVELS[match[1]])
    return None


def readable(line: bytes) -> str:
    """Return a line as text: the last state of a progress bar, without colours. Other control characters stay in."""
    text = line.decode("utf-8", "replace")
    if "\r" in text:
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    return _COLOURS.sub("", text) if "\x1b" in text else text
