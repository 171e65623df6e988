"""Where an experiment may be that was looked for in the wrong directory."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from immutable_logs.layout import ExperimentLayout
from immutable_logs.run_id import is_run_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LEVELS_BELOW: Final = 2
_LEVELS_ABOVE: Final = 4
_MAX_LOOKED_AT: Final = 2000
"""Directories: a home directory on a busy file server must not hold up an error message."""
_MAX_NAMED: Final = 10


def describe_nearby(path: Path) -> list[str]:
    """Return the lines to add to "this is no experiment": those above and below, if any."""
    path = ExperimentLayout.of(path).path
    above = [parent for parent in path.parents[:_LEVELS_ABOVE] if is_experiment(parent)]
    if above:
        return [f"It lies inside an experiment: {above[0]}"]
    below = list(_experiments_below(path))
    lines = [f"  {each}" for each in sorted(below)[:_MAX_NAMED]]
    if len(below) > _MAX_NAMED:
        lines.append("  ...")
    return ["Experiments below it:", *lines] if lines else []


def is_experiment(path: Path) -> bool:
    """Tell whether a directory holds runs of this layout; a directory `runs` alone can be TensorBoard's."""
    layout = ExperimentLayout.of(path)
    with suppress(OSError), os.scandir(layout.runs) as entries:
        return any(entry.name == layout.manifest.name or is_run_id(entry.name) for entry in entries)
    return False


def _experiments_below(path: Path) -> Iterator[Path]:
    """Yield the experiments one and two levels below a directory, as far as `_MAX_LOOKED_AT` directories tell."""
    level = [path]
    looked_at = 0
    for _ in range(_LEVELS_BELOW):
        below: list[Path] = []
        for directory in level:
            for child in _subdirectories(directory):
                looked_at += 1
                if looked_at > _MAX_LOOKED_AT:
                    return
                if is_experiment(child):
                    yield child
                else:
                    below.append(child)
        level = below


def _subdirectories(path: Path) -> list[Path]:
    with suppress(OSError), os.scandir(path) as entries:
        return sorted(
            path / entry.name
            for entry in entries
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        )
    return []
