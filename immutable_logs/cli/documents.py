"""What is known of runs as plain JSON values: the one source of the `--json` output and of what is shown.

The keys are a public interface, described in ``docs/reference/cli.md``.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from immutable_logs.catalog import RUNNING
from immutable_logs.cli.run_files import list_run_files
from immutable_logs.rank_entries import read_rank_entries
from immutable_logs.records import FORMAT, format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from immutable_logs.catalog import Experiment, Listing, RunDetails, RunSummary
    from immutable_logs.cli.filters import RunFilter

_LAUNCH_KEYS: Final = ("launch_key", "launch_source", "generation")
_PROVENANCE_KEYS: Final = (
    "arguments",
    "working_directory",
    "user",
    "git_commit",
    "versions",
    "configuration",
    "adopted_from",
)


def experiment_document(experiment: Experiment, *, now: float) -> dict[str, Any]:
    """Return the runs of one experiment in order; `listing_document` of it alone."""
    return listing_document([(experiment, experiment.listing())], now=now)


def listing_document(
    listings: Sequence[tuple[Experiment, Listing]],
    *,
    now: float,
    run_filter: RunFilter | None = None,
    on_reading: Callable[[RunSummary], None] | None = None,
) -> dict[str, Any]:
    """Return the runs of experiments, in order within each.

    Args:
        listings: The experiments with their runs.
        now: Unix time, for the duration of runs that go on.
        run_filter: Which runs; all if there is none.
        on_reading: Called with each run before its event files are read; without it, none are.

    Raises:
        ImmutableLogsError: If event files are to be read and TensorBoard is not installed.
    """
    documents: list[dict[str, Any]] = []
    latest = None
    damaged = 0
    for experiment, listing in listings:
        latest = listing.latest
        damaged += listing.damaged_lines
        for run in listing.runs:
            if run_filter is None or run_filter.lets_through(run):
                document = run_document(experiment, run, latest=listing.latest, now=now)
                if on_reading is not None:
                    on_reading(run)
                    document["metrics"] = metrics_document(experiment, run)
                documents.append(document)
    is_one = len(listings) == 1
    return {
        "format": FORMAT,
        "experiment": str(listings[0][0].path) if is_one else None,
        "latest": latest if is_one else None,
        "damaged_lines": damaged,
        "runs": documents,
    }


def metrics_document(experiment: Experiment, run: RunSummary) -> dict[str, Any]:
    """Return what the event files of a run tell.

    Raises:
        ImmutableLogsError: If TensorBoard is not installed.
    """
    from immutable_logs.curves import read_curves

    curves = read_curves(experiment.layout, [run.id])
    return {
        "step": curves.last_step,
        "loss": _finite(curves.last_value(curves.loss_tag)),
        "loss_tag": curves.loss_tag,
        "values": {tag: _finite(curves.last_value(tag)) for tag in sorted(curves.by_tag)},
        "problems": curves.problems,
    }


def _finite(value: float | None) -> float | str | None:
    """Return a number; as text where JSON has none for it, since a loss that is not a number is worth knowing."""
    return value if value is None or math.isfinite(value) else str(value)


def run_document(experiment: Experiment, run: RunSummary, *, latest: str | None, now: float) -> dict[str, Any]:
    """Return what `ls` says of one run.

    Args:
        experiment: Its experiment.
        run: The run.
        latest: The run that the link shows.
        now: Unix time, for the duration of a run that goes on.
    """
    end = now if run.ended is None and run.status == RUNNING else run.ended
    return {
        "experiment": str(experiment.path),
        "run": run.id,
        "status": run.status,
        "evidence": run.evidence,
        "path": str(run.path),
        "started": format_time(run.started),
        "ended": None if run.ended is None else format_time(run.ended),
        "duration_seconds": None if end is None else round(max(0.0, end - run.started), 3),
        "ranks_joined": run.ranks_joined,
        "world_size": run.world_size,
        "step": run.step,
        "host": run.host,
        "job": run.job,
        "source": run.source,
        "lineage": run.lineage,
        "resumed_from": run.resumed_from,
        "is_latest": run.id == latest,
    }


def details_document(
    experiment: Experiment, reference: str, *, now: float, with_metrics: bool = False
) -> dict[str, Any]:
    """Return everything known of one run.

    Args:
        experiment: The experiment.
        reference: Which run.
        now: Unix time, for the duration of a run that goes on.
        with_metrics: Read the event files too.

    Raises:
        UnknownRunError: If the reference means no run, or several.
        ImmutableLogsError: If event files are to be read and TensorBoard is not installed.
    """
    run = experiment.find(reference)
    details = experiment.describe(run)
    record = details.run_record
    listing = experiment.listing()
    document = {"format": FORMAT, **run_document(experiment, run, latest=listing.latest, now=now)}
    document.update({key: getattr(record, key, None) for key in _LAUNCH_KEYS})
    document["ranks"] = [_without(asdict(rank), "nonce") for rank in read_rank_entries(experiment.layout.run(run.id))]
    document["checkpoint"] = record.checkpoint if record else None
    document["checkpoints"] = record.checkpoints if record else None
    document["resumed_by"] = [other.id for other in listing.runs if other.resumed_from == run.id]
    document.update({key: getattr(record, key, None) for key in _PROVENANCE_KEYS})
    document["files"] = list_run_files(run.path)
    document["end"] = _end_document(details)
    document["problems"] = list(details.problems)
    if with_metrics:
        document["metrics"] = metrics_document(experiment, run)
    return document


def _end_document(details: RunDetails) -> dict[str, Any] | None:
    record = details.finish_record
    return None if record is None else _without(asdict(record), "run")


def _without(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a record's keys without one of them, and with those of a newer writer at the end."""
    unknown = document.pop("unknown")
    document.pop(name)
    return {**document, **unknown}
