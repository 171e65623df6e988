"""Check the manifest: damaged lines, and those that a run's records call for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from immutable_logs.records import FINISHED, STARTED
from immutable_logs.run_id import is_run_id
from immutable_logs.verification.findings import LEFTOVER, PROBLEM, Finding
from immutable_logs.verification.lines import RECOVERED, as_recovered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from immutable_logs.records import ManifestRecord
    from immutable_logs.verification.state import ExperimentState, RunState


_LOST: Final = {
    STARTED: (
        "started-line-lost",
        PROBLEM,
        "the run was published; expected its `started` line, found none, so that its place in the order is a guess",
    ),
    RECOVERED: (
        "started-line-lost",
        LEFTOVER,
        "the run has a record; expected its `started` line, found none: killed before it was published, or lost",
    ),
    FINISHED: (
        "finished-line-lost",
        LEFTOVER,
        "the run has an end record; expected its `finished` line, found none: killed between the two, or lost",
    ),
}
"""Kind, severity and words by the event of the line that is to be added."""


def check_manifest(state: ExperimentState) -> Iterator[Finding]:
    """Yield what is wrong with the manifest as a whole."""
    manifest = state.relative(state.layout.manifest)
    if state.manifest.damaged:
        yield Finding(
            "manifest-damaged",
            LEFTOVER,
            manifest,
            None,
            f"lines that cannot be read: {state.manifest.damaged}, as after a kill in the middle of one. They stay, "
            "and readers pass them over; a run whose line is lost is told apart",
            details={"lines": state.manifest.damaged},
        )
    foreign = sum(1 for record in state.manifest.records if not is_run_id(record.run))
    if foreign:
        yield Finding(
            "manifest-foreign",
            LEFTOVER,
            manifest,
            None,
            f"lines that name no run id: {foreign}. Readers pass them over",
            details={"lines": foreign},
        )


def lost_lines(run: RunState, latest: str | None) -> list[ManifestRecord]:
    """Return the lines that a run's records call for and the manifest lacks, as `repair` may append them.

    A ``started`` line stays one only where the run was surely published, so that nothing that failed before becomes
    the run that started last.
    """
    lost = []
    if not run.is_present or run.lines.is_pruned or run.is_adopted:
        return []
    is_known = bool(run.lines.started) or run.lines.is_recovered
    if run.record is not None and run.record.run == run.id and not is_known and not run.is_running:
        line = run.record.manifest_line
        if run.was_published or run.id == latest:
            lost.append(line)
        elif run.finish is None:
            lost.append(as_recovered(line))
    if run.finish is not None and run.finish.run == run.id and not run.lines.finished:
        lost.append(run.finish.manifest_line)
    return lost


def check_lines(state: ExperimentState, run: RunState, *, is_latest: bool) -> Iterator[Finding]:
    """Yield what is wrong with the lines on one run."""
    manifest = state.relative(state.layout.manifest)
    if run.is_adopted and not run.lines.is_adopted:
        yield Finding(
            "adoption-unfinished",
            LEFTOVER,
            manifest,
            run.id,
            "a migration made the run, and the manifest has no line on it: `apply` was interrupted, or the line is "
            "lost. HINT: call `migrate-nemo-logs apply` again",
        )
    for line in lost_lines(run, run.id if is_latest else None):
        kind, severity, words = _LOST[line.event]
        yield Finding(
            kind,
            severity,
            manifest,
            run.id,
            f"{words}. The run itself is not lost. HINT: `immutable-logs verify --repair` adds the line",
            is_repairable=True,
        )
    for lines in (run.lines.started, run.lines.finished):
        yield from _check_doubled(manifest, run, lines)


def _check_doubled(manifest: str, run: RunState, lines: list[ManifestRecord]) -> Iterator[Finding]:
    if len(lines) < 2:  # noqa: PLR2004 - two is what "doubled" means
        return
    if all(line == lines[0] for line in lines) or lines[0].event != "started":
        yield Finding(
            "line-doubled",
            LEFTOVER,
            manifest,
            run.id,
            f"the run has {len(lines)} `{lines[0].event}` lines, as after a merge of two copies; the first one counts",
        )
        return
    yield Finding(
        "started-twice",
        PROBLEM,
        manifest,
        run.id,
        f"expected one `started` line, found {len(lines)} that differ: two launches say that they started this run, "
        f"from {lines[0].details.get('host')} and {lines[-1].details.get('host')}. HINT: read its logs with care, and "
        "set IMMUTABLE_LOGS_LAUNCH_ID to another text for each launch",
    )
