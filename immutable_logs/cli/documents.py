"""What is known of runs as plain JSON values: the one source of the `--json` output and of what is shown.

The keys are a public interface, described in ``docs/reference/cli.md``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from immutable_logs.catalog import RUNNING
from immutable_logs.cli.run_files import list_run_files
from immutable_logs.latest_link import read_latest
from immutable_logs.manifest import read_manifest
from immutable_logs.rank_entries import read_rank_entries
from immutable_logs.records import FORMAT, format_time

if TYPE_CHECKING:
    from immutable_logs.catalog import Experiment, RunDetails, RunSummary

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
    """Return the runs of an experiment in order.

    Args:
        experiment: The experiment.
        now: Unix time, for the duration of runs that go on.
    """
    latest = read_latest(experiment.layout)
    return {
        "format": FORMAT,
        "experiment": str(experiment.path),
        "latest": latest,
        "damaged_lines": read_manifest(experiment.layout).damaged,
        "runs": [run_document(run, latest=latest, now=now) for run in experiment.runs()],
    }


def run_document(run: RunSummary, *, latest: str | None, now: float) -> dict[str, Any]:
    """Return what `ls` says of one run.

    Args:
        run: The run.
        latest: The run that the link shows.
        now: Unix time, for the duration of a run that goes on.
    """
    end = now if run.ended is None and run.status == RUNNING else run.ended
    return {
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


def details_document(experiment: Experiment, reference: str, *, now: float) -> dict[str, Any]:
    """Return everything known of one run.

    Args:
        experiment: The experiment.
        reference: Which run.
        now: Unix time, for the duration of a run that goes on.

    Raises:
        UnknownRunError: If the reference means no run, or several.
    """
    run = experiment.find(reference)
    details = experiment.describe(run)
    record = details.run_record
    document = {
        "format": FORMAT,
        "experiment": str(experiment.path),
        **run_document(run, latest=read_latest(experiment.layout), now=now),
    }
    document.update({key: getattr(record, key, None) for key in _LAUNCH_KEYS})
    document["ranks"] = [_without(asdict(rank), "nonce") for rank in read_rank_entries(experiment.layout.run(run.id))]
    document["checkpoint"] = record.checkpoint if record else None
    document["checkpoints"] = record.checkpoints if record else None
    document["resumed_by"] = [other.id for other in experiment.runs() if other.resumed_from == run.id]
    document.update({key: getattr(record, key, None) for key in _PROVENANCE_KEYS})
    document["files"] = list_run_files(run.path)
    document["end"] = _end_document(details)
    document["problems"] = list(details.problems)
    return document


def _end_document(details: RunDetails) -> dict[str, Any] | None:
    record = details.finish_record
    return None if record is None else _without(asdict(record), "run")


def _without(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a record's keys without one of them, and with those of a newer writer at the end."""
    unknown = document.pop("unknown")
    document.pop(name)
    return {**document, **unknown}
