"""Where else in an experiment a run has left its name: the files beside claims, the links to its event files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from immutable_logs import durable_files
from immutable_logs.run_id import is_run_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from immutable_logs.layout import ExperimentLayout


class RunTraces:
    """The names that lead to runs, found by one search, at the first question.

    Nothing is looked up by what a record says: the launch key in there is redacted, and anyone in a shared directory
    can have written the lineage.
    """

    def __init__(self, layout: ExperimentLayout) -> None:
        """Search nothing yet."""
        self._layout = layout
        self._claimed: dict[str, list[Path]] | None = None
        self._linked: dict[str, list[Path]] | None = None

    def claimed_files(self, run_id: str) -> list[Path]:
        """Return the files of a run beside claims; one as a rule, none for an adopted run.

        Raises:
            OSError: If a claim cannot be looked at: to know only some is not enough.
        """
        if self._claimed is None:
            self._claimed = self._search(self._layout.launches, _name_of_claimed_run)
        return self._claimed.get(run_id, [])

    def event_links(self, run_id: str) -> list[Path]:
        """Return the links in ``tensorboard/`` that lead into a run; errors as for `claimed_files`."""
        if self._linked is None:
            self._linked = self._search(self._layout.tensorboard, self._run_behind)
        return self._linked.get(run_id, [])

    @staticmethod
    def _search(root: Path, name_run: Callable[[os.DirEntry[str]], str | None]) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for directory in _directories(root):
            for entry in _entries(directory):
                run = name_run(entry)
                if run is not None:
                    found.setdefault(run, []).append(Path(entry.path))
        return found

    def _run_behind(self, entry: os.DirEntry[str]) -> str | None:
        """Return the run into which a link leads by its text; one that is absolute is not ours."""
        if not entry.is_symlink():
            return None
        runs = f"{self._layout.runs}{os.sep}"
        with suppress(FileNotFoundError):
            text = durable_files.read_link(Path(entry.path))
            target = os.path.normpath(os.path.join(os.path.dirname(entry.path), text))
            name = target[len(runs) :].partition(os.sep)[0]
            if not os.path.isabs(text) and target.startswith(runs) and is_run_id(name):
                return name
        return None


def _name_of_claimed_run(entry: os.DirEntry[str]) -> str | None:
    return entry.name if is_run_id(entry.name) and entry.is_file(follow_symlinks=False) else None


def _directories(path: Path) -> Iterator[str]:
    """Yield the directories in one; links to directories are left out, and so is everything if it is a link itself."""
    if not path.is_symlink():
        for entry in _entries(path):
            if entry.is_dir(follow_symlinks=False):
                yield entry.path


def _entries(path: os.PathLike[str] | str) -> list[os.DirEntry[str]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        return list(entries)
    return []
