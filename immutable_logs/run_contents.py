"""What lies in a run directory: how large it is, who wrote in it last, whether it can go; read-only."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from immutable_logs.process import Process, is_alive, this_process
from immutable_logs.rank_entries import read_rank_entries
from immutable_logs.records import ADOPTED, PRUNED
from immutable_logs.retention import Contents
from immutable_logs.run_id import is_run_id
from immutable_logs.tree_removal import Tree, measure_tree

if TYPE_CHECKING:
    from immutable_logs.catalog import Experiment, RunSummary
    from immutable_logs.layout import ExperimentLayout, RunLayout
    from immutable_logs.records import RunRecord


_PUT_BACK: Final = "put back, or written in, after it was pruned: remove it by hand if nobody needs it"


@dataclass(frozen=True, slots=True)
class Look:
    """One look into a run directory.

    Attributes:
        contents: What retention needs to know.
        tree: What its removal needs to know; None if it could not be looked into.
        apart: The names in it that are not the training's.
    """

    contents: Contents
    tree: Tree | None = None
    apart: frozenset[str] = frozenset()


def look_into(experiment: Experiment, run: RunSummary, *, pruned_at: float | None = None) -> Look:
    """Look into a run directory, at every name in it.

    Args:
        experiment: The experiment.
        run: The run.
        pruned_at: Unix time of its ``pruned`` line, if it has one. What is newer was put back from a copy, or is that
            of a late rank: it is not what an interrupted ``prune`` has left.
    """
    layout = experiment.layout.run(run.id)
    record = experiment.describe(run).run_record
    is_adopted = run.status == ADOPTED or (record is not None and record.adopted_from is not None)
    apart = frozenset((layout.run_record.name, layout.finish_record.name)) if is_adopted else frozenset[str]()
    try:
        tree = measure_tree(layout.path, apart=apart)
    except OSError as error:
        # Not FileNotFoundError alone: a directory that this user may not read is not removed unseen.
        return Look(Contents(obstacle=f"it cannot be looked into: {error.strerror}", is_adopted=is_adopted))
    # A migration has made the directory, and an earlier `prune` has changed it: only the files tell of a training.
    last_write = tree.newest_file if is_adopted or run.status == PRUNED else tree.newest
    contents = Contents(
        size=tree.size,
        freed=tree.freed,
        last_write=last_write,
        has_checkpoints=_has_checkpoints(experiment.layout, layout, record),
        is_adopted=is_adopted,
        obstacle=tree.obstacle,
    )
    if contents.obstacle is None and pruned_at is not None and tree.newest_status > pruned_at:
        contents = replace(contents, obstacle=_PUT_BACK)
    if contents.obstacle is None and run.ended is None and not is_adopted:
        contents = replace(contents, obstacle=_living_rank(layout))
    return Look(contents, tree, apart)


def directories_of_runs(layout: ExperimentLayout) -> frozenset[str]:
    """Return the run ids that have a directory; a link is none."""
    with os.scandir(layout.runs) as entries:
        return frozenset(
            entry.name for entry in entries if is_run_id(entry.name) and entry.is_dir(follow_symlinks=False)
        )


def _living_rank(run: RunLayout) -> str | None:
    """Return what tells that a rank of a run lives, as far as that can be seen from this host."""
    observer = this_process()
    for rank in read_rank_entries(run):
        process = Process(rank.host, rank.pid, rank.boot_id, rank.pid_namespace, rank.start_ticks)
        if is_alive(process, observer):
            return f"sign of life: process {rank.pid} of rank {rank.global_rank} on this host is alive"
    return None


def _has_checkpoints(experiment: ExperimentLayout, run: RunLayout, record: RunRecord | None) -> bool | None:
    """Tell whether checkpoints of a run lie in its directory; None where nothing tells where they are."""
    if _holds_something(run.checkpoints):
        return True
    if record is None or record.checkpoints is None:
        return None
    home = os.path.realpath(experiment.path / record.checkpoints)
    inside = os.path.realpath(run.path)
    return os.path.commonpath((home, inside)) == inside and _holds_something(home)


def _holds_something(directory: os.PathLike[str] | str) -> bool:
    with suppress(OSError), os.scandir(directory) as entries:
        return any(True for _ in entries)
    return False
