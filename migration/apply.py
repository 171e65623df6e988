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
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from immutable_logs import durable_files
from immutable_logs.errors import RecordError
from immutable_logs.latest_link import switch_latest
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import append_record, manifest_lock, read_manifest
from immutable_logs.records import ADOPTED, STARTED, RunRecord
from migration.adopted_files import COPY
from migration.adopted_records import adopted_finish_record, adopted_manifest_record, adopted_run_record
from migration.journal import DIRECTORY, DOCUMENT, FILES, LINE, LINK, Journal
from migration.legacy_layout import Kind, classify, look_again
from migration.plan import ExperimentPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from migration.evidence import FileEvidence
    from migration.legacy_layout import LegacyExperiment
    from migration.plan import PlannedRun

HARD: Final = "hard"
SYMBOLIC: Final = "symbolic"
_BATCH: Final = 2000
_ROUNDS: Final = 3
_ORDINAL: Final = re.compile(r"([0-9]+)_")


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


@dataclass(frozen=True, slots=True)
class _Link:
    """One name to be given in a run directory."""

    run: PlannedRun
    file: FileEvidence
    name: str


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
    journal = Journal(ExperimentLayout(experiment.path))
    if not journal.exists() and not any(planned.missing for planned in ExperimentPlan(experiment).files()):
        return applied
    with journal.opened():
        for _ in range(_ROUNDS):
            plan = ExperimentPlan(experiment, on_file=on_file)
            applied.moved = _Application(plan, applied).run()
            if not applied.moved:
                break
            experiment = look_again(experiment)
    return applied


class _RunTexts(dict[str, str]):
    """The paths of run directories as texts, by run id."""

    def __init__(self, layout: ExperimentLayout) -> None:
        super().__init__()
        self._layout = layout

    def __missing__(self, run_id: str) -> str:
        path = self[run_id] = str(self._layout.run(run_id).path)
        return path


class _Application:
    """One round of `apply_plan`."""

    def __init__(self, plan: ExperimentPlan, applied: Applied) -> None:
        self._plan = plan
        self._layout = plan.layout
        # Texts: building a `Path` takes longer than the system call, a million times.
        self._root = str(plan.layout.path)
        self._run_texts = _RunTexts(plan.layout)
        self._applied = applied
        self._waiting: list[_Link] = []
        self._moved: list[str] = []

    def run(self) -> list[str]:
        for planned in self._plan.files():
            for run, name in zip(planned.runs, planned.names, strict=True):
                if run in planned.missing:
                    self._waiting.append(_Link(run, planned.evidence, name))
            if len(self._waiting) >= _BATCH:
                self._link_waiting()
        self._link_waiting()
        runs = [run for run in sorted(self._plan.runs, key=lambda run: (run.launch.start, run.id)) if _is_made(run)]
        self._write_documents(runs)
        self._append_lines(runs)
        self._link_events(runs)
        self._make_latest(runs)
        return self._moved

    def _link_waiting(self) -> None:
        links, self._waiting = self._waiting, []
        if not links:
            return
        new_runs = list(dict.fromkeys(link.run for link in links if not link.run.exists))
        steps = [{"step": DIRECTORY, "run": run.id, "path": self._relative(self._run_path(run))} for run in new_runs]
        self._plan.journal.record([*steps, *_file_steps(links, HARD)])
        for run in new_runs:
            durable_files.create_directory(self._run_path(run), like=self._layout.path)
            run.exists = True
            self._applied.runs += 1
        refused = []
        for link in links:
            try:
                if durable_files.create_hard_link(self._old(link), self._new(link)):
                    self._check(link)
                    self._applied.files += 1
            except FileNotFoundError:
                self._moved.append(link.file.path)
            except OSError as error:
                if not durable_files.is_without_hard_links(error):
                    raise
                refused.append(link)
        self._link_otherwise(refused)

    def _check(self, link: _Link) -> None:
        """Take the name away again if a launch has just put another file in the place of the one that was planned."""
        status = os.lstat(self._new(link))
        if (status.st_dev, status.st_ino) != (link.file.device, link.file.inode):
            os.unlink(self._new(link))
            self._moved.append(link.file.path)

    def _link_otherwise(self, links: list[_Link]) -> None:
        """Link symbolically what cannot be linked hard, and copy what cannot be linked at all."""
        if not links:
            return
        self._plan.journal.record(_file_steps(links, SYMBOLIC))
        refused = []
        for link in links:
            new = self._new(link)
            try:
                durable_files.create_link(os.path.relpath(self._old(link), os.path.dirname(new)), Path(new))
            except OSError as error:
                if not durable_files.is_without_links(error):
                    raise
                refused.append(link)
            else:
                self._applied.files += 1
                self._applied.symbolic += 1
        if not refused:
            return
        self._plan.journal.record(_file_steps(refused, COPY))
        for link in refused:
            private = self._plan.journal.unfinished_copy
            try:
                shutil.copy2(self._old(link), private)
            except FileNotFoundError:
                self._moved.append(link.file.path)
                continue
            durable_files.replace(private, Path(self._new(link)))
            self._applied.files += 1
            self._applied.copied += 1

    def _write_documents(self, runs: Iterable[PlannedRun]) -> None:
        waiting: list[tuple[Path, bytes]] = []
        for run in runs:
            layout = self._layout.run(run.id)
            if not _is_complete(layout.run_record):
                waiting.append((layout.run_record, adopted_run_record(run).encode()))
                end = adopted_finish_record(run)
                if end is not None:
                    waiting.insert(-1, (layout.finish_record, end.encode()))
        for start in range(0, len(waiting), _BATCH):
            batch = waiting[start : start + _BATCH]
            self._plan.journal.record({"step": DOCUMENT, "path": self._relative(path)} for path, _ in batch)
            for path, data in batch:
                private = self._plan.journal.unfinished_document
                with suppress(FileNotFoundError):
                    private.unlink()
                durable_files.create_exclusive(private, data)
                durable_files.replace(private, path)
                self._applied.others += 1

    def _append_lines(self, runs: Iterable[PlannedRun]) -> None:
        self._complete_torn_line()
        known = {record.run for record in read_manifest(self._layout).records if record.event == ADOPTED}
        new = [adopted_manifest_record(run) for run in runs if run.id not in known]
        if not new:
            return
        existed = self._layout.manifest.exists()
        before = {"makes_manifest": not existed, "size": self._layout.manifest.stat().st_size if existed else 0}
        self._plan.journal.record(
            {"step": LINE, "run": record.run, "line": record.encode().decode("ascii"), **before} for record in new
        )
        with manifest_lock(self._layout) as is_locked:
            for record in new:
                append_record(self._layout, record, is_locked=is_locked)
                self._applied.others += 1

    def _complete_torn_line(self) -> None:
        """End the manifest's last line, if a kill has cut it and it is one that the journal knows."""
        try:
            end = durable_files.read_bytes(self._layout.manifest).rpartition(b"\n")[2]
        except FileNotFoundError:
            return
        intended = (step["line"].encode("ascii") for step in self._plan.journal.read() if step["step"] == LINE)
        rest = next((line[len(end) :] for line in intended if end and line.startswith(end)), b"")
        if rest:
            with manifest_lock(self._layout) as is_locked:
                if is_locked and durable_files.read_bytes(self._layout.manifest).rpartition(b"\n")[2] == end:
                    durable_files.extend(self._layout.manifest, rest)

    def _link_events(self, runs: Iterable[PlannedRun]) -> None:
        """Link the event files of a lineage into its directory, in the order of its runs."""
        if self._layout.tensorboard.exists() and not self._layout.tensorboard.is_dir():
            return
        waiting: list[tuple[str, Path]] = []
        directories: dict[Path, tuple[set[str], int]] = {}
        for run in runs:
            names = sorted(name for name in os.listdir(self._run_path(run)) if classify(name) is Kind.EVENTS)
            directory = self._layout.lineage(run.lineage)
            if not names:
                continue
            present, ordinal = directories.get(directory) or _event_links(directory)
            for name in names:
                text = os.path.relpath(self._run_path(run) / name, directory)
                if text in present:
                    continue
                ordinal += 1
                present.add(text)
                waiting.append((text, directory / f"{ordinal:04d}_{name}"))
            directories[directory] = (present, ordinal)
        if not waiting:
            return
        made = dict.fromkeys(path.parent for _, path in waiting if not path.parent.is_dir())
        if made and not self._layout.tensorboard.is_dir():
            made = {self._layout.tensorboard: None, **made}
        self._plan.journal.record(
            [
                *({"step": DIRECTORY, "path": self._relative(path)} for path in made),
                *({"step": LINK, "path": self._relative(path), "text": text} for text, path in waiting),
            ]
        )
        for text, path in waiting:
            durable_files.create_directory(path.parent, like=self._layout.path)
            with suppress(OSError):
                durable_files.create_link(text, path)
                self._applied.others += 1

    def _make_latest(self, runs: list[PlannedRun]) -> None:
        """Let ``latest`` show the last run, if there is nothing of that name and no run of the immutable layout."""
        if os.path.lexists(self._layout.latest) or self._layout.latest_text.exists():
            return
        if any(record.event == STARTED for record in read_manifest(self._layout).records):
            return
        last = next((run for run in reversed(runs) if not run.launch.is_uncertain), None)
        if last is None:
            return
        target = self._layout.latest_target(last.id)
        workshop = self._relative(self._layout.latest_workshop)
        self._plan.journal.record(
            [
                {"step": LINK, "path": self._relative(self._layout.latest), "text": target},
                # What stands for the link on a mount without links.
                {"step": DIRECTORY, "path": workshop},
                {"step": LINK, "path": self._relative(self._layout.latest_text), "text": last.id},
            ]
        )
        switch_latest(self._layout, last.id, unique=f"migration-{os.getpid()}")
        self._applied.others += 1

    def _run_path(self, run: PlannedRun) -> Path:
        return self._layout.run(run.id).path

    def _old(self, link: _Link) -> str:
        return os.path.join(self._root, link.file.path)

    def _new(self, link: _Link) -> str:
        return os.path.join(self._run_texts[link.run.id], link.name)

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._layout.path))


def _is_made(run: PlannedRun) -> bool:
    return run.exists and run.files > 0 and not run.is_pruned


def _is_complete(path: Path) -> bool:
    try:
        RunRecord.decode(durable_files.read_bytes(path), path)
    except (FileNotFoundError, RecordError):
        return False
    return True


def _event_links(directory: Path) -> tuple[set[str], int]:
    """Return where the links of a lineage lead, and the highest ordinal."""
    texts = set()
    ordinal = 0
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            match = _ORDINAL.match(entry.name)
            ordinal = max(ordinal, int(match.group(1)) if match else 0)
            with suppress(OSError):
                texts.add(os.readlink(entry.path))
    return texts, ordinal


def _file_steps(links: Iterable[_Link], how: str) -> list[dict[str, Any]]:
    steps: dict[tuple[str, str], dict[str, Any]] = {}
    for link in links:
        key = (link.run.id, link.file.source)
        step = steps.setdefault(
            key, {"step": FILES, "how": how, "run": link.run.id, "source": link.file.source, "names": []}
        )
        names = [link.file.name, link.name]
        step["names"].append(names if how != COPY else [*names, link.file.inode, link.file.size, link.file.mtime])
    return list(steps.values())
