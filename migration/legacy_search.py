"""Find the experiments below a path, wherever stock NeMo has left log directories; read-only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from immutable_logs.layout import CHECKPOINTS, RUNS, ExperimentLayout
from immutable_logs.run_id import is_run_id
from migration.journal import has_journal
from migration.legacy_layout import (
    experiment_in,
    glance_at,
    has_archives,
    has_signs,
    holds_events,
    is_archive,
    is_archive_name,
    is_numbered,
    is_version,
    single_version,
    try_glance,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from migration.legacy_layout import LegacyExperiment

_NOT_SEARCHED: Final = frozenset({CHECKPOINTS, "wandb", "mlruns", "__pycache__", "node_modules"})


def find_experiments(paths: Iterable[os.PathLike[str] | str], problems: list[str]) -> Iterator[LegacyExperiment]:
    """Yield every experiment at and below some paths, each once, without following links below them.

    Args:
        paths: Where to look; may be links to directories.
        problems: Receives a sentence for everything that could not be looked at.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        root = ExperimentLayout.of(path).path
        if is_archive_name(root.name) and try_glance(root.parent, []) is not None:
            parent = try_glance(root.parent, [])
            if parent is not None and parent.has_signs:
                problems.append(f"an archive is migrated with its log directory; name {root.parent} instead of {root}")
                continue
        yield from _search(root, seen, problems, is_named=True)


def look_again(experiment: LegacyExperiment) -> LegacyExperiment:
    """Return what there is now in an experiment: a launch may have made an archive meanwhile."""
    return next(
        (each for each in _search(experiment.path, set(), [], is_named=False) if each.path == experiment.path),
        experiment,
    )


def _search(
    root: Path, seen: set[tuple[int, int]], problems: list[str], *, is_named: bool
) -> Iterator[LegacyExperiment]:
    waiting = [(root, is_named)]
    while waiting:
        directory, is_root = waiting.pop()
        try:
            status = os.stat(directory)
            glance = glance_at(directory)
        except OSError as error:
            problems.append(f"cannot look into a directory ({error.strerror}): {directory}")
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        children = {name: try_glance(directory / name, problems) for name in glance.directories if is_numbered(name)}
        archives = [name for name, child in children.items() if child is not None and is_archive(name, child)]
        is_log = glance.has_signs or any(has_signs(children[name]) for name in archives)
        if is_root and is_log and is_version(directory.name) and not archives:
            yield single_version(directory, glance, children)
            continue
        versions = [
            name
            for name, child in children.items()
            if child is not None and is_version(name) and child.has_signs and not has_archives(directory / name)
        ]
        if is_log or versions or has_journal(directory, glance.directories):
            yield experiment_in(directory, glance, children, archives if is_log else None, versions)
        taken = set(versions)
        if is_log:
            taken |= {name for name in glance.directories if name.startswith("run_")}
            taken |= {name for name, child in children.items() if child is not None and holds_events(name, child)}
        ours = {RUNS, "tensorboard", "requeue"} if is_log or versions or RUNS in glance.directories else set()
        waiting.extend(
            (directory / name, False)
            for name in sorted(glance.directories, reverse=True)
            if name not in taken
            and name not in ours
            and name not in _NOT_SEARCHED
            and not name.startswith(".")
            and not is_run_id(name)
        )
