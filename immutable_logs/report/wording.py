"""Times, numbers and ids as the page writes them; pure."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from immutable_logs.catalog import RUNNING, format_seconds
from immutable_logs.cli.plain_text import NOTHING
from immutable_logs.report.markup import Markup, element, shorten

if TYPE_CHECKING:
    from collections.abc import Container

    from immutable_logs.catalog import RunSummary

_FIRST_SECOND: Final = -62135596800.0
_LAST_SECOND: Final = 253402300799.0
_RANDOM_END: Final = 5
_MANY: Final = 10_000
_UNITS: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


def short_id(run_id: str) -> str:
    """Return the random end of a run id, as `immutable-logs ls` does on a narrow terminal."""
    return f"..{run_id[-_RANDOM_END:]}"


def anchor(run_id: str) -> str:
    """Return the name of the row of a run in the table."""
    return f"run-{run_id}"


def run_link(run_id: str | None, shown: Container[str], *, is_short: bool = True) -> Markup | str:
    """Return the name of a run, with a link to its row where it has one."""
    if run_id is None:
        return NOTHING
    text = shorten(short_id(run_id) if is_short else run_id)
    if run_id not in shown:
        return element("span", text, title=shorten(run_id)) if is_short else text
    return element("a", text, href=f"#{anchor(run_id)}", title=run_id if is_short else None)


def utc(seconds: float) -> datetime:
    """Return a Unix time in UTC; the last second that there is for what comes after it, as a record can have it."""
    return datetime.fromtimestamp(min(max(seconds, _FIRST_SECOND), _LAST_SECOND), timezone.utc)


def moment(seconds: float | None) -> str:
    """Return a Unix time in UTC, to the minute."""
    return NOTHING if seconds is None else utc(seconds).strftime("%Y-%m-%d %H:%M")


def number(value: int | None) -> str:
    """Return a whole number for people."""
    return NOTHING if value is None else shorten(f"{value:,}", 30)


def compact(value: float) -> str:
    """Return a number for an axis: ``250``, ``12k``, ``1.5M``."""
    for size, unit in _UNITS:
        if abs(value) >= size and value >= _MANY:
            return f"{value / size:g}{unit}"
    return f"{value:,.0f}"


def scalar(value: float | None) -> str:
    """Return a measured value with as many digits as say something."""
    return NOTHING if value is None else f"{value:.4g}"


def counted(count: int, thing: str) -> str:
    """Return a number with its noun: ``1 run``, ``2 runs``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def duration(run: RunSummary, now: float) -> str:
    """Return how long a run took, with a plus sign while it goes on."""
    if run.ended is not None:
        return format_seconds(run.ended - run.started)
    return f"{format_seconds(now - run.started)}+" if run.status == RUNNING else NOTHING


def ranks(run: RunSummary) -> str:
    """Return how many ranks joined, of how many expected."""
    joined, expected = (NOTHING if each is None else shorten(each, 20) for each in (run.ranks_joined, run.world_size))
    return f"{joined} of {expected}"


def place(run: RunSummary) -> str:
    """Return the scheduler's job and the host of rank zero."""
    parts = ([] if run.job is None else [f"job {run.job}"]) + ([] if run.host is None else [run.host])
    return shorten(", ".join(parts)) if parts else NOTHING
