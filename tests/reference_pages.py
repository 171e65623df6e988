"""Read the pages that describe a command line, to compare them with the program."""

from __future__ import annotations

import re
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def section(page: Path, title: str) -> str:
    """Return the part of a page under a heading."""
    (found,) = re.findall(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return str(found)


def first_column(text: str, heading: str) -> list[str]:
    """Return the names in code type in the first column of all tables that have a heading."""
    tables = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [row.split(" |")[0] for table in tables for row in table.splitlines()]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def options_in_help(help_text: str) -> set[str]:
    """Return the option names that a help text explains."""
    explained = help_text.partition("\nOptions:\n")[2].partition("\nCommands:\n")[0]
    return set(re.findall(r"^  (--?[\w-]+)", explained, re.MULTILINE)) | set(
        re.findall(r"^  -\w, (--[\w-]+)", explained, re.MULTILINE)
    )
