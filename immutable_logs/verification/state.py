"""Everything that the checks need to know of an experiment, read once."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from immutable_logs import durable_files
from immutable_logs.catalog import RUNNING
from immutable_logs.errors import RecordError
from immutable_logs.manifest import Manifest, read_manifest
from immutable_logs.rank_entries import entry_paths
from immutable_logs.records import FinishRecord, RankRecord, RunRecord
from immutable_logs.verification.lines import RunLines, lines_by_run

if TYPE_CHECKING:
    from pathlib import Path

    from immutable_logs.catalog import Experiment, RunSummary
    from immutable_logs.layout import ExperimentLayout, RunLayout

_Record = TypeVar("_Record", RunRecord, FinishRecord)

_RANK_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a record cannot be read.

    Attributes:
        words: What was expected and found.
        is_damage: Whether its content is damaged; otherwise this user, or this mount, does not get at it.
    """

    words: str
    is_damage: bool


@dataclass(slots=True)
class RunState:
    """One run, as it is on disk.

    Attributes:
        summary: What the catalog says of it.
        lines: The manifest's lines on it.
        is_present: Whether it has a directory.
        record: ``run.json``, if it is complete; without the configuration, which nothing here looks at.
        record_problem: Why it cannot be read, if it is there.
        finish: ``finished.json``, if it is complete.
        finish_problem: Why it cannot be read, if it is there.
        ranks: The readable entries, by rank.
        unreadable: The paths of the others, by rank.
    """

    summary: RunSummary
    lines: RunLines
    is_present: bool
    record: RunRecord | None = None
    record_problem: Problem | None = None
    finish: FinishRecord | None = None
    finish_problem: Problem | None = None
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    unreadable: dict[int, Path] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The run id."""
        return self.summary.id

    @property
    def is_running(self) -> bool:
        """Whether the run has a sign of life, so that what is missing may still come."""
        return self.summary.status == RUNNING

    @property
    def is_adopted(self) -> bool:
        """Whether a migration made it."""
        return self.lines.is_adopted or (self.record is not None and self.record.adopted_from is not None)

    @property
    def joined(self) -> frozenset[int]:
        """The ranks that have an entry, readable or not."""
        return frozenset(self.ranks) | frozenset(self.unreadable)

    @property
    def was_published(self) -> bool:
        """Whether the run came as far as its ``started`` line, by what is known without that line.

        A launch that fails before, or is killed, leaves a complete ``run.json`` without a line: only a normal end or
        a step shows that training had begun.
        """
        ended = self.finish is not None and (self.finish.outcome == "finished" or self.finish.step is not None)
        return bool(self.lines.started) or ended


@dataclass(frozen=True, slots=True)
class ExperimentState:
    """An experiment, as it is on disk.

    Attributes:
        layout: Its paths.
        manifest: What can be read of the manifest.
        runs: All runs in order.
        others: The names in ``runs/`` that are no runs, hidden ones left out.
    """

    layout: ExperimentLayout
    manifest: Manifest
    runs: dict[str, RunState]
    others: tuple[str, ...]

    def relative(self, path: Path) -> str:
        """Return a path inside the experiment as findings show it."""
        return str(path.relative_to(self.layout.path))


def read_state(experiment: Experiment) -> ExperimentState:
    """Read an experiment: the manifest first, so that a run that starts meanwhile is not taken for a missing one."""
    layout = experiment.layout
    manifest = read_manifest(layout)
    lines = lines_by_run(manifest.records)
    with os.scandir(layout.runs) as entries:
        is_directory = {
            entry.name: entry.is_dir(follow_symlinks=False) for entry in entries if not entry.name.startswith(".")
        }
    runs = {
        run.id: _read_run(layout, run, lines.get(run.id) or RunLines(), is_present=is_directory.get(run.id, False))
        for run in experiment.runs()
    }
    ours = {layout.manifest.name, layout.latest_text.name}
    others = (name for name, is_dir in is_directory.items() if name not in ours and not (is_dir and name in runs))
    return ExperimentState(layout, manifest, runs, tuple(sorted(others)))


def _read_run(experiment: ExperimentLayout, summary: RunSummary, lines: RunLines, *, is_present: bool) -> RunState:
    state = RunState(summary, lines, is_present)
    if not is_present or lines.is_pruned:
        return state
    layout = experiment.run(summary.id)
    state.record, state.record_problem = _read(RunRecord, layout.run_record)
    if state.record is not None:
        # Ten thousand configurations would fill the memory.
        state.record = replace(state.record, configuration=None, arguments=[], versions={})
    state.finish, state.finish_problem = _read(FinishRecord, layout.finish_record)
    _read_ranks(layout, state)
    return state


def _read_ranks(layout: RunLayout, state: RunState) -> None:
    for path in entry_paths(layout):
        number = path.stem.rpartition("-")[2]
        if not number.isdecimal() or len(number) < _RANK_DIGITS:
            continue
        rank = int(number)
        with suppress(OSError, RecordError):
            record = RankRecord.decode(durable_files.read_bytes(path), path)
            if record.global_rank == rank:
                state.ranks[rank] = record
                continue
        state.unreadable[rank] = path


def _read(kind: type[_Record], path: Path) -> tuple[_Record | None, Problem | None]:
    """Return a record, or why it cannot be read; neither if there is none."""
    try:
        return kind.decode(durable_files.read_bytes(path), path.name), None
    except FileNotFoundError:
        return None, None
    except RecordError as error:
        return None, Problem(str(error).rpartition(": ")[0], is_damage=True)
    except OSError as error:
        return None, Problem(error.strerror or str(error), is_damage=False)
