"""Remove old names whose files are safe in their runs; the only command of the migration that removes what it finds.

1. Refuse, if `verify` finds anything, a run is live, a file was written a moment ago, or a process of this host has
   one open.
2. Write to the journal which directories may be empty in the end.
3. Write a batch of names to the journal, look once more that each has a second name, and remove it.
4. Remove the directories that are empty now.

After a crash at any point: the next `finalize` goes on by the journal, since a directory whose logs are gone is no
longer known for one of NeMo's.
Never removed: checkpoints; what NeMo did not make, unless NeMo moved it into an archive; a name whose twin is only a
link to it or a copy of it; anything in a directory that is left alone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from immutable_logs.catalog import RUNNING, SIGN_OF_LIFE_AGE, Experiment, format_seconds
from immutable_logs.errors import NotAnExperimentError
from migration.attribution import SURVEYED
from migration.file_kinds import Kind
from migration.journal import EMPTY, REMOVE
from migration.legacy_layout import Place
from migration.open_files import find_open_files
from migration.plan import ExperimentPlan
from migration.verify import verify_migration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from migration.legacy_layout import LegacyExperiment
    from migration.open_files import OpenFiles
    from migration.plan import PlannedFile

_BATCH: Final = 2000
_MAX_REASONS: Final = 100


@dataclass(slots=True)
class Finalization:
    """What `finalize` would remove, or has removed.

    Attributes:
        names: How many old names.
        directories: Old directories that are, or would be, empty then.
        kept: Adopted names that stay, since their twin is a link or a copy, or they are not NeMo's.
        objections: Why nothing is removed.
        notes: What could not be looked at.
    """

    names: int = 0
    directories: list[str] = field(default_factory=list)
    kept: int = 0
    objections: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plan_finalization(
    experiment: LegacyExperiment, *, now: float, on_file: Callable[[], None] = lambda: None
) -> Finalization:
    """Say what would be removed, and what speaks against it; changes nothing.

    Args:
        experiment: What was found.
        now: Unix time.
        on_file: Called for every file looked at.

    Raises:
        OSError: If something cannot be read.
    """
    found = Finalization()
    found.objections += verify_migration(experiment, on_file=on_file).problems
    plan = ExperimentPlan(experiment, on_file=on_file)
    with suppress(NotAnExperimentError):
        for run in Experiment(experiment.path, now=lambda: now).runs():
            if run.status == RUNNING:
                found.objections.append(f"run {run.id} is live: {run.evidence}")
    open_files = find_open_files()
    if not open_files.can_look:
        found.notes.append("there is no /proc here, so it cannot be known which files are open")
    elif open_files.hidden:
        found.notes.append(f"{open_files.hidden} processes of other users cannot be looked into for open files")
    for name in _removable(plan, found):
        found.names += 1
        if len(found.objections) < _MAX_REASONS:
            found.objections += _objections(name, open_files, now)
    found.directories = _old_directories(plan)
    return found


def finalize_migration(
    experiment: LegacyExperiment, *, now: float, on_file: Callable[[], None] = lambda: None
) -> Finalization:
    """Remove old names, unless anything speaks against it.

    Args:
        experiment: What was found.
        now: Unix time.
        on_file: Called for every file looked at.

    Raises:
        MigrationBusyError: If another migration is at work there.
        OSError: If the file system refuses; the next call goes on.
    """
    planned = plan_finalization(experiment, now=now, on_file=on_file)  # 1
    if planned.objections or not (planned.names or planned.directories):
        return planned
    plan = ExperimentPlan(experiment, on_file=on_file)
    planned.names = planned.kept = 0
    with plan.journal.held():
        directories = _old_directories(plan)
        plan.journal.record([{"step": EMPTY, "paths": directories}])  # 2
        batch: list[_OldName] = []
        for name in _removable(plan, planned):
            batch.append(name)
            if len(batch) >= _BATCH:
                planned.names += _remove(plan, batch)
                batch = []
        planned.names += _remove(plan, batch)
        planned.directories = []
        for path in directories:  # 4
            with suppress(OSError):
                (plan.layout.path / path).rmdir()
                planned.directories.append(path)
    return planned


class _OldName(NamedTuple):
    """A name that can be removed."""

    source: str
    name: str
    device: int
    inode: int
    mtime: float

    @property
    def path(self) -> str:
        """The path, relative to the experiment."""
        return f"{self.source}/{self.name}" if self.source else self.name


def _removable(plan: ExperimentPlan, found: Finalization) -> Iterator[_OldName]:
    """Yield the names that can be removed, also those that a stopped `finalize` has left; count those that stay."""
    for planned in plan.files():
        file = planned.evidence
        if planned.runs and _is_removable(planned):
            yield _OldName(file.source, file.name, file.device, file.inode, file.mtime)
        elif planned.runs:
            found.kept += 1
    planned_sources = {source.path for log in plan.experiment.log_directories for source in log.sources}
    for step in plan.journal.read():
        if step["step"] != REMOVE or step["source"] in planned_sources:
            continue
        for name, inode in step["names"]:
            with suppress(OSError):
                status = os.lstat(plan.layout.path / step["source"] / name)
                if status.st_ino == inode and plan.adopted.has_inode(inode):
                    yield _OldName(step["source"], name, status.st_dev, inode, status.st_mtime)


def _remove(plan: ExperimentPlan, batch: list[_OldName]) -> int:
    by_source: dict[str, list[tuple[str, int]]] = {}
    for old in batch:
        by_source.setdefault(old.source, []).append((old.name, old.inode))
    plan.journal.record(  # 3
        {"step": REMOVE, "source": source, "names": names} for source, names in by_source.items()
    )
    removed = 0
    for old in batch:
        path = plan.layout.path / old.path
        with suppress(FileNotFoundError):
            status = os.lstat(path)
            if (status.st_dev, status.st_ino) == (old.device, old.inode) and status.st_nlink > 1:
                path.unlink()
                removed += 1
    return removed


def _is_removable(planned: PlannedFile) -> bool:
    if planned.missing or not planned.is_shared:
        return False
    kind = planned.evidence.kind
    return kind is not Kind.CHECKPOINT and (planned.place is not Place.TOP or kind in SURVEYED)


def _objections(old: _OldName, open_files: OpenFiles, now: float) -> Iterator[str]:
    holder = open_files.holders.get((old.device, old.inode))
    if holder is not None:
        yield f"process {holder[0]} ({holder[1]}) has it open: {old.path}"
    age = now - old.mtime
    if age <= SIGN_OF_LIFE_AGE:
        yield f"written {format_seconds(age)} ago, perhaps by a training on another host: {old.path}"


def _old_directories(plan: ExperimentPlan) -> list[str]:
    """Return the archives and event directories, also those that a stopped `finalize` has emptied."""
    sources = [source for log in plan.experiment.log_directories for source in log.sources]
    paths = dict.fromkeys(source.path for source in sources if source.place is not Place.TOP)
    for step in plan.journal.read():
        if step["step"] == EMPTY:
            paths.update(dict.fromkeys(path for path in step["paths"] if (plan.layout.path / path).is_dir()))
    return list(paths)
