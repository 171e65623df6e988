"""Lay out rows in columns, quickly and without rich: a listing can have ten thousand lines."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from immutable_logs.cli.plain_text import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_GAP: Final = "  "
_CUT: Final = ".."

_COLOURS: Final = {"red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}
_WEIGHTS: Final = {"bold": 1, "dim": 2}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        heading: What stands above it.
        is_number: Whether it is aligned on the right.
        can_be_cut: Whether it may lose its end where the terminal is narrow; never an id, which people copy.
        style: The style of a cell, by its text, where it has one.
    """

    heading: str
    is_number: bool = False
    can_be_cut: bool = False
    style: Callable[[str], str] | None = None


def lay_out(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], *, width: int | None = None, has_colours: bool = False
) -> Iterator[str]:
    """Yield the lines of a table, the headings first, every cell harmless and on one line.

    Args:
        columns: The columns.
        rows: A value for each column; None is shown as `plain_text.NOTHING`.
        width: The columns of the terminal, if it is one: what can be cut is cut to it. The rest is never torn.
        has_colours: Whether styles are written as escape sequences.
    """
    texts = [[harmless(value) for value in values] for values in zip(*rows, strict=True)] or [[] for _ in columns]
    widths = [max(map(display_width, [column.heading, *cells])) for column, cells in zip(columns, texts, strict=True)]
    excess = 0 if width is None else sum(widths) + len(_GAP) * (len(columns) - 1) - width
    for index, column in enumerate(columns):
        if column.can_be_cut and excess > 0:
            kept = max(len(column.heading), widths[index] - excess, len(_CUT))
            excess -= widths[index] - kept
            widths[index] = kept
    headings = (_padded([column.heading], size, column)[0] for column, size in zip(columns, widths, strict=True))
    heading = _GAP.join(headings).rstrip()
    yield paint(heading, "bold") if has_colours else heading
    padded = [_padded(*each) for each in zip(texts, widths, columns, strict=True)]
    for index, column in enumerate(columns):
        if has_colours and column.style is not None:
            padded[index] = [
                cell.replace(text, paint(text, column.style(text)), 1)
                for cell, text in zip(padded[index], texts[index], strict=True)
            ]
    for cells in zip(*padded, strict=True):
        yield _GAP.join(cells).rstrip()


def paint(text: str, style: str) -> str:
    """Return a text with the escape sequences of a style such as ``bold green``; itself for an empty style."""
    codes = ";".join(str((_WEIGHTS | _COLOURS)[word]) for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes else text


def display_width(text: str) -> int:
    """Return how many columns of a terminal a text takes: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in text
    )


def _padded(cells: list[str], size: int, column: Column) -> list[str]:
    if "".join(cells).isascii() and not column.can_be_cut:
        return [cell.rjust(size) for cell in cells] if column.is_number else [cell.ljust(size) for cell in cells]
    cut = [cell if display_width(cell) <= size else _cut(cell, size) for cell in cells]
    blanks = [" " * (size - display_width(cell)) for cell in cut]
    return [blank + cell if column.is_number else cell + blank for cell, blank in zip(cut, blanks, strict=True)]


def _cut(text: str, size: int) -> str:
    while text and display_width(text) > size - len(_CUT):
        text = text[:-1]
    return text + _CUT
