"""What is written down of an adopted run: ``run.json``, ``finished.json`` and the manifest line; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from immutable_logs.layout import CHECKPOINTS
from immutable_logs.records import ADOPTED, FinishRecord, ManifestRecord, RunRecord, format_time
from immutable_logs.redaction import redact_arguments, redact_text
from migration.file_kinds import Kind

if TYPE_CHECKING:
    from migration.plan import PlannedRun

SOURCE: Final = "adopted"
"""The launch source of adopted runs."""

_MAX_LISTED: Final = 1000
_MAX_ARGUMENTS: Final = 1000


def adopted_run_record(run: PlannedRun) -> RunRecord:
    """Return what is known of an adopted run.

    Paths of checkpoints are relative to the experiment. The checkpoint that was restored is kept as the log names it:
    the path of another day, perhaps of another mount.
    """
    launch = run.launch
    place = run.log_directory.path
    arguments = launch.first(Kind.ARGUMENTS)
    commit = launch.first(Kind.GIT)
    lightning = launch.first(Kind.LIGHTNING)
    writer = next((file.writer for file in launch.files if file.writer), None)
    adopted_from: dict[str, Any] = {
        "log_directory": place or ".",
        "certainty": "uncertain" if launch.is_uncertain else "by evidence",
        "start": launch.why,
        "end": launch.why_end,
        "files": [file.path for file in launch.files[:_MAX_LISTED]],
        "file_count": run.files,
    }
    if launch.is_uncertain:
        adopted_from["possible_starts"] = [format_time(each.start) for each in launch.candidates]
    return RunRecord(
        run=run.id,
        started=format_time(launch.start),
        launch_source=SOURCE,
        lineage=run.lineage,
        resumed_from=run.resumed_from,
        checkpoint=redact_text(lightning.text) if lightning is not None and lightning.text else None,
        checkpoints=f"{place}/{CHECKPOINTS}" if place else CHECKPOINTS,
        process={"host": writer[0], "pid": writer[1]} if writer else {},
        arguments=_split(arguments.text) if arguments is not None else [],
        git_commit=commit.text if commit is not None else None,
        adopted_from=adopted_from,
    )


def adopted_finish_record(run: PlannedRun) -> FinishRecord | None:
    """Return how a run ended, where Lightning has said that the training reached its end; else None.

    Old logs tell of no other end: a failure, a signal and a lost node all look like a log that stops.
    """
    lightning = run.launch.first(Kind.LIGHTNING)
    if run.launch.is_uncertain or lightning is None or not lightning.has_ended:
        return None
    steps = [file.step for file in run.launch.files if file.step is not None]
    return FinishRecord(
        run=run.id,
        ended=format_time(run.launch.end),
        outcome="finished",
        step=max(steps, default=None),
    )


def adopted_manifest_record(run: PlannedRun) -> ManifestRecord:
    """Return the manifest line of an adopted run; its time is the start."""
    writer = next((file.writer for file in run.launch.files if file.writer), None)
    details: dict[str, Any] = {
        "ended": format_time(run.launch.end),
        "from": run.log_directory.path or ".",
        "files": run.files,
        "source": SOURCE,
        "lineage": run.lineage,
        "resumed_from": run.resumed_from,
    }
    if writer is not None:
        details["host"] = writer[0]
    if run.launch.is_uncertain:
        details["uncertain"] = True
    return ManifestRecord(ADOPTED, run.id, format_time(run.launch.start), details)


def _split(text: str | None) -> list[str]:
    """Return a command line as it was before NeMo joined it with blanks, as far as that can be had."""
    return redact_arguments((text or "").split(" ")[:_MAX_ARGUMENTS])
