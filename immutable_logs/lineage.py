"""Which run continues which: found from the checkpoint that a run starts from."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from immutable_logs import durable_files
from immutable_logs.errors import RecordError
from immutable_logs.layout import LATEST, RUNS
from immutable_logs.manifest import read_manifest, recent_started_runs
from immutable_logs.records import ADOPTED, RunRecord, parse_time
from immutable_logs.redaction import redact_text
from immutable_logs.run_id import is_run_id

if TYPE_CHECKING:
    from immutable_logs.layout import ExperimentLayout

_MAX_CANDIDATES: Final = 50
"""How many runs are looked at, the newest first; the writer of a checkpoint is nearly always the last one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run comes from.

    Attributes:
        lineage: The first run of the chain; the run itself if it continues none.
        run: The run that it continues, if any.
    """

    lineage: str
    run: str | None = None


def find_origin(layout: ExperimentLayout, run_id: str, checkpoint: os.PathLike[str] | str | None) -> Origin:
    """Return which run wrote a checkpoint, and the first run of its lineage.

    A checkpoint inside a run directory was written by that run. One in a shared directory was written by the run that
    started last before it was: both times are the file server's (``run.json`` and the checkpoint), no clock counts.
    A run that started from it since knows the writer.
    If none was, an adopted run wrote it; its ``run.json`` is newer, so there the times in the manifest count.

    Args:
        layout: The experiment.
        run_id: The run that starts from the checkpoint.
        checkpoint: A file or directory, or None.
    """
    if checkpoint is None or _is_remote(checkpoint):
        return Origin(run_id)
    writer = _writer(layout, run_id, Path(os.path.abspath(checkpoint)))
    if writer is None:
        return Origin(run_id)
    with suppress(OSError, RecordError):
        path = layout.run(writer).run_record
        lineage = str(RunRecord.decode(durable_files.read_bytes(path), path).lineage)
        # It names a directory, and in a shared experiment anyone can have written the record.
        if is_run_id(lineage):
            return Origin(lineage, writer)
    return Origin(writer, writer)


def relative_to_experiment(path: os.PathLike[str] | str | None, experiment: Path) -> str | None:
    """Return a path as it is recorded: relative where it lies in the experiment, since trees are moved and mounted.

    A path through ``latest``, or through another name of the experiment, is recorded by where it leads now: ``latest``
    means another run tomorrow. An address of another storage (``s3://…``) is recorded as it is, without passwords.
    """
    if path is None:
        return None
    if _is_remote(path):
        return redact_text(os.fspath(path))
    absolute = Path(os.path.abspath(path))
    with suppress(ValueError):
        inside = absolute.relative_to(experiment)
        if inside.parts[:1] != (LATEST,):
            return str(inside)
    with suppress(ValueError, OSError):
        return str(absolute.resolve().relative_to(experiment.resolve()))
    return str(absolute)


def _is_remote(path: os.PathLike[str] | str) -> bool:
    return "://" in os.fspath(path)


def _writer(layout: ExperimentLayout, run_id: str, checkpoint: Path) -> str | None:
    location = str(relative_to_experiment(checkpoint, layout.path))
    top, _, below = location.partition(os.sep)
    if top == RUNS:
        name = below.partition(os.sep)[0]
        return name if is_run_id(name) else None
    with suppress(OSError):
        written = os.stat(checkpoint).st_mtime
        candidates = [run for run in recent_started_runs(layout) if run != run_id]
        for run in candidates[:_MAX_CANDIDATES]:
            writer = _writer_known_by(layout, run, location, written)
            if writer is not None:
                return writer
        if not os.path.isabs(location):
            return _adopted_writer(layout, written)
    return None


def _adopted_writer(layout: ExperimentLayout, written: float) -> str | None:
    """Return the adopted run that started last before a checkpoint was written."""
    adopted = [
        (started, record.run)
        for record in read_manifest(layout).records
        if record.event == ADOPTED and is_run_id(record.run) and (started := parse_time(record.time)) is not None
    ]
    return max(((started, run) for started, run in adopted if started <= written), default=(0.0, None))[1]


def _writer_known_by(layout: ExperimentLayout, run: str, location: str, written: float) -> str | None:
    """Return the run itself if it can have written a checkpoint, or the writer that it found when it started from it.

    So many starts from one checkpoint, as in a job that dies again and again, need no look at all of them.
    """
    path = layout.run(run).run_record
    with suppress(OSError, RecordError):
        has_started_since = os.stat(path).st_mtime > written
        record = RunRecord.decode(durable_files.read_bytes(path), path)
        if has_started_since:
            found = record.resumed_from if record.checkpoint == location else None
            return found if found is not None and is_run_id(found) else None
        home = record.checkpoints
        if not os.path.isabs(location) or (home is not None and location.startswith(home.rstrip("/") + "/")):
            return run
    return None
