"""Which old file becomes part of which run, and why; reads, and changes nothing.

Made in two passes, so that memory does not grow with the number of files: the first reads the few files that tell of
launches, the second goes through all files and decides each.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from immutable_logs.layout import ExperimentLayout
from immutable_logs.run_id import RANDOM_BYTES, format_run_id
from migration.adopted_files import AdoptedFiles
from migration.attribution import SURVEYED
from migration.evidence import read_evidence
from migration.file_kinds import Kind, classify, rank_in
from migration.journal import Journal
from migration.launch_survey import survey_launches
from migration.legacy_layout import is_archive_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from migration.attribution import Attribution, Decision
    from migration.evidence import FileEvidence
    from migration.legacy_layout import LeftAlone, LegacyExperiment, LogDirectory, Place, Source
    from migration.past_launches import PastLaunch

_TAKEN_NAMES: Final = frozenset({"run.json", "finished.json", "ranks", "checkpoints"})
"""Names that mean something in a run directory."""

_MAX_NAME: Final = 255


@dataclass(slots=True, eq=False)
class PlannedRun:
    """A run to be made of a past launch, or one that was made of it already.

    Attributes:
        id: The run id; made of the launch, so that two plans for one tree agree.
        launch: The launch, or the collection of uncertain files.
        log_directory: Where it was found.
        was_there: Whether a migration had made the run directory before this plan.
        exists: Whether it is there now.
        is_pruned: Whether it was adopted and pruned since: it is not made again.
        lineage: The first run of the chain that it continues.
        resumed_from: The run that it continues, if any.
        files: How many files it has, counted by `ExperimentPlan.files`.
        pending: How many of them are still to be linked, counted likewise.
    """

    id: str
    launch: PastLaunch
    log_directory: LogDirectory
    was_there: bool
    exists: bool
    is_pruned: bool
    lineage: str = ""
    resumed_from: str | None = None
    files: int = 0
    pending: int = 0


class PlannedFile(NamedTuple):
    """What happens to one old file.

    Attributes:
        evidence: The file.
        place: Where in its log directory it lies.
        reason: Why.
        runs: The runs it becomes part of; empty if it is left alone.
        names: Its name in each of them.
        missing: Those of them that do not hold it yet.
        is_shared: Whether a run holds it as a second name of the same file.
    """

    evidence: FileEvidence
    place: Place
    reason: str
    runs: tuple[PlannedRun, ...] = ()
    names: tuple[str, ...] = ()
    missing: tuple[PlannedRun, ...] = ()
    is_shared: bool = False


@dataclass(slots=True)
class _Names:
    """Names given in run directories to files that do not lie with the launch's other files."""

    given: dict[str, set[str]] = field(default_factory=dict)


class ExperimentPlan:
    """The plan for one experiment.

    Attributes:
        experiment: What was found.
        layout: Its paths under the immutable layout.
        journal: What a migration did here before.
        adopted: What it has adopted.
        runs: The runs by start; collections of uncertain files are added when `files` comes to the first such file.
        problems: What could not be read.
    """

    def __init__(self, experiment: LegacyExperiment, *, on_file: Callable[[], None] = lambda: None) -> None:
        """Find the launches.

        Args:
            experiment: What was found.
            on_file: Called for every file looked at.

        Raises:
            OSError: If a directory cannot be read.
        """
        self.experiment = experiment
        self.layout = ExperimentLayout(experiment.path)
        self.journal = Journal(self.layout)
        self.adopted = AdoptedFiles(self.layout, self.journal)
        self.problems: list[str] = []
        self.runs: list[PlannedRun] = []
        self._on_file = on_file
        self._by_launch: dict[PastLaunch, PlannedRun] = {}
        self._ids: set[str] = set()
        self._logs: list[tuple[LogDirectory, Attribution]] = []
        for log in experiment.log_directories:
            attribution = survey_launches(log.sources, self._survey(log))
            self._logs.append((log, attribution))
            previous = None
            names: set[PurePosixPath] = set()
            for launch in attribution.launches:
                names.update(PurePosixPath(file.log_directory) for file in launch.files if file.log_directory)
                previous = self._plan_run(log, launch, previous if _has_resumed(launch, names) else None)
        self.runs.sort(key=lambda run: (run.launch.start, run.id))

    @property
    def left_alone(self) -> tuple[LeftAlone, ...]:
        """Directories and links that are not touched; single files come with `files`."""
        return self.experiment.left_alone

    def files(self) -> Iterator[PlannedFile]:
        """Yield what happens to each file, in the order of the directories, and count them by run."""
        for run in self.runs:
            run.files = run.pending = 0
        names = _Names()
        for log, attribution in self._logs:
            for source in log.sources:
                for evidence in self._read(source, lambda _: True):
                    self._on_file()
                    planned = self._plan_file(log, source, evidence, attribution, names)
                    for run in planned.runs:
                        run.files += 1
                        run.pending += run in planned.missing
                    yield planned

    def _survey(self, log: LogDirectory) -> Iterator[FileEvidence]:
        for source in log.sources:
            yield from self._read(source, _tells_of_launches)

    def _read(self, source: Source, is_wanted: Callable[[str], bool]) -> Iterator[FileEvidence]:
        directory = self.layout.path / source.path
        try:
            entries = os.scandir(directory)
        except OSError as error:
            self.problems.append(f"cannot look into a directory ({error.strerror}): {directory}")
            return
        root = str(self.layout.path)
        with entries:
            for entry in entries:
                name = entry.name
                if not is_wanted(name) or not entry.is_file(follow_symlinks=False):
                    continue
                if name.startswith("run_") and is_archive_name(name):
                    continue
                try:
                    evidence = read_evidence(root, source, name)
                except FileNotFoundError:
                    # A training that starts just now moves what lies at the top; the next plan finds it elsewhere.
                    continue
                yield evidence

    def _plan_run(self, log: LogDirectory, launch: PastLaunch, previous: PlannedRun | None) -> PlannedRun:
        run_id = self._known_id(launch) or self._new_id(log, launch)
        is_there = self.adopted.has_run(run_id)
        run = PlannedRun(run_id, launch, log, is_there, is_there, run_id in self.adopted.pruned, run_id)
        if previous is not None:
            run.lineage, run.resumed_from = previous.lineage, previous.id
        self._ids.add(run_id)
        self.runs.append(run)
        self._by_launch[launch] = run
        return run

    def _known_id(self, launch: PastLaunch) -> str | None:
        """Return the run that was made of a launch before, known by the files that it holds."""
        for file in launch.files:
            held = [each.run for each in self.adopted.holdings(file) if each.run not in self._ids]
            if len(held) == 1:
                return held[0]
        return None

    def _new_id(self, log: LogDirectory, launch: PastLaunch) -> str:
        """Return a run id made of the launch itself, so that a stopped `apply` is continued in the same directory."""
        kind = "uncertain" if launch.is_uncertain else "launch"
        others = ",".join(f"{each.start:.6f}" for each in launch.candidates)
        seed = f"{kind}\0{log.path}\0{launch.start:.6f}\0{others}"
        for attempt in range(1000):
            digest = hashlib.sha256(f"{seed}\0{attempt}".encode("utf-8", "surrogateescape")).digest()
            run_id = format_run_id(launch.start, digest[:RANDOM_BYTES])
            is_foreign = not self.adopted.has_run(run_id) and os.path.lexists(self.layout.run(run_id).path)
            if run_id not in self._ids and not is_foreign:
                break
        return run_id

    def _plan_file(
        self, log: LogDirectory, source: Source, evidence: FileEvidence, attribution: Attribution, names: _Names
    ) -> PlannedFile:
        decision = attribution.decide(evidence)
        if decision.launch is None:
            return PlannedFile(evidence, source.place, decision.reason)
        runs = self._runs_of(log, decision)
        for run in runs:
            if run.is_pruned:
                return PlannedFile(evidence, source.place, f"its run {runs[0].id} was adopted before, and pruned")
        missing = runs
        is_shared = False
        held = self.adopted.holdings(evidence)
        if held:
            holders = {each.run for each in held}
            missing = tuple(run for run in runs if run.id not in holders)
            if len(missing) == len(runs):
                # The evidence has changed since it was adopted, as after a copy; the run that holds it keeps it.
                missing = ()
            is_shared = any(each.shares for each in held)
        reason = decision.reason if evidence.problem is None else f"{decision.reason}; {evidence.problem}"
        new_names = tuple([self._name(run, evidence, attribution, names, is_missing=run in missing) for run in runs])
        return PlannedFile(evidence, source.place, reason, runs, new_names, missing, is_shared)

    def _runs_of(self, log: LogDirectory, decision: Decision) -> tuple[PlannedRun, ...]:
        """Return the runs of a file's launches; a collection of uncertain files is a run from its first file on."""
        known = self._by_launch.get(decision.launch) if decision.launch is not None and not decision.also else None
        if known is not None:
            return (known,)
        launches = [launch for launch in (decision.launch, *decision.also) if launch is not None]
        for launch in launches:
            if launch not in self._by_launch:
                self._plan_run(log, launch, None)
        return tuple(self._by_launch[launch] for launch in launches)

    def _name(
        self, run: PlannedRun, file: FileEvidence, attribution: Attribution, names: _Names, *, is_missing: bool
    ) -> str:
        """Return the name of a file in a run: its own, unless a file that lies with the launch's others has it.

        `cmd-args.log` of a launch that a kill has split over two directories keeps its name; the second log of rank
        zero of a launch whose ranks all wrote under that name does not.
        """
        name = file.name
        if file.source != run.launch.home or name in _TAKEN_NAMES:
            given = names.given.setdefault(run.id, set())
            if name in given or name in _TAKEN_NAMES or self._is_at_home(run, file, attribution):
                name = _told_apart(name, file.source)
            given.add(name)
        if is_missing and run.was_there:
            number = 1
            candidate = name
            while os.path.lexists(self.layout.run(run.id).path / candidate):
                candidate = _told_apart(name, f"{file.source}_{number}")
                number += 1
            name = candidate
        return name

    def _is_at_home(self, run: PlannedRun, file: FileEvidence, attribution: Attribution) -> bool:
        """Tell whether a file of the same name lies with the launch's other files, and is the launch's too."""
        sources = {source.path: source for source in run.log_directory.sources}
        home = sources.get(run.launch.home or "") if run.launch.home is not None else None
        if home is None:
            return False
        try:
            decision = attribution.decide(read_evidence(self.layout.path, home, file.name))
        except FileNotFoundError:
            return False
        return run.launch is decision.launch or run.launch in decision.also


def _tells_of_launches(name: str) -> bool:
    kind = classify(name)
    return kind in SURVEYED and (kind is not Kind.RANK_LOG or rank_in(name) == 0)


def _told_apart(name: str, source: str) -> str:
    """Return a name that says from which directory a file came; cut where a file system would not take it."""
    told = f"{name}.from-{source.replace('/', '_') or 'log_dir'}"
    encoded = os.fsencode(told)
    if len(encoded) <= _MAX_NAME:
        return told
    return os.fsdecode(encoded[: _MAX_NAME - 17]) + "-" + hashlib.sha256(encoded).hexdigest()[:16]


def _has_resumed(launch: PastLaunch, names: set[PurePosixPath]) -> bool:
    """Tell whether a launch continued an earlier one: it restored a checkpoint of the same log directory.

    What the directory is called by now says nothing: it may have been renamed, or mounted elsewhere.

    Args:
        launch: The launch.
        names: The log directory's paths of that time, as its logs up to this launch name them.
    """
    lightning = launch.first(Kind.LIGHTNING)
    if lightning is None or not lightning.text:
        return False
    return any(_can_be_one(above, name) for above in PurePosixPath(lightning.text).parents for name in names)


def _can_be_one(one: PurePosixPath, other: PurePosixPath) -> bool:
    """Tell whether two paths in logs can lead to one directory.

    With a relative `exp_dir` some are told as they were given, and others in full. Of a relative one only the end can
    be compared, since nobody knows any more where the command was started.
    """
    if one.is_absolute() == other.is_absolute():
        return one == other
    absolute, relative = (one, other) if one.is_absolute() else (other, one)
    end = [part for part in relative.parts if part != ".."]
    return bool(end) and list(absolute.parts[-len(end) :]) == end
