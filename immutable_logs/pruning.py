"""Remove the directories of runs that an explicit retention takes, so that a kill at any moment does no harm.

`plan_prune` only looks. `prune_runs` acts, for some runs at a time, the newest first, since a run is needed by those
that were resumed from it (`_take` and `_remove`):

1. Look into the directories once more.
2. Take the manifest's lock, read the manifest and `latest` anew, and decide again: who was kept by then stays.
3. Append a ``pruned`` line for each run. From here on none of them is listed as a run, whatever is left of it.
4. Mark the file beside each claim: a late rank that finds no directory for its entry passes the run over. Release
   the lock.
5. For each run: look whether anyone has written in it since, and leave it then.
6. Remove the links to its event files in ``tensorboard/``, and the directory of the lineage if nothing stays there.
7. Remove the rank entries, then the record, then everything else. A file that is new stops it.

After a crash at 3: a torn line, which readers count; some runs are pruned by name only. At 4 to 7: runs that are
pruned and whose directories, whole or not, are still there. The next call finishes them; claims stay for ever.

Without a lock on this mount the same steps; the lines are read back, since two appends at once can be mixed up on NFS.
Two calls at once remove the same directories, which is as good as one.

Not promised: that a late rank gets another run while the entries of its own are still there, as after a kill at 4, or
if it has found its run neither there nor marked and stops for as long as 4 to 7 take. It joins the pruned run; its
files stay, and `verify` names the directory.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from immutable_logs import durable_files
from immutable_logs.errors import ManifestBusyError, RemovalError, describe_os_error
from immutable_logs.manifest import LOCK_TIMEOUT, manifest_lock, read_manifest
from immutable_logs.records import PRUNED, ManifestRecord, format_time, parse_time
from immutable_logs.retention import QUIET_TIME, Conditions, Contents, Decision, decide_retention
from immutable_logs.run_contents import Look, directories_of_runs, look_into
from immutable_logs.run_id import is_run_id
from immutable_logs.run_traces import RunTraces
from immutable_logs.tree_removal import remove_if_empty, remove_link, remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from immutable_logs.catalog import Experiment, Listing, RunSummary

KEPT: Final = "kept"
UNFINISHED: Final = "unfinished"

_BATCH: Final = 200
"""Runs for which the lock is held once: it is held while the manifest is read, never while files are removed."""

_MARK: Final = b"pruned\n"
_MAX_APPENDS: Final = 5
_TAKEN_BY_ANOTHER: Final = "another prune has taken it meanwhile"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a run that was to go.

    Attributes:
        decision: What was decided at last, and why.
        outcome: `PRUNED`, `KEPT`, or `UNFINISHED` where the directory, or a part of it, is left.
        problem: What went wrong, if anything did.
    """

    decision: Decision
    outcome: str
    problem: str | None = None


def plan_prune(experiment: Experiment, conditions: Conditions, *, now: float) -> list[Decision]:
    """Return what `prune_runs` would do with each run that has a directory; changes nothing.

    Raises:
        OSError: If the experiment cannot be read.
    """
    pruned = _pruned_times(experiment)
    return _decide(
        experiment,
        experiment.listing(),
        conditions,
        lambda run: look_into(experiment, run, pruned_at=pruned.get(run.id)).contents,
        now,
    )


def prune_runs(
    experiment: Experiment, plan: Sequence[Decision], conditions: Conditions, *, now: Callable[[], float] = time.time
) -> Iterator[Result]:
    """Remove the runs that a plan takes, as described at the top of this module.

    Args:
        experiment: The experiment.
        plan: What `plan_prune` returned; nothing that it keeps is removed.
        conditions: Those of the plan.
        now: The clock.

    Yields:
        What became of each, the newest first.

    Raises:
        ManifestBusyError: If another process holds the lock; nothing was done with the runs that are still to come.
        OSError: If the manifest cannot be written.
    """
    prune = _Prune(experiment, conditions, now)
    prune.mark_what_is_gone()
    taken = [decision for decision in reversed(plan) if decision.is_taken]
    for start in range(0, len(taken), _BATCH):
        yield from prune.prune([decision.run for decision in taken[start : start + _BATCH]])


class _Prune:
    """One call of `prune_runs`."""

    def __init__(self, experiment: Experiment, conditions: Conditions, now: Callable[[], float]) -> None:
        self._experiment = experiment
        self._layout = experiment.layout
        self._conditions = conditions
        self._now = now
        self._traces = RunTraces(experiment.layout)
        self._needed_by_what_failed: set[str | None] = set()

    def mark_what_is_gone(self) -> None:
        """Mark the claims of pruned runs that are gone and not marked: marks are not flushed, and power can fail."""
        present = directories_of_runs(self._layout)
        for record in read_manifest(self._layout).records:
            if record.event == PRUNED and record.run not in present:
                self._mark(record.run)

    def prune(self, runs: Sequence[RunSummary]) -> Iterator[Result]:
        """Prune some runs, those that resumed others before these."""
        looks = {run.id: self._look_before_taking(run) for run in runs}  # 1
        decided, problems, needed = self._take(runs, looks)  # 2 to 4
        for decision in decided:
            run = decision.run
            problem = problems.get(run.id)
            if not decision.is_taken:
                yield Result(decision, KEPT, problem)
                continue
            if problem is None and run.id in self._needed_by_what_failed:
                problem = "a run that was resumed from it could not be removed, so it waits for that one"
            if problem is None:
                try:
                    self._remove(run, needed)  # 5 to 7
                except OSError as error:
                    problem = describe_os_error(error)
            if problem is not None:
                self._needed_by_what_failed.add(run.resumed_from)
            yield Result(decision, PRUNED if problem is None else UNFINISHED, problem)

    def _look_before_taking(self, run: RunSummary) -> Look:
        """Look into a run; where this user cannot remove it, nothing is to be begun."""
        look = look_into(self._experiment, run)
        if look.tree is None or look.contents.obstacle is not None:
            return look
        locked = look.tree.locked if os.access(self._layout.runs, os.W_OK | os.X_OK) else str(self._layout.runs)
        if locked is None:
            return look
        reason = f"this user may not remove anything in {self._layout.run(run.id).path / locked}"
        return Look(Contents(obstacle=reason), None)

    def _take(
        self, runs: Sequence[RunSummary], looks: dict[str, Look]
    ) -> tuple[list[Decision], dict[str, str], frozenset[str | None]]:
        """Decide under the lock, and write down what goes.

        Returns:
            The decisions in the order of the runs, what went wrong by run, and the lineages that have other runs.
        """
        problems: dict[str, str] = {}
        unknown = Contents(obstacle="its turn comes later")
        with manifest_lock(self._layout) as is_locked:  # 2
            if not is_locked and durable_files.has_locks(self._layout.manifest):
                raise ManifestBusyError(self._layout.manifest, LOCK_TIMEOUT)
            listing = self._experiment.listing()
            decisions = _decide(
                self._experiment,
                listing,
                self._conditions,
                lambda run: looks[run.id].contents if run.id in looks else unknown,
                self._now(),
            )
            by_run = {decision.run.id: decision for decision in decisions}
            decided = [_unless_another_took_it(run, by_run.get(run.id)) for run in runs]
            taken = [decision for decision in decided if decision.is_taken]
            self._append_lines([each for each in taken if not each.is_unfinished], is_locked=is_locked)  # 3
            for decision in taken:  # 4
                try:
                    self._mark(decision.run.id)
                except OSError as error:
                    problems[decision.run.id] = describe_os_error(error)
        for decision in decided:
            if not decision.is_taken and looks[decision.run.id].tree is None and decision.reason != _TAKEN_BY_ANOTHER:
                problems[decision.run.id] = decision.reason
        going = {decision.run.id for decision in taken}
        needed = frozenset(run.lineage for run in listing.runs if run.id not in going and run.status != PRUNED)
        return decided, problems, needed

    def _append_lines(self, decisions: Sequence[Decision], *, is_locked: bool) -> None:
        waiting = {
            each.run.id: ManifestRecord(
                PRUNED, each.run.id, format_time(self._now()), {"bytes": each.contents.size if each.contents else None}
            )
            for each in decisions
        }
        for _ in range(_MAX_APPENDS):
            if not waiting:
                return
            lines = b"".join(record.encode() for record in waiting.values())
            durable_files.append(self._layout.manifest, lines, after_newline=is_locked)
            # With the lock too: some mounts give it to every host.
            for record in read_manifest(self._layout).records:
                if record.event == PRUNED:
                    waiting.pop(record.run, None)
        if waiting:
            raise RemovalError(self._layout.manifest, "lines that were appended are not there, so nothing is removed")

    def _mark(self, run_id: str) -> None:
        for path in self._traces.claimed_files(run_id):
            durable_files.mark(path, _MARK)

    def _remove(self, run: RunSummary, needed: frozenset[str | None]) -> None:
        """Remove what is left of a run.

        Args:
            run: The run, whose line is in the manifest and whose claim is marked.
            needed: The lineages that have other runs.

        Raises:
            OSError: If something stands in the way.
        """
        path = self._layout.run(run.id).path
        not_after = self._now() - QUIET_TIME
        # As a pruned one, of which only the files tell: another `prune` may be removing it too.
        look = look_into(self._experiment, replace(run, status=PRUNED))  # 5
        if look.tree is None:
            if path.exists():
                raise RemovalError(path, str(look.contents.obstacle))
        elif look.contents.obstacle is not None or look.contents.last_write > not_after:
            raise RemovalError(path, look.contents.obstacle or "something was written in it meanwhile, so it stays")
        for link in self._traces.event_links(run.id):  # 6
            remove_link(link)
        if run.lineage is not None and is_run_id(run.lineage) and run.lineage not in needed:
            remove_if_empty(self._layout.lineage(run.lineage))
        if look.tree is not None:  # 7
            layout = self._layout.run(run.id)
            remove_tree(
                path,
                identity=look.tree.identity,
                not_after=not_after,
                apart=look.apart,
                first=(layout.ranks.name, layout.run_record.name),
            )


def _pruned_times(experiment: Experiment) -> dict[str, float]:
    """Return when runs were pruned, by the lines of the manifest; a time that cannot be read was before everything."""
    records = read_manifest(experiment.layout).records
    return {record.run: parse_time(record.time) or 0.0 for record in records if record.event == PRUNED}


def _unless_another_took_it(run: RunSummary, decision: Decision | None) -> Decision:
    is_new = decision is None or (decision.is_unfinished and run.status != PRUNED and not decision.is_taken)
    return Decision(run, is_taken=False, reason=_TAKEN_BY_ANOTHER) if decision is None or is_new else decision


def _decide(
    experiment: Experiment,
    listing: Listing,
    conditions: Conditions,
    look: Callable[[RunSummary], Contents],
    now: float,
) -> list[Decision]:
    present = directories_of_runs(experiment.layout)
    return decide_retention(listing.runs, conditions, latest=listing.latest, present=present, look_into=look, now=now)
