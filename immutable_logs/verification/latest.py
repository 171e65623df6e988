"""Check `latest`: that it shows the run that started last, and that this run is complete."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from immutable_logs.latest_link import read_latest
from immutable_logs.verification.findings import LEFTOVER, PROBLEM, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from immutable_logs.verification.state import ExperimentState, RunState

_REPAIR = "HINT: `immutable-logs verify --repair` switches it"


def check_latest(state: ExperimentState, latest: str | None) -> Iterator[Finding]:
    """Yield what is wrong with `latest`, which shows the given run."""
    path = state.relative(state.layout.latest)
    newest = newest_run(state)
    is_repairable = newest is not None
    expected = f"the run that started last, {newest.id}" if newest is not None else "a run"
    foreign = _foreign_latest(state) if latest is None else None
    run = None if latest is None else state.runs.get(latest)
    if foreign is not None:
        yield Finding(
            "latest-foreign",
            PROBLEM if newest is not None else LEFTOVER,
            path,
            None,
            f"expected a link to {expected}, found {foreign}, which is the user's and is never touched. HINT: rename "
            "it, and the next launch or `immutable-logs verify --repair` makes the link",
        )
    elif latest is None:
        if newest is not None:
            yield Finding(
                "latest-missing",
                PROBLEM,
                path,
                newest.id,
                f"expected a link to {expected}, found none. HINT: `immutable-logs verify --repair` makes it",
                is_repairable=True,
            )
    elif run is None or not run.is_present:
        yield Finding(
            "latest-dangling",
            PROBLEM,
            path,
            latest,
            f"expected {expected}, found a link to {latest}, which is not there. {_hint(is_repairable=is_repairable)}",
            is_repairable=is_repairable,
        )
    elif run.record is None:
        is_repairable = newest is not None and newest.id != latest
        yield Finding(
            "latest-without-record",
            PROBLEM,
            path,
            latest,
            f"expected a run with a complete record, found {latest}, which has none. "
            f"{_hint(is_repairable=is_repairable)}",
            is_repairable=is_repairable,
        )
    elif newest is not None and _is_behind(state, run, newest):
        yield Finding(
            "latest-behind",
            PROBLEM,
            path,
            latest,
            f"expected {expected}, found the earlier run {latest}: a launch was killed between its line in the "
            f"manifest and the switch. {_REPAIR}; the next launch does too",
            is_repairable=True,
            details={"expected": newest.id},
        )


def newest_run(state: ExperimentState) -> RunState | None:
    """Return the run that `latest` should show: the last published one that is complete; without any, an adopted one.

    A run whose ``started`` line is lost counts only where both its place and the time in its record are later.
    """
    complete = [run for run in state.runs.values() if run.is_present and run.record and not run.lines.is_pruned]
    newest: RunState | None = None
    for run in complete:
        if (
            run.was_published
            and not run.is_adopted
            and (run.lines.started or newest is None or _is_later(run, newest))
        ):
            newest = run
    return newest or next((run for run in reversed(complete) if run.is_adopted and not _is_uncertain(run)), None)


def check_workshop(state: ExperimentState) -> Iterator[Finding]:
    """Yield what a kill in the middle of a switch has left."""
    workshop = state.layout.latest_workshop
    if not os.path.isdir(workshop):
        return
    for name in sorted(os.listdir(workshop)):
        if name.endswith((".link", ".txt")):
            yield Finding(
                "latest-unfinished",
                LEFTOVER,
                state.relative(workshop / name),
                None,
                "the next `latest` under its private name: whoever made it was killed before the switch",
            )


def _hint(*, is_repairable: bool) -> str:
    return _REPAIR if is_repairable else "HINT: the next launch switches it"


def _foreign_latest(state: ExperimentState) -> str | None:
    """Say what has the name `latest` and is not ours; None if nothing has it."""
    try:
        mode = os.lstat(state.layout.latest).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        return "a link of another form"
    return "a directory" if stat.S_ISDIR(mode) else "a file"


def _is_later(run: RunState, other: RunState) -> bool:
    return run.record is not None and other.record is not None and run.record.started > other.record.started


def _is_behind(state: ExperimentState, run: RunState, newest: RunState) -> bool:
    """Tell whether a run started before another; one without a line had one when `latest` was switched to it."""
    if newest.is_adopted or not (run.lines.started or run.is_adopted):
        return False
    order = list(state.runs)
    return order.index(run.id) < order.index(newest.id)


def _is_uncertain(run: RunState) -> bool:
    origin = run.record.adopted_from if run.record is not None else None
    return isinstance(origin, dict) and origin.get("certainty") == "uncertain"


def shown_run(state: ExperimentState) -> str | None:
    """Return the run that `latest` shows, or what stands for it on a mount without links."""
    return read_latest(state.layout)
