"""Print the records of logs: each line with its rank, or one JSON object for each record."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final

from immutable_logs.cli.columns import paint
from immutable_logs.cli.plain_text import harmless, harmless_lines
from immutable_logs.cli.terminal import has_colours, note
from immutable_logs.errors import describe_os_error
from immutable_logs.records import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from immutable_logs.log_reading.log_files import LogFile
    from immutable_logs.log_reading.log_records import Record

_STYLES: Final = ("cyan", "green", "yellow", "magenta", "bold cyan", "bold green", "bold yellow", "bold magenta")
"""A colour for each rank, again from the first after the last; red is for errors."""


class RecordPrinter:
    """Prints records, each line with its rank before it.

    Attributes:
        run: The run whose records they are, for the JSON output.
    """

    def __init__(self, run: str, *, as_json: bool) -> None:
        """Print for people, or one JSON object for each record."""
        self.run = run
        self._as_json = as_json
        self._has_colours = has_colours()
        self._prefixes: dict[LogFile, str] = {}

    def show(self, records: Iterable[Record]) -> None:
        """Print records."""
        for record in records:
            sys.stdout.write(self._as_document(record) if self._as_json else self._as_text(record))
        sys.stdout.flush()

    def _as_text(self, record: Record) -> str:
        prefix = self._prefixes.get(record.log)
        if prefix is None:
            prefix = self._prefixes[record.log] = self._prefix(record.log)
        # NeMo ends many a warning with a line of blanks.
        lines = harmless_lines(record.text).rstrip().split("\n")
        if self._has_colours and record.level in ("error", "critical"):
            lines = [paint(line, "red") for line in lines]
        return "".join(f"{prefix}{line}\n" for line in lines)

    def _prefix(self, log: LogFile) -> str:
        prefix = f"[{harmless(log.path.name if log.rank is None else log.rank)}]"
        if self._has_colours:
            number = sum(prefix.encode()) if log.rank is None else log.rank
            prefix = paint(prefix, _STYLES[number % len(_STYLES)])
        return f"{prefix} "

    def _as_document(self, record: Record) -> str:
        document = {
            "format": FORMAT,
            "run": self.run,
            "rank": record.log.rank,
            "file": record.log.path.name,
            "time": record.time or None,
            "level": record.level or None,
            "text": record.text,
        }
        return json.dumps(document, ensure_ascii=True) + "\n"


class Problems:
    """Says once of each log that it cannot be read."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._said: set[str] = set()

    def __call__(self, error: OSError) -> None:
        """Say it on stderr."""
        text = describe_os_error(error)
        if text not in self._said:
            self._said.add(text)
            note(f"Warning: a log cannot be read: {text}")
