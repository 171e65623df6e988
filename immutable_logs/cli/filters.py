"""Which of many runs are listed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from immutable_logs.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from immutable_logs.catalog import RunSummary

STATUSES: Final = ("running", "finished", "failed", "interrupted", "unknown", "adopted", "pruned", "missing")

_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|m|h|d|w)")
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T _](\d\d)[:-](\d\d)(?:[:-](\d\d))?)?Z?")


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What a run must have to be listed; everything that is given must hold.

    Attributes:
        statuses: Any of these statuses; all where there are none.
        since: It started at this Unix time or later.
        host: A pattern for the host of rank zero, with or without the domain.
    """

    statuses: frozenset[str] = frozenset()
    since: float | None = None
    host: str | None = None

    @classmethod
    def of(cls, statuses: Sequence[str], since: str | None, host: str | None, *, now: float) -> RunFilter:
        """Return the filter that the options of the command line describe.

        Raises:
            ConfigurationError: If a status or a time is not understood.
        """
        for status in statuses:
            if status not in STATUSES:
                raise ConfigurationError(
                    "--status", status, f"expected --status to be one of {', '.join(STATUSES)}, found {status!r}"
                )
        return cls(frozenset(statuses), None if since is None else parse_since(since, now=now), host)

    def lets_through(self, run: RunSummary) -> bool:
        """Tell whether a run is listed."""
        if self.statuses and run.status not in self.statuses:
            return False
        if self.since is not None and run.started < self.since:
            return False
        return self.host is None or (
            run.host is not None and (fnmatchcase(run.host, self.host) or fnmatchcase(run.host, f"{self.host}.*"))
        )


def parse_length(option: str, text: str) -> float:
    """Return the seconds that are meant by a length of time such as ``30d``.

    Raises:
        ConfigurationError: If it is none.
    """
    length = _LENGTH.fullmatch(text)
    if length:
        return float(length[1]) * _UNITS[length[2]]
    raise ConfigurationError(
        option, text, f"expected {option} to be a length of time such as 90m, 6h, 30d or 4w, found {text!r}"
    )


def parse_since(text: str, *, now: float) -> float:
    """Return the Unix time that is meant by a length of time before now, or by a moment in UTC.

    Raises:
        ConfigurationError: If it is neither.
    """
    length = _LENGTH.fullmatch(text)
    if length:
        return now - float(length[1]) * _UNITS[length[2]]
    moment = _MOMENT.fullmatch(text)
    if moment:
        try:
            date = datetime.strptime(moment[1], "%Y-%m-%d").replace(tzinfo=timezone.utc)
            hour, minute, second = (int(each or 0) for each in moment.groups()[1:])
            return date.replace(hour=hour, minute=minute, second=second).timestamp()
        except ValueError:
            pass
    raise ConfigurationError(
        "--since",
        text,
        f"expected --since to be a length of time such as 90m, 6h, 2d or 1w, or a moment in UTC such as 2026-12-01 or "
        f"2026-12-01T08:30, found {text!r}",
    )
