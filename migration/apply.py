"""Carry out a plan: add names, never take one away.

Who may call: one migration an experiment at a time; trainings may run and start meanwhile.

1. A batch of steps is written to the journal, durably.
2. The steps are done: run directories, hard links, then ``run.json`` and ``finished.json`` (made under a private name
   and moved in complete), then the manifest lines, the links in ``tensorboard/`` and, if there is none, ``latest``.

After a crash at any point: names that the journal knows, and no ``run.json`` that is cut. The next `apply` plans anew,
finds what is there and does the rest; `undo` removes what is there.
Not promised: that a launch which starts during `apply` is adopted. Files that it moves are looked for once more.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from immutable_logs import durable_files
from immutable_logs.layout import ExperimentLayout
from migration.adopted_files import COPY
from migration.journal import DIRECTORY, FILES, Journal
from migration.legacy_search import look_again
from migration.linking import linker_for
from migration.plan import ExperimentPlan
from migration.publication import publish_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from migration.legacy_layout import LegacyExperiment
    from migration.linking import Batch, Name, Outcome
    from migration.plan import PlannedRun

HARD: Final = "hard"
SYMBOLIC: Final = "symbolic"
_BATCH: Final = 10_000
"""Steps written to the journal at once: each time costs a flush to storage."""

_ROUNDS: Final = 3


@dataclass(slots=True)
class Applied:
    """What an `apply` did.

    Attributes:
        runs: Runs made.
        files: Files linked.
        symbolic: Of these, by symbolic links.
        copied: Of these, by copying.
        others: Documents, manifest lines and links written.
        moved: Files that were gone when their turn came: a launch has moved them.
    """

    runs: int = 0
    files: int = 0
    symbolic: int = 0
    copied: int = 0
    others: int = 0
    moved: list[str] = field(default_factory=list)

    @property
    def has_changed(self) -> bool:
        """Whether anything was added."""
        return bool(self.runs or self.files or self.others)


def apply_plan(experiment: LegacyExperiment, *, on_file: Callable[[], None] = lambda: None) -> Applied:
    """Add the immutable layout to an experiment.

    Args:
        experiment: What was found.
        on_file: Called for every file looked at.

    Raises:
        MigrationBusyError: If another migration is at work there.
        OSError: If the file system refuses; what was done stays, and the next call goes on.
    """
    applied = Applied()
    plan: ExperimentPlan | None = None
    journal = Journal(ExperimentLayout(experiment.path))
    if not journal.exists():
        plan = ExperimentPlan(experiment, on_file=on_file)
        if not any(planned.missing for planned in plan.files()):
            return applied
    with journal.opened() as is_new:
        for _ in range(_ROUNDS):
            # What was planned before the journal was opened holds only if no other migration came between.
            if plan is None or not is_new:
                plan = ExperimentPlan(experiment, on_file=on_file)
            applied.moved = _Application(plan, applied).run()
            if not applied.moved:
                break
            experiment = look_again(experiment)
            plan = None
    return applied


class _Application:
    """One round of `apply_plan`."""

    def __init__(self, plan: ExperimentPlan, applied: Applied) -> None:
        self._plan = plan
        self._layout = plan.layout
        self._applied = applied
        self._moved: list[str] = []

    def run(self) -> list[str]:
        self._link_files()
        self._applied.others += publish_runs(self._plan)
        return self._moved

    def _link_files(self) -> None:
        batch: Batch = {}
        size = 0
        new_runs: dict[PlannedRun, None] = {}
        root, runs = str(self._layout.path), str(self._layout.runs)
        with linker_for(self._plan.experiment.files, root, runs, self._note) as linker:
            for evidence, _, _, planned_runs, names, missing, _ in self._plan.files():
                if not missing:
                    continue
                for run, name in zip(planned_runs, names, strict=True):
                    if run not in missing:
                        continue
                    key = (run.id, evidence.source)
                    group = batch.get(key)
                    if group is None:
                        group = batch[key] = []
                        if not run.exists:
                            new_runs[run] = None
                    group.append((evidence.name, name, evidence.device, evidence.inode))
                    size += 1
                if size >= _BATCH:
                    self._begin(batch, new_runs)
                    linker.make(batch)
                    batch, size, new_runs = {}, 0, {}
            self._begin(batch, new_runs)
            linker.make(batch)
            linker.finish()

    def _begin(self, batch: Batch, new_runs: Iterable[PlannedRun]) -> None:
        """Write a batch to the journal, and make the run directories for it."""
        steps = [{"step": DIRECTORY, "run": run.id, "path": self._relative(self._run_path(run))} for run in new_runs]
        self._plan.journal.record([*steps, *_file_steps(batch, HARD)])
        for run in new_runs:
            durable_files.create_directory(self._run_path(run), like=self._layout.path)
            run.exists = True
            self._applied.runs += 1

    def _note(self, outcome: Outcome) -> None:
        """Take note of what became of a batch."""
        self._applied.files += outcome.made
        self._moved += outcome.moved
        if outcome.error is not None:
            raise outcome.error
        if outcome.refused:
            self._link_otherwise(outcome.refused)

    def _link_otherwise(self, batch: Batch) -> None:
        """Link symbolically what cannot be linked hard, and copy what cannot be linked at all."""
        self._plan.journal.record(_file_steps(batch, SYMBOLIC))
        refused = []
        for run, source, name in _each(batch):
            old, new = self._layout.path / source / name[0], self._layout.run(run).path / name[1]
            try:
                durable_files.create_link(os.path.relpath(old, new.parent), new)
            except OSError as error:
                if not durable_files.is_without_links(error):
                    raise
                refused.append((run, source, name))
            else:
                self._applied.files += 1
                self._applied.symbolic += 1
        for start in range(0, len(refused), _BATCH):
            self._copy(refused[start : start + _BATCH])

    def _copy(self, files: Iterable[tuple[str, str, Name]]) -> None:
        steps = []
        ready = []
        for run, source, (name, new_name, _, inode) in files:
            old, new = self._layout.path / source / name, self._layout.run(run).path / new_name
            try:
                status = os.lstat(old)
            except FileNotFoundError:
                self._moved.append(os.path.join(source, name))
                continue
            names = [name, new_name, inode, status.st_size, status.st_mtime]
            steps.append({"step": FILES, "how": COPY, "run": run, "source": source, "names": [names]})
            ready.append((old, new))
        self._plan.journal.record(steps)
        private = self._plan.journal.unfinished_copy
        for old, new in ready:
            try:
                shutil.copy2(old, private)
            except FileNotFoundError:
                self._moved.append(os.path.relpath(old, self._layout.path))
                continue
            durable_files.replace(private, new)
            self._applied.files += 1
            self._applied.copied += 1

    def _run_path(self, run: PlannedRun) -> Path:
        return self._layout.run(run.id).path

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._layout.path))


def _each(batch: Batch) -> Iterator[tuple[str, str, Name]]:
    for (run, source), names in batch.items():
        for name in names:
            yield run, source, name


def _file_steps(batch: Batch, how: str) -> list[dict[str, Any]]:
    """Return the journal's steps for a batch: one for each run and old directory."""
    return [
        {
            "step": FILES,
            "how": how,
            "run": run,
            "source": source,
            "names": [old if old == new else (old, new) for old, new, _, _ in names],
        }
        for (run, source), names in batch.items()
    ]
