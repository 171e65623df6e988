"""Check each run: whether it is there, its records, its lines in the manifest, its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from immutable_logs.run_id import is_run_id
from immutable_logs.verification.findings import LEFTOVER, PROBLEM, Finding
from immutable_logs.verification.manifest_lines import check_lines
from immutable_logs.verification.run_records import check_finish_record, check_run_record, name_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from immutable_logs.verification.state import ExperimentState, RunState

_MAX_WORLD_SIZE: Final = 1_000_000
"""More ranks than this stand in no true record."""


def check_runs(
    state: ExperimentState, latest: str | None, elsewhere: Collection[tuple[str, int]]
) -> Iterator[Finding]:
    """Yield what is wrong with each run.

    Args:
        state: The experiment.
        latest: The run that the link shows.
        elsewhere: Runs and ranks of which it is known that the rank is in another run, which is told apart.
    """
    for run in state.runs.values():
        path = state.relative(state.layout.run(run.id).path)
        if run.lines.is_pruned:
            if run.is_present:
                yield Finding(
                    "prune-unfinished",
                    LEFTOVER,
                    path,
                    run.id,
                    "the manifest says that the run was pruned, and its directory is still there: `prune` was "
                    "interrupted. HINT: call `immutable-logs prune` again",
                )
        elif not run.is_present:
            yield _missing(run, path, is_something=run.id in state.others)
        else:
            yield from check_run_record(
                state, run, is_latest=run.id == latest, knows_rank_zero=(run.id, 0) in elsewhere
            )
            yield from check_finish_record(state, run)
            yield from check_lines(state, run, is_latest=run.id == latest)
            yield from _check_ranks(state, run, elsewhere)


def _missing(run: RunState, path: str, *, is_something: bool) -> Finding:
    found = "something that is no directory, such as a link, which is not followed" if is_something else "nothing"
    return Finding(
        "run-missing",
        PROBLEM,
        path,
        run.id,
        f"the manifest names this run; expected its directory, found {found}. Nothing of ours removes a run without "
        "a `pruned` line. HINT: put it back if it was moved; if it was removed on purpose, nothing else needs it",
    )


def _check_ranks(state: ExperimentState, run: RunState, elsewhere: Collection[tuple[str, int]]) -> Iterator[Finding]:
    for rank, path in sorted(run.unreadable.items()):
        yield Finding(
            "rank-entry-unreadable",
            LEFTOVER,
            state.relative(path),
            run.id,
            f"the entry of rank {rank} is empty, cut or another's: its process was killed while it joined. It counts "
            "as joined",
            details={"rank": rank},
        )
    expected = run.record.world_size if run.record is not None else None
    if expected is None or expected > _MAX_WORLD_SIZE or run.is_running or run.is_adopted:
        return
    absent = [rank for rank in range(expected) if rank not in run.joined and (run.id, rank) not in elsewhere]
    if absent:
        yield Finding(
            "ranks-absent",
            LEFTOVER,
            state.relative(state.layout.run(run.id).ranks),
            run.id,
            f"expected {expected} ranks, found {len(run.joined)}; absent: {name_ranks(absent)}. They died before they "
            "joined, or never started",
            details={"ranks": absent},
        )


def check_other_entries(state: ExperimentState) -> Iterator[Finding]:
    """Yield what in ``runs/`` is not ours."""
    for name in state.others:
        if name not in state.runs:
            yield Finding(
                "foreign-entry",
                LEFTOVER,
                state.relative(state.layout.runs / name),
                None,
                "not a run directory, and not ours; left alone"
                + (". A link or a file with the name of a run is not followed" if is_run_id(name) else ""),
            )
