"""Which runs an explicit retention takes and which it keeps, and why; pure.

Whatever the conditions say, a run is kept while anyone may still need it or write in it. What cannot be known counts
as a reason to keep.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from immutable_logs.records import PRUNED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from immutable_logs.catalog import RunSummary

QUIET_TIME: Final = 86400.0
"""Seconds since its end and its last write for which a run is kept: a job can be requeued, a reader can be at work."""

_UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60))
_FAILED: Final = "failed"
_RUNNING: Final = "running"
_MISSING: Final = "missing"


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the user asks for; a run is taken only if all that is given holds.

    Attributes:
        keep_last: It is not among so many last runs.
        older_than: It ended and was last written in more than so many seconds ago.
        only_failed: It has failed.
    """

    keep_last: int | None = None
    older_than: float | None = None
    only_failed: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return self == Conditions()


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies in a run directory, as far as retention needs to know.

    Attributes:
        size: Bytes in its files.
        freed: Bytes in those that have no other name, and so become free.
        last_write: Unix time of the last write by anyone but ``prune`` and the migration.
        has_checkpoints: Whether checkpoints of the run lie in it; None if that cannot be known.
        is_adopted: Whether a migration made it.
        obstacle: Why it must not be removed, in words, if so.
    """

    size: int = 0
    freed: int = 0
    last_write: float = 0.0
    has_checkpoints: bool | None = None
    is_adopted: bool = False
    obstacle: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one run, and why.

    Attributes:
        run: The run.
        is_taken: Whether its directory is to go.
        reason: Why, in words.
        contents: What lies in it; known only where the decision needed it.
        quiet_since: Unix time of its end or last write, whichever is later, as far as known.
    """

    run: RunSummary
    is_taken: bool
    reason: str
    contents: Contents | None = None
    quiet_since: float | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether an earlier ``prune`` has taken the run and not got to the end."""
        return self.run.status == PRUNED


def decide_retention(
    runs: Sequence[RunSummary],
    conditions: Conditions,
    *,
    latest: str | None,
    present: Collection[str],
    look_into: Callable[[RunSummary], Contents],
    now: float,
) -> list[Decision]:
    """Decide for each run that has a directory, in order.

    Args:
        runs: All runs of the experiment, in order.
        conditions: What is asked for.
        latest: The run that the link ``latest`` shows.
        present: The ids of the runs that have a directory.
        look_into: Tells what lies in a run; asked only where everything else speaks for taking it.
        now: Unix time.
    """
    there = [run for run in runs if run.id in present]
    whole = [run for run in there if run.status not in (PRUNED, _MISSING)]
    newest = whole[-1].id if whole else None
    last = {run.id for run in whole[-conditions.keep_last :]} if conditions.keep_last else set()
    decisions = []
    for run in there:
        reason = next(_reasons_to_keep(run, conditions, latest=latest, newest=newest, last=last, now=now), None)
        decisions.append(
            Decision(run, is_taken=False, reason=reason, quiet_since=run.ended)
            if reason
            else _decide_by_contents(run, conditions, look_into(run), now=now)
        )
    return _keep_what_was_resumed(decisions)


def describe_distance(seconds: float) -> str:
    """Return how long ago something was: ``5 h ago``, ``3 d ago``, or that it is ahead of the clock."""
    unit, length = next((each for each in _UNITS if abs(seconds) >= each[1]), ("s", 1))
    return f"{int(abs(seconds) // length)} {unit} {'ahead of the clock here' if seconds <= -1 else 'ago'}"


def _reasons_to_keep(
    run: RunSummary,
    conditions: Conditions,
    *,
    latest: str | None,
    newest: str | None,
    last: Collection[str],
    now: float,
) -> Iterator[str]:
    """Yield why a run is kept, from what is known without a look into its directory."""
    if run.id == latest:
        yield "`latest` shows it"
    if run.status == PRUNED:
        return
    if run.id == newest:
        # A publisher that was killed has left `latest` behind, or it is the user's; the next one looks for this run.
        yield "it started last"
    if run.status == _RUNNING:
        yield f"sign of life: {run.evidence}"
    if run.id in last:
        yield f"one of the last {conditions.keep_last}"
    if conditions.only_failed and run.status != _FAILED:
        yield f"{run.status}, not failed"
    if run.ended is not None and now - run.ended < QUIET_TIME:
        yield f"it ended {describe_distance(now - run.ended)}, which is less than a day"
    # Nobody writes in a run before it starts.
    known = run.started if run.ended is None else run.ended
    if conditions.older_than is not None and now - known < conditions.older_than:
        yield "not old enough"


def _decide_by_contents(run: RunSummary, conditions: Conditions, contents: Contents, *, now: float) -> Decision:
    quiet_since = max(contents.last_write, run.ended or 0.0)
    reason = contents.obstacle
    if reason is None and now - contents.last_write < QUIET_TIME:
        distance = describe_distance(now - contents.last_write)
        is_ahead = contents.last_write > now + 1
        reason = f"last write {distance}" + ("" if is_ahead else ", which is less than a day")
    is_finishing = run.status == PRUNED
    if reason is None and not is_finishing and conditions.older_than and now - quiet_since < conditions.older_than:
        reason = "not old enough"
    if reason is not None:
        return Decision(run, is_taken=False, reason=reason, contents=contents, quiet_since=quiet_since)
    words = "an earlier prune was interrupted" if is_finishing else _words_for(conditions)
    if contents.has_checkpoints:
        words += "; its checkpoints go too"
    if contents.is_adopted and contents.freed < contents.size:
        words += "; adopted: what old names still lead to frees no space"
    return Decision(run, is_taken=True, reason=words, contents=contents, quiet_since=quiet_since)


def _words_for(conditions: Conditions) -> str:
    words = []
    if conditions.only_failed:
        words.append("failed")
    if conditions.older_than is not None:
        words.append("old enough")
    if conditions.keep_last is not None:
        words.append(f"not one of the last {conditions.keep_last}")
    return ", ".join(words)


def _keep_what_was_resumed(decisions: list[Decision]) -> list[Decision]:
    """Keep a run with checkpoints as long as a run that was resumed from it stays; from the end of chains on."""
    position = {decision.run.id: index for index, decision in enumerate(decisions)}
    decided = list(decisions)
    stay = [decision for decision in decisions if not decision.is_taken and not decision.is_unfinished]
    while stay:
        child = stay.pop()
        index = position.get(child.run.resumed_from or "")
        if index is None:
            continue
        parent = decided[index]
        contents = parent.contents
        if parent.is_taken and not parent.is_unfinished and contents and contents.has_checkpoints is not False:
            lie = "lie in it" if contents.has_checkpoints else "may lie in it"
            reason = f"run {child.run.id} was resumed from it, and its checkpoints {lie}"
            decided[index] = replace(parent, is_taken=False, reason=reason)
            stay.append(decided[index])
    return decided
