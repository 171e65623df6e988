"""Make texts from file names, records and logs harmless for a terminal; pure.

A run directory is written by many programs, and in a shared directory by many people: a file name or an error text
can hold escape sequences that recolour a terminal, change its title or hide what was printed before.
"""

from __future__ import annotations

import re
from typing import Final

NOTHING: Final = "-"
"""Stands for a value that is not known."""

_KIBIBYTE: Final = 1024

# Control characters, those that turn the direction of writing around, line separators, halves of surrogate pairs.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINES: Final = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def harmless(value: object) -> str:
    """Return a value as one line of text without control characters; `NOTHING` for None."""
    text = NOTHING if value is None else str(value)
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape, text)


def harmless_lines(text: str) -> str:
    """Return a text without control characters, but with its line ends and tabs."""
    return _UNSAFE_IN_LINES.sub(_escape, text)


def format_bytes(size: int) -> str:
    """Return a size for people: ``512 B``, ``3.4 KiB``, ``1.2 GiB``."""
    if size < _KIBIBYTE:
        return f"{size} B"
    amount = size / _KIBIBYTE
    for unit in ("KiB", "MiB", "GiB"):
        if amount < _KIBIBYTE:
            return f"{amount:.1f} {unit}"
        amount /= _KIBIBYTE
    return f"{amount:.1f} TiB"


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")
