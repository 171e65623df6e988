"""Read-only questions about an experiment: which runs there are, in which order, how each stands.

The answer is the union of the manifest and of the run directories, so that no damage to one of them loses a run.
Nothing is repaired here.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from immutable_logs import durable_files
from immutable_logs.errors import NotAnExperimentError, RecordError, UnknownRunError
from immutable_logs.latest_link import read_latest
from immutable_logs.layout import LATEST, ExperimentLayout, RunLayout
from immutable_logs.manifest import Manifest, read_manifest
from immutable_logs.process import Process, is_alive, this_process
from immutable_logs.rank_entries import count_joined_ranks, read_rank_process
from immutable_logs.records import (
    ADOPTED,
    FINISHED,
    PRUNED,
    STARTED,
    FinishRecord,
    ManifestRecord,
    RunRecord,
    is_integer,
    parse_time,
)
from immutable_logs.run_id import is_run_id, parse_run_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIGN_OF_LIFE_AGE: Final = 600.0
"""Seconds since the last write up to which a run whose process cannot be seen from here counts as running.

As many ahead of this clock do too, since the file server's can be another."""

_MAX_DIGITS: Final = 9
_MAX_SHOWN: Final = 80
"""Characters of a wrong reference that an error repeats."""

_Record = TypeVar("_Record", RunRecord, FinishRecord)

RUNNING: Final = "running"
UNKNOWN: Final = "unknown"
MISSING: Final = "missing"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What is known of a run.

    Attributes:
        id: The run id.
        path: The run directory, absolute.
        status: ``running``, ``finished``, ``failed``, ``interrupted``, ``unknown``, ``adopted``, ``pruned``, or
            ``missing`` where the manifest names a run whose directory is gone.
        evidence: What the status rests on, in words.
        started: Unix time; of the run id where no record tells.
        ended: Unix time, if recorded.
        ranks_joined: How many ranks have joined.
        world_size: How many were expected, if known.
        step: The last global step, if recorded.
        host: The host of rank zero.
        job: The scheduler's job id, if there was one.
        source: How the launch was known.
        lineage: The first run of the chain that this run continues.
        resumed_from: The run that it continues, if any.
    """

    id: str
    path: Path
    status: str
    evidence: str
    started: float
    ended: float | None = None
    ranks_joined: int | None = None
    world_size: int | None = None
    step: int | None = None
    host: str | None = None
    job: str | None = None
    source: str | None = None
    lineage: str | None = None
    resumed_from: str | None = None


@dataclass(slots=True)
class _Known:
    """The manifest's lines on one run, and whether its directory is there."""

    id: str
    start: ManifestRecord | None = None
    finish: ManifestRecord | None = None
    is_adopted: bool = False
    is_pruned: bool = False
    is_present: bool = False


@dataclass(frozen=True, slots=True)
class RunDetails:
    """Everything recorded of one run.

    Attributes:
        summary: The summary.
        run_record: ``run.json``, if it is there and complete.
        finish_record: ``finished.json``, if it is there and complete.
        problems: What could not be read, and why.
    """

    summary: RunSummary
    run_record: RunRecord | None
    finish_record: FinishRecord | None
    problems: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Listing:
    """All runs of an experiment, from one reading of the manifest.

    Attributes:
        runs: The runs, in order.
        latest: The run that the link ``latest`` shows, if any.
        damaged_lines: How many lines of the manifest could not be read; no run is lost by them.
    """

    runs: tuple[RunSummary, ...]
    latest: str | None
    damaged_lines: int


class Experiment:
    """An experiment directory, read-only.

    Attributes:
        path: The directory, absolute.
    """

    def __init__(
        self,
        path: os.PathLike[str] | str,
        *,
        now: Callable[[], float] = time.time,
        observer: Process | None = None,
    ) -> None:
        """Open a directory for questions.

        Args:
            path: The experiment; a `pathlib2.Path` is fine.
            now: The clock.
            observer: The process whose view counts when asked whether a run lives.

        Raises:
            NotAnExperimentError: If the directory holds no runs.
        """
        self._layout = ExperimentLayout.of(path)
        self._runs = self._layout.runs
        self.path = self._layout.path
        self._now = now
        self._observer = observer or this_process()
        if not self._layout.runs.is_dir():
            reason = "this directory holds no runs" if self.path.is_dir() else "there is no such directory"
            raise NotAnExperimentError(self.path, reason)

    @property
    def layout(self) -> ExperimentLayout:
        """The names of the paths in this experiment."""
        return self._layout

    @property
    def latest(self) -> RunSummary | None:
        """The run that ``latest`` shows, or None."""
        name = read_latest(self._layout)
        runs = [] if name is None else self._in_order(read_manifest(self._layout))
        return next((self._summary(run) for run in runs if run.id == name), None)

    def runs(self) -> list[RunSummary]:
        """Return all runs in order.

        The order is that of the ``started`` lines in the manifest. Adopted runs come before all started ones, by
        their time; a run without a line (its launch failed or died first) comes before the first started run with a
        later id.
        """
        return list(self.listing().runs)

    def listing(self) -> Listing:
        """Return all runs in order, and what else the one reading of the manifest tells."""
        latest = read_latest(self._layout)
        manifest = read_manifest(self._layout)
        return Listing(tuple(map(self._summary, self._in_order(manifest))), latest, manifest.damaged)

    def find(self, reference: str) -> RunSummary:
        """Return the run that a reference means.

        Args:
            reference: A run id, the unique beginning of one, ``latest``, or ``latest~N`` for N runs before it.

        Raises:
            UnknownRunError: If it means none, or several.
        """
        runs = self._in_order(read_manifest(self._layout))
        name, tilde, distance = reference.partition("~")
        if name == LATEST:
            if tilde and not (distance.isdecimal() and len(distance) <= _MAX_DIGITS):
                found = distance[:_MAX_SHOWN]
                raise UnknownRunError(reference, self.path, f"expected a number after 'latest~', found {found!r}")
            return self._summary(self._before_latest(reference, runs, int(distance or 0)))
        matching = [run for run in runs if run.id == reference] or [
            run for run in runs if run.id.startswith(reference)
        ]
        if len(matching) != 1 or not reference:
            shown = repr(reference[:_MAX_SHOWN])
            reason = f"no run is called {shown}" if not matching else f"{shown} means several runs"
            raise UnknownRunError(reference, self.path, reason, (run.id for run in matching))
        return self._summary(matching[0])

    def describe(self, run: RunSummary) -> RunDetails:
        """Return everything recorded of a run."""
        layout = self._layout.run(run.id)
        problems: list[str] = []
        run_record = _read(RunRecord, layout.run_record, problems)
        finish_record = _read(FinishRecord, layout.finish_record, problems)
        return RunDetails(run, run_record, finish_record, tuple(problems))

    def _before_latest(self, reference: str, runs: list[_Known], distance: int) -> _Known:
        name = read_latest(self._layout)
        there = [run for run in runs if run.is_present and not run.is_pruned]
        position = next((index for index, run in enumerate(there) if run.id == name), None)
        if position is None:
            raise UnknownRunError(reference, self.path, "there is no link 'latest' that shows a run")
        if distance > position:
            raise UnknownRunError(reference, self.path, f"there are only {position} runs before the latest one")
        return there[position - distance]

    def _in_order(self, manifest: Manifest) -> list[_Known]:
        known = _by_run(manifest)
        for name in self._directories():
            known.setdefault(name, _Known(name)).is_present = True
        adopted = [run for run in known.values() if run.is_adopted]
        adopted.sort(key=lambda run: (run.start.time if run.start else "", run.id))
        started = [run for run in known.values() if run.start is not None and not run.is_adopted]
        without = [run for run in known.values() if run.start is None and not run.is_adopted]
        without.sort(key=lambda run: run.id, reverse=True)
        ordered = []
        for run in started:
            while without and without[-1].id < run.id:
                ordered.append(without.pop())
            ordered.append(run)
        return [*adopted, *ordered, *reversed(without)]

    def _directories(self) -> set[str]:
        with os.scandir(self._layout.runs) as entries:
            return {entry.name for entry in entries if is_run_id(entry.name) and entry.is_dir(follow_symlinks=False)}

    def _summary(self, lines: _Known) -> RunSummary:
        """Return what is known of a run: from the manifest's lines, from files only what these do not tell."""
        layout = RunLayout(self._runs / lines.id)
        start = lines.start.details if lines.start else {}
        started = parse_time(lines.start.time) if lines.start else None
        finish: dict[str, Any] = {}
        ended = None
        if lines.finish:
            finish, ended = lines.finish.details, parse_time(lines.finish.time)
        if lines.is_present and not lines.start:
            record = _read(RunRecord, layout.run_record, [])
            if record:
                start = {**_fields(record), "host": record.process.get("host")}
                started = parse_time(record.started)
        if lines.is_present and not lines.finish:
            end = _read(FinishRecord, layout.finish_record, [])
            if end:
                finish, ended = _fields(end), parse_time(end.ended)
        status, evidence = self._status(lines, finish)
        joined, expected = _integer(finish.get("ranks_joined")), _integer(start.get("world_size"))
        if joined is None or (expected is not None and joined != expected):
            # Ranks can join after rank zero has counted them, and has ended.
            joined = max(joined or 0, count_joined_ranks(layout)) if lines.is_present else joined
        return RunSummary(
            id=lines.id,
            path=layout.path,
            status=status,
            evidence=evidence,
            started=started if started is not None else _time_in(lines.id),
            ended=ended,
            ranks_joined=joined,
            world_size=expected,
            step=_integer(finish.get("step")),
            host=_text(start.get("host")),
            job=_text(start.get("job")),
            source=_text(start.get("source") or start.get("launch_source")),
            lineage=_text(start.get("lineage")),
            resumed_from=_text(start.get("resumed_from")),
        )

    def _status(self, lines: _Known, finish: dict[str, Any]) -> tuple[str, str]:
        if lines.is_pruned:
            return "pruned", "pruned line in the manifest"
        if not lines.is_present:
            return MISSING, "in the manifest, but its directory is gone"
        if lines.is_adopted:
            return "adopted", "brought in by a migration"
        outcome = _text(finish.get("outcome"))
        if outcome is not None:
            return outcome, "end record"
        return self._sign_of_life(lines.id)

    def _sign_of_life(self, run_id: str) -> tuple[str, str]:
        """Tell whether a run without an end record lives: by its process where it can be seen, else by its writes."""
        layout = self._layout.run(run_id)
        process = read_rank_process(layout, 0)
        alive = None if process is None else is_alive(process, self._observer)
        if process is not None and alive is not None:
            words = "is alive" if alive else "is gone, and left no end record"
            return RUNNING if alive else UNKNOWN, f"process {process.pid} of rank 0 on this host {words}"
        age = self._now() - _last_write(layout.path)
        where = "" if process is None else f" on {process.host}"
        distance = (
            f"{format_seconds(age)} ago" if round(age) >= 0 else f"{format_seconds(-age)} ahead of the clock here"
        )
        # A time far in the future is no sign of life either: it stays one for years after a wrong clock was put right.
        status = RUNNING if abs(age) <= SIGN_OF_LIFE_AGE else UNKNOWN
        return status, f"last write {distance}{where}, no end record"


def format_seconds(seconds: float) -> str:
    """Return a length of time for people: ``45 s``, ``12 min``, ``3 h 05 min``, ``2 d 4 h``."""
    minutes, whole = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min" if minutes else f"{whole} s"


def _by_run(manifest: Manifest) -> dict[str, _Known]:
    """Return the manifest's lines by run, in the order of the first line that starts or adopts each."""
    known: dict[str, _Known] = {}
    for record in manifest.records:
        if not is_run_id(record.run):
            continue
        lines = known.setdefault(record.run, _Known(record.run))
        if record.event in (STARTED, ADOPTED):
            if lines.start is None:
                known[record.run] = known.pop(record.run)
                lines.start = record
            lines.is_adopted = lines.is_adopted or record.event == ADOPTED
        elif record.event == FINISHED:
            lines.finish = lines.finish or record
        elif record.event == PRUNED:
            lines.is_pruned = True
    return known


def _integer(value: object) -> int | None:
    """Return a value of a manifest line, in which anyone in the group can have written anything, if it is a number."""
    return value if is_integer(value) else None


def _text(value: object) -> str | None:
    """Return a value of a manifest line or a record, if it is text that says something."""
    return value if isinstance(value, str) and value else None


def _fields(record: RunRecord | FinishRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _read(kind: type[_Record], path: Path, problems: list[str]) -> _Record | None:
    try:
        return kind.decode(durable_files.read_bytes(path), path)
    except FileNotFoundError:
        return None
    except (OSError, RecordError) as error:
        problems.append(str(error))
        return None


def _time_in(run_id: str) -> float:
    try:
        return parse_run_time(run_id)
    except ValueError:
        return 0.0


def _last_write(directory: Path) -> float:
    newest = 0.0
    with suppress(OSError):
        newest = os.stat(directory).st_mtime
        with os.scandir(directory) as entries:
            for entry in entries:
                with suppress(OSError):
                    newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return newest
