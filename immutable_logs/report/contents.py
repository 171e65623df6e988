"""Everything that the page shows, read once: the runs, their curves, and what went wrong in those that ended badly."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from immutable_logs import __version__
from immutable_logs.catalog import MISSING, UNKNOWN
from immutable_logs.curves import Curves, list_event_files, read_curves, require_tensorboard
from immutable_logs.errors import ImmutableLogsError
from immutable_logs.log_reading.failure_order import judge
from immutable_logs.log_reading.log_clock import zone_of
from immutable_logs.log_reading.log_files import find_log_files
from immutable_logs.records import PRUNED
from immutable_logs.run_failure import RunFailure, find_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from immutable_logs.catalog import Experiment, RunDetails, RunSummary

MAX_CURVES: Final = 6
"""Lineages that are drawn: of more nobody can tell the lines apart."""

MAX_FAILURES: Final = 10
"""Runs whose logs are searched: a log can have gigabytes."""

_MAX_RUNS_OF_A_CURVE: Final = 500
_MAX_LINEAGES_LOOKED_AT: Final = 100
_MAX_STATUSES: Final = 12
"""There are eight; a record can hold any text."""

_ENDED_BADLY: Final = ("failed", "interrupted", UNKNOWN)


@dataclass(frozen=True, slots=True)
class LineageCurve:
    """The curves of a lineage.

    Attributes:
        lineage: Its first run.
        curves: What its event files hold.
    """

    lineage: str
    curves: Curves


@dataclass(frozen=True, slots=True)
class Contents:
    """What the page shows.

    Attributes:
        path: The experiment.
        made: When the report was made, as Unix time.
        version: The version of this package.
        counts: How many runs have each status, the most frequent first.
        latest: The run that the link `latest` shows, if any.
        damaged_lines: How many lines of the manifest could not be read.
        runs: The runs that are shown, the newest first.
        parents: For every run of the experiment, the one that it continues.
        lineages: For every run of the experiment, the first run of its lineage.
        curves: The curves of the newest lineages, the newest first.
        curve_problem: Why there are none.
        failures: The newest runs that ended badly, the newest first.
        failures_left_out: How many more of those that are shown ended badly.
        newest: Everything recorded of the newest run.
    """

    path: Path
    made: float
    version: str
    counts: dict[str, int]
    latest: str | None
    damaged_lines: int
    runs: tuple[RunSummary, ...]
    parents: dict[str, str | None]
    lineages: dict[str, str]
    curves: tuple[LineageCurve, ...] = ()
    curve_problem: str | None = None
    failures: tuple[RunFailure, ...] = ()
    failures_left_out: int = 0
    newest: RunDetails | None = None
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each run with a curve, the first and the last step of it that stands."""

    @property
    def total(self) -> int:
        """How many runs the experiment has."""
        return len(self.parents)


def collect_contents(
    experiment: Experiment, *, last: int, now: float, on_progress: Callable[[str], None] = lambda _: None
) -> Contents:
    """Read what the page shows.

    Args:
        experiment: The experiment.
        last: How many runs are shown, the newest ones.
        now: Unix time.
        on_progress: Told what is read next, where it can take a while.
    """
    listing = experiment.listing()
    shown = listing.runs[::-1][:last]
    lineages = {run.id: run.lineage or run.id for run in listing.runs}
    curves, problem = _curves(experiment, shown, lineages, on_progress)
    ended_badly = [run for run in shown if run.status in _ENDED_BADLY]
    failures = []
    for run in ended_badly[:MAX_FAILURES]:
        on_progress(f"Searching the logs of {run.id}")
        failures.append(_failure(experiment, run))
    newest = next((run for run in shown if run.id == listing.latest), None) or next(
        (run for run in shown if run.status not in (PRUNED, MISSING)), None
    )
    return Contents(
        path=experiment.path,
        made=now,
        version=__version__,
        counts=dict(Counter(run.status for run in listing.runs).most_common(_MAX_STATUSES)),
        latest=listing.latest,
        damaged_lines=listing.damaged_lines,
        runs=tuple(shown),
        parents={run.id: run.resumed_from for run in listing.runs},
        lineages=lineages,
        curves=tuple(curves),
        curve_problem=problem,
        failures=tuple(failures),
        failures_left_out=len(ended_badly) - len(failures),
        newest=None if newest is None else experiment.describe(newest),
        steps=_steps(curves),
    )


def _failure(experiment: Experiment, run: RunSummary) -> RunFailure:
    try:
        logs = find_log_files(run.path)
    except OSError as error:
        return RunFailure(run, judge((), {}, ()), (), {}, (f"{error.strerror}: {run.path}",))
    return find_failure(experiment, run, logs, zone=zone_of(logs))


def _curves(
    experiment: Experiment, shown: Iterable[RunSummary], lineages: dict[str, str], on_progress: Callable[[str], None]
) -> tuple[list[LineageCurve], str | None]:
    """Return the curves of the newest lineages that have a loss, or why there are none."""
    try:
        require_tensorboard()
    except ImmutableLogsError as error:
        return [], str(error)
    runs_of: dict[str, list[str]] = {}
    for run, lineage in lineages.items():
        runs_of.setdefault(lineage, []).append(run)
    found: list[LineageCurve] = []
    newest = list(dict.fromkeys(lineages[run.id] for run in shown))
    for lineage in newest[:_MAX_LINEAGES_LOOKED_AT]:
        runs = runs_of[lineage][-_MAX_RUNS_OF_A_CURVE:]
        if len(found) == MAX_CURVES or not any(list_event_files(experiment.layout.run(run)) for run in runs):
            continue
        on_progress(f"Reading the event files of the lineage {lineage}")
        curves = read_curves(experiment.layout, runs)
        if curves.loss_tag is not None or curves.problems:
            found.append(LineageCurve(lineage, curves))
    return found, None


def _steps(curves: Iterable[LineageCurve]) -> dict[str, tuple[int, int]]:
    return {
        part.run: (min(part.steps), max(part.steps))
        for each in curves
        for part in each.curves.by_tag.get(each.curves.loss_tag or "", ())
    }
