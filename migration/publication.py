"""Publish the runs whose files a migration has linked: records, manifest lines, TensorBoard's links, ``latest``."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from immutable_logs import durable_files
from immutable_logs.errors import RecordError
from immutable_logs.latest_link import switch_latest
from immutable_logs.manifest import manifest_lock, read_manifest
from immutable_logs.records import ADOPTED, STARTED, RunRecord
from migration.adopted_records import adopted_finish_record, adopted_manifest_record, adopted_run_record
from migration.file_kinds import Kind, classify
from migration.journal import DIRECTORY, DOCUMENT, LINE, LINK

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from migration.plan import ExperimentPlan, PlannedRun

_BATCH: Final = 2000
_ORDINAL: Final = re.compile(r"([0-9]+)_")


def publish_runs(plan: ExperimentPlan) -> int:
    """Write down what is known of the runs of a plan, once their files are linked; returns how much was added.

    1. ``run.json`` and ``finished.json``, each made under a private name and moved in complete.
    2. The manifest lines.
    3. The links in ``tensorboard/``.
    4. ``latest``, if there is none.

    All of it is in the journal before; after a crash at any step, the next call adds what is missing.
    """
    runs = [run for run in sorted(plan.runs, key=lambda run: (run.launch.start, run.id)) if _is_made(run)]
    publication = _Publication(plan)
    publication.write_documents(runs)  # 1
    publication.append_lines(runs)  # 2
    publication.link_events(runs)  # 3
    publication.make_latest(runs)  # 4
    return publication.added


class _Publication:
    """One call of `publish_runs`; counts what it adds."""

    def __init__(self, plan: ExperimentPlan) -> None:
        self._plan = plan
        self._layout = plan.layout
        self.added = 0

    def write_documents(self, runs: Iterable[PlannedRun]) -> None:
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
                self.added += 1

    def append_lines(self, runs: Iterable[PlannedRun]) -> None:
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
            # In one go: a flush to storage for each line takes longer than to link the files of its run.
            lines = b"".join(record.encode() for record in new)
            durable_files.append(self._layout.manifest, lines, after_newline=is_locked)
            self.added += len(new)

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

    def link_events(self, runs: Iterable[PlannedRun]) -> None:
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
                self.added += 1

    def make_latest(self, runs: list[PlannedRun]) -> None:
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
        self.added += 1

    def _run_path(self, run: PlannedRun) -> Path:
        return self._layout.run(run.id).path

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
