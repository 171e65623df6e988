"""Draw which run continues which, beside a list of runs, as `git log --graph` does; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def draw_lineages(runs: Sequence[str], resumed_from: Mapping[str, str | None]) -> list[str]:
    """Return what stands before each run: ``o`` if it begins a lineage, ``^`` if it continues the one above it.

    A ``|`` stands for each line that goes on further below. Where a run has been continued by another before, the new
    line branches off with ``+-``. A run that is not listed is passed over: its successor joins the nearest one above
    it that is.

    Args:
        runs: The runs that are listed, in order.
        resumed_from: For every run of the experiment, the one that it continues.
    """
    listed = set(runs)
    parents = {run: _nearest_listed(run, resumed_from, listed) for run in runs}
    last_child = {parent: index for index, run in enumerate(runs) if (parent := parents[run]) is not None}
    lanes: list[str | None] = []
    """For each column, the first run of the line drawn there, while a later run still hangs on it."""
    needed_until: dict[str, int] = {}
    lane_of: dict[str, int] = {}
    tips: dict[int, str] = {}
    drawn = []
    for index, run in enumerate(runs):
        parent = parents[run]
        branch = None
        if parent is not None and parent in lane_of and tips.get(lane_of[parent]) == parent:
            lane = lane_of[parent]
        else:
            branch = lane_of.get(parent) if parent is not None else None
            first = 0 if branch is None else branch + 1
            lane = next((each for each in range(first, len(lanes)) if lanes[each] is None), max(first, len(lanes)))
            lanes.extend([None] * (lane + 1 - len(lanes)))
        start = lanes[lane] or run
        lanes[lane] = start
        lane_of[run], tips[lane] = lane, run
        needed_until[start] = max(needed_until.get(start, -1), last_child.get(run, -1))
        drawn.append(_row(lanes, lane, branch, "o" if start == run and branch is None else "^"))
        lanes = [each if each is not None and needed_until[each] > index else None for each in lanes]
        for column in [column for column in tips if column >= len(lanes) or lanes[column] is None]:
            del tips[column]
    width = max(map(len, drawn), default=0)
    return [row.ljust(width) for row in drawn]


def _row(lanes: Sequence[str | None], lane: int, branch: int | None, mark_of_run: str) -> str:
    cells = []
    for column in range(max(lane + 1, len(lanes))):
        is_between = branch is not None and branch < column < lane
        if column == lane:
            mark = mark_of_run
        elif column == branch:
            mark = "+"
        else:
            mark = "|" if column < len(lanes) and lanes[column] is not None else "-" if is_between else " "
        is_joined = branch is not None and branch <= column < lane
        cells.append(mark + ("-" if is_joined else " "))
    return "".join(cells).rstrip()


def _nearest_listed(run: str, resumed_from: Mapping[str, str | None], listed: set[str]) -> str | None:
    """Return the nearest run above this one that is listed; records that lead in a circle end nowhere."""
    seen = {run}
    above = resumed_from.get(run)
    while above is not None and above not in listed:
        if above in seen:
            return None
        seen.add(above)
        above = resumed_from.get(above)
    return None if above in seen else above
