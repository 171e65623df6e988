"""Write to the terminal or the pipe: JSON, tables, status words. Loads rich only when a table is drawn."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, Final

import typer

from immutable_logs.cli.plain_text import harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_PIPE_WIDTH: Final = 10_000
"""Columns when stdout is no terminal: a program that reads a table needs whole lines."""

_STATUS_STYLES: Final = {
    "running": "bold green",
    "finished": "green",
    "failed": "bold red",
    "interrupted": "yellow",
    "unknown": "magenta",
    "missing": "red",
    "adopted": "cyan",
    "pruned": "dim",
}


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON object; every character that is not ASCII is escaped, so that none can act on a terminal."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=True, default=str))


def note(text: str) -> None:
    """Say something to the person, beside the data: on stderr."""
    typer.echo(harmless(text), err=True)


def has_colours() -> bool:
    """Tell whether stdout takes colours: a terminal that has them, or FORCE_COLOR; and not with NO_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    is_capable = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return is_capable or bool(os.environ.get("FORCE_COLOR"))


def terminal_width() -> int | None:
    """Return the columns of the terminal that stdout is, or None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def status_style(status: str) -> str:
    """Return the style of a status; the word says the same."""
    return _STATUS_STYLES.get(status, "")


def open_console() -> Console:
    """Return a console for stdout that interprets no markup, and is wide where nobody looks."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def new_table(*headers: str, whole: tuple[str, ...] = (), numbers: tuple[str, ...] = ()) -> Table:
    """Return an empty table without lines.

    Args:
        headers: The columns' headings.
        whole: Those columns whose cells are never wrapped nor cut, since people copy what is in them.
        numbers: Those that are aligned on the right.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(headers))
    for header in headers:
        table.add_column(
            header,
            justify="right" if header in numbers else "left",
            no_wrap=header in whole,
            overflow="crop" if header in whole else "fold",
        )
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table: wider than the terminal rather than torn, and without blanks at the end where nobody looks."""
    from rich.measure import Measurement

    needed = Measurement.get(console, console.options.update(width=_PIPE_WIDTH), table).minimum
    if console.is_terminal:
        console.width = max(needed, console.width)
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    console.out("\n".join(line.rstrip() for line in captured.get().splitlines()))


def cell(value: object, style: str = "") -> Text:
    """Return a cell with any value in it, harmless."""
    from rich.text import Text

    return Text(harmless(value), style=style)


def status_cell(status: object) -> Text:
    """Return a status in its colour; the word says the same."""
    return cell(status, status_style(str(status)))
