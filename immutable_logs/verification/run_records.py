"""Check the records of a run: ``run.json`` and ``finished.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from immutable_logs.verification.findings import LEFTOVER, PROBLEM, Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from immutable_logs.records import RunRecord
    from immutable_logs.verification.state import ExperimentState, Problem, RunState

_MAX_NAMED: Final = 16


def check_run_record(
    state: ExperimentState, run: RunState, *, is_latest: bool, knows_rank_zero: bool
) -> Iterator[Finding]:
    """Yield what is wrong with ``run.json``; where rank zero is known to be in another run, none is expected."""
    file = state.relative(state.layout.run(run.id).run_record)
    was_complete = bool(run.lines.started) or run.lines.is_adopted or run.lines.is_recovered or is_latest
    if run.record_problem is not None:
        yield Finding(
            "record-unreadable",
            PROBLEM if was_complete else LEFTOVER,
            file,
            run.id,
            _describe(
                run.record_problem,
                "It was complete when the run was published, so it was damaged since. HINT: restore it from a copy"
                if was_complete
                else "Rank zero was killed while it wrote; the run was never published",
            ),
        )
    elif run.record is None and was_complete:
        yield Finding(
            "record-missing",
            PROBLEM,
            file,
            run.id,
            "the run was published; expected its record, found none. HINT: restore it from a copy; the manifest still "
            "tells when and where the run started",
        )
    elif run.record is None and not run.is_running and not knows_rank_zero:
        joined = f"ranks that joined: {name_ranks(run.joined)}" if run.joined else "no rank joined"
        yield Finding(
            "run-without-record",
            LEFTOVER,
            state.relative(state.layout.run(run.id).path),
            run.id,
            f"the run has no record, since its rank zero never came as far; {joined}. Their logs are here",
            details={"ranks": sorted(run.joined)},
        )
    elif run.record is not None:
        yield from _check_identity(run, run.record, file)


def _check_identity(run: RunState, record: RunRecord, file: str) -> Iterator[Finding]:
    """Tell of a record that belongs to another run or to another launch than its directory."""
    if record.run != run.id:
        yield Finding(
            "record-of-another-run",
            PROBLEM,
            file,
            run.id,
            f"expected the record of this run, found that of {record.run!r}. HINT: a run directory was copied or "
            "renamed by hand; keep copies outside of `runs/`",
        )
        return
    rank_zero, process = run.ranks.get(0), record.process
    identity = ("host", "pid", "boot_id", "start_ticks")
    if rank_zero is not None and any(key in process and process[key] != getattr(rank_zero, key) for key in identity):
        yield Finding(
            "run-of-two-launches",
            PROBLEM,
            file,
            run.id,
            f"expected the record of the process that joined as rank 0, pid {rank_zero.pid} on {rank_zero.host}, "
            f"found pid {process.get('pid')} on {process.get('host')}: two launches wrote into one run. "
            "HINT: read its logs with care, and set IMMUTABLE_LOGS_LAUNCH_ID to another text for each launch",
        )


def check_finish_record(state: ExperimentState, run: RunState) -> Iterator[Finding]:
    """Yield what is wrong with ``finished.json``."""
    file = state.relative(state.layout.run(run.id).finish_record)
    line = run.lines.finished[0] if run.lines.finished else None
    if run.finish_problem is not None:
        yield Finding(
            "end-record-unreadable",
            LEFTOVER if line is None else PROBLEM,
            file,
            run.id,
            _describe(
                run.finish_problem,
                "Rank zero was killed while it wrote; how the run ended is not known"
                if line is None
                else "The manifest has the outcome, so it was damaged since. HINT: restore it from a copy",
            ),
        )
    elif run.finish is None and line is not None:
        yield Finding(
            "end-record-missing",
            PROBLEM,
            file,
            run.id,
            f"the manifest says that the run ended ({line.details.get('outcome')}); expected the record of it, found "
            "none. HINT: restore it from a copy; the manifest still has the outcome",
        )
    elif run.finish is not None and run.finish.run != run.id and run.record is not None and run.record.run == run.id:
        yield Finding(
            "record-of-another-run",
            PROBLEM,
            file,
            run.id,
            f"expected the end record of this run, found that of {run.finish.run!r}. HINT: it was copied by hand; "
            "restore the right one",
        )
    elif run.finish is not None and line is not None and line.details.get("outcome") != run.finish.outcome:
        yield Finding(
            "end-record-differs",
            PROBLEM,
            file,
            run.id,
            f"expected the outcome that the manifest has, {line.details.get('outcome')!r}, found "
            f"{run.finish.outcome!r}. HINT: the record is the proof; the manifest's line was written by somebody else",
        )


def _describe(problem: Problem, damage: str) -> str:
    """Say why a record cannot be read: by whom it was damaged, or that it may be in order and out of reach."""
    if problem.is_damage:
        return f"{problem.words}. {damage}"
    return f"expected a record that can be read, found: {problem.words}. HINT: look as a user who may read it"


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in words, the first ones only where there are many."""
    ordered = sorted(ranks)
    named = ", ".join(str(rank) for rank in ordered[:_MAX_NAMED])
    return f"{named} and {len(ordered) - _MAX_NAMED} more" if len(ordered) > _MAX_NAMED else named
