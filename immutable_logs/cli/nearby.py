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

_LEVELS_SEARCHED: Final = 5
_MAX_SEARCHED: Final = 10_000
"""Directories below one that `ls` was given by name: there a search may take a while, though not for ever."""


def describe_nearby(path: Path) -> list[str]:
    """Return the lines to add to "this is no experiment": those above and below, if any."""
    path = ExperimentLayout.of(path).path
    above = [parent for parent in path.parents[:_LEVELS_ABOVE] if is_experiment(parent)]
    if above:
        return [f"It lies inside an experiment: {above[0]}"]
    below = list(_Search(_LEVELS_BELOW, _MAX_LOOKED_AT).below(path))
    lines = [f"  {each}" for each in sorted(below)[:_MAX_NAMED]]
    if len(below) > _MAX_NAMED:
        lines.append("  ...")
    return ["Experiments below it:", *lines] if lines else []


def find_experiments(path: Path) -> tuple[list[Path], bool]:
    """Return the experiments up to five levels below a directory, in alphabetical order, and whether it was all seen.

    Hidden directories, links to directories and what lies in an experiment are passed over.
    """
    path = ExperimentLayout.of(path).path
    search = _Search(_LEVELS_SEARCHED, _MAX_SEARCHED)
    found = sorted(search.below(path))
    return found, search.is_complete


def is_experiment(path: Path) -> bool:
    """Tell whether a directory holds runs of this layout; a directory `runs` alone can be TensorBoard's."""
    layout = ExperimentLayout.of(path)
    with suppress(OSError), os.scandir(layout.runs) as entries:
        return any(entry.name == layout.manifest.name or is_run_id(entry.name) for entry in entries)
    return False


class _Search:
    """A search for experiments, level by level, that ends after so many directories."""

    def __init__(self, levels: int, limit: int) -> None:
        self._levels = levels
        self._left = limit
        self.is_complete = True

    def below(self, path: Path) -> Iterator[Path]:
        """Yield the experiments below a directory; `is_complete` then tells whether the limit cut the search short."""
        level = [path]
        for _ in range(self._levels):
            below: list[Path] = []
            for directory in level:
                for child in _subdirectories(directory):
                    if self._left == 0:
                        self.is_complete = False
                        return
                    self._left -= 1
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
