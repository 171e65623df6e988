"""Which launches wrote into a log directory, and which of them made a file; pure.

Neither the directory of a file nor its number tells its launch: a launch moves what it finds, also the open logs of
its own early ranks, and a kill in the middle splits a launch over two places. What tells is time, in this order:

1. ``cmd-args.log`` is written once, when rank zero of a launch starts: its time *is* the start. Where it is gone,
   ``git-info.log``, the first line of the error log or the heading of rank zero's log stand in.
2. An archive ``run_N`` was last changed when a launch moved files into it, so that this time is a start too, perhaps
   of a launch of which nothing else is left.
3. An event file begins with the time when it was made and has its writer's process id in its name. A second process
   after a launch's last sign of life is another launch, of which only that file is left.

A log belongs to the launch during whose life it was written. Where that is true of two, or of none, the file is
uncertain: it goes to a run that says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from immutable_logs.records import format_time
from migration.legacy_layout import Kind, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from migration.evidence import FileEvidence
    from migration.legacy_layout import Source

SURVEYED: Final = frozenset(
    {Kind.ARGUMENTS, Kind.GIT, Kind.ERRORS, Kind.LIGHTNING, Kind.HPARAMS, Kind.EVENTS, Kind.RANK_LOG}
)
"""Kinds that tell of launches; of rank logs only those of rank zero. The rest is decided by what these tell."""

_SECOND: Final = 1.0
"""Stamps and the names of event files are cut to whole seconds."""

_BUFFERED: Final = 120.0
"""NeMo keeps messages in memory until it has a file: how far before a start the first stamp can lie."""

_SETTING_UP: Final = 120.0
"""How long ``git diff`` or making the loggers can take."""

_SKEW: Final = 60.0
"""How far apart the ranks of a launch can begin without a sign that they belong together."""

_CLEARLY_NEARER: Final = 3.0
_SLACK: Final = 5.0
_NEIGHBOURS: Final = 8
"""How many launches before a time are asked whether they were still alive then."""


@dataclass(slots=True, eq=False)
class PastLaunch:
    """One launch of which something is left.

    Attributes:
        start: Unix time.
        why: What tells the start.
        home: The directory in which its files of rank zero lie; None if there are none.
        end: Its last sign of life; Unix time.
        why_end: What tells the end.
        files: Its files that tell of launches.
        candidates: For the collection of uncertain files: the launches that could have made them.
        is_uncertain: Whether this is such a collection, and no launch.
    """

    start: float
    why: str
    home: str | None = None
    end: float = 0.0
    why_end: str = ""
    files: list[FileEvidence] = field(default_factory=list)
    candidates: tuple[PastLaunch, ...] = ()
    is_uncertain: bool = False

    def add(self, file: FileEvidence, end: float | None) -> None:
        """Count a file as this launch's, and its last write as a sign of life."""
        self.files.append(file)
        if end is not None and end > self.end:
            self.end, self.why_end = end, f"last write in {file.path}"

    def first(self, kind: Kind) -> FileEvidence | None:
        """Return the first of its files of a kind."""
        return next((file for file in self.files if file.kind is kind), None)


@dataclass(frozen=True, slots=True)
class Decision:
    """Which launch made a file, and why.

    Attributes:
        launch: The launch, or the collection of uncertain files; None if the file is left alone.
        reason: The evidence, in words.
        also: Further launches that wrote lines into the same file.
    """

    launch: PastLaunch | None
    reason: str
    also: tuple[PastLaunch, ...] = ()


class Attribution:
    """The launches of one log directory, and the answer for each of its files.

    Attributes:
        launches: By start.
        zone: Seconds to add to a stamp to have Unix time.
        keeps_times: Whether modification times can be believed.
    """

    def __init__(self, sources: Sequence[Source], files: Iterable[FileEvidence]) -> None:
        """Find the launches.

        Args:
            sources: The directories of the log directory.
            files: Its files of the kinds in `SURVEYED`, rank logs of rank zero only.
        """
        surveyed = sorted(files, key=lambda file: (file.source, file.name))
        self.zone, self.keeps_times = _judge_times(surveyed)
        self.launches: list[PastLaunch] = []
        self._starts: list[float] = []
        self._places = {source.path: source.place for source in sources}
        self._decisions: dict[str, Decision] = {}
        self._uncertain: dict[tuple[int, ...], PastLaunch] = {}
        by_kind: dict[Kind, list[FileEvidence]] = {}
        for file in surveyed:
            by_kind.setdefault(file.kind, []).append(file)
        self._find_starts(by_kind)
        self._find_moves(sources)
        for file in by_kind.get(Kind.LIGHTNING, ()):
            self._settle(file, self._by_home(file), file.mtime)
        for file in by_kind.get(Kind.RANK_LOG, ()):
            self._find_rank_zero(file)
        self._place_events(by_kind.get(Kind.EVENTS, []))
        for file in by_kind.get(Kind.HPARAMS, ()):
            self._settle(file, self._by_events(file, by_kind.get(Kind.EVENTS, [])), None)
        self.launches = [launch for launch in self.launches if launch.files]
        self._starts = [launch.start for launch in self.launches]
        self._homes = Counter(launch.home for launch in self.launches if launch.home is not None)

    def decide(self, file: FileEvidence) -> Decision:
        """Return which launch made a file."""
        known = self._decisions.get(file.path)
        if known is not None:
            return known
        if file.kind is Kind.CHECKPOINT:
            return Decision(None, "a checkpoint; checkpoints stay where they are")
        if file.kind is Kind.RANK_LOG:
            return self._by_segments(file)
        if file.kind in SURVEYED:
            return Decision(None, "appeared while the directory was read")
        return self._by_company(file)

    # --- launches -----------------------------------------------------------------------------------------------

    def _find_starts(self, by_kind: dict[Kind, list[FileEvidence]]) -> None:
        """Find the launches whose files of rank zero are there, first by what is written once at the start."""
        if self.keeps_times:
            for file in by_kind.get(Kind.ARGUMENTS, ()):
                launch = self._new(file.mtime, f"{file.path} was written then", file.source)
                self._settle(file, Decision(launch, f"written once, at the start: {_clock(file.mtime)}"), file.mtime)
            for file in by_kind.get(Kind.GIT, ()):
                launch = self._started_near(file.mtime, file.source, before=_SETTING_UP, after=_SECOND) or self._new(
                    file.mtime, f"{file.path} was written then", file.source
                )
                reason = f"written at {_clock(file.mtime)}, when the launch of {_clock(launch.start)} was starting"
                self._settle(file, Decision(launch, reason), file.mtime)
        self._find_error_logs(by_kind.get(Kind.ERRORS, []))
        if not self.keeps_times:
            for file in by_kind.get(Kind.RANK_LOG, ()):
                stamp = file.headers[0] if file.headers else file.first
                time = None if stamp is None else self._time(file, stamp)
                if time and self._started_near(time, file.source, before=_SKEW, after=_BUFFERED) is None:
                    self._new(time, f"heading in {file.path}", file.source)
            for file in (*by_kind.get(Kind.ARGUMENTS, ()), *by_kind.get(Kind.GIT, ())):
                self._settle(file, self._by_home(file), None)

    def _find_error_logs(self, files: Sequence[FileEvidence]) -> None:
        for file in files:
            if file.first is None:
                continue
            first = self._time(file, file.first)
            launch = self._started_near(first, file.source, before=_SLACK, after=_BUFFERED) or self._new(
                first, f"first line of {file.path}", file.source
            )
            reason = f"first line {_clock(first)}, launch started {_clock(launch.start)}"
            self._settle(file, Decision(launch, reason), self._last_time(file))
        for file in files:
            if file.first is None:
                self._settle(file, self._by_home(file), None)

    def _find_moves(self, sources: Sequence[Source]) -> None:
        """Add a launch for every archive whose last change is not the start of a known one."""
        if not self.keeps_times:
            return
        for source in sources:
            if source.place is Place.ARCHIVE and self._started_near(source.mtime, None, before=1, after=_SKEW) is None:
                self._new(source.mtime, f"files were moved into {source.path} then", None)

    def _find_rank_zero(self, file: FileEvidence) -> None:
        """Give a log of rank zero to its launch, or make that launch if nothing else is left of it."""
        decision = self._by_segments(file)
        stamp = file.headers[0] if file.headers else file.first
        is_alone = decision.launch is None or (decision.launch.is_uncertain and len(decision.launch.candidates) <= 1)
        if is_alone and stamp is not None:
            start = self._time(file, stamp)
            launch = self._new(start, f"heading in {file.path}", file.source)
            decision = Decision(launch, f"begins at {_clock(start)}, when no other launch started", decision.also)
        self._settle(file, decision, None)
        owners = [launch for launch in (decision.launch, *decision.also) if launch and not launch.is_uncertain]
        for begin, end in self._segments(file):
            for launch in owners:
                # With several headings, the part of the one launch must not prolong the life of the other.
                is_own = len(file.headers) <= 1 or end < self._next_start(launch)
                if is_own and launch.start - _SKEW <= begin and end > launch.end:
                    launch.end, launch.why_end = end, f"last line in {file.path}"

    def _place_events(self, files: Sequence[FileEvidence]) -> None:
        """Give each event file to the launch that was alive when it was made, and each launch to one process.

        A process that is possible for one launch only takes it from the other processes; that can settle the next one.
        Process ids tell nothing from one launch to another: in containers they are the same every time.
        """
        taken: dict[PastLaunch, object] = {}
        waiting = sorted(files, key=lambda file: (_born(file), file.path))
        while waiting:
            unsettled = []
            for file in waiting:
                writer = file.writer or file.path
                possible = [launch for launch in self._alive_at(_born(file)) if taken.get(launch, writer) == writer]
                possible = [launch for launch in possible if launch in taken] or possible
                if len(possible) > 1:
                    unsettled.append(file)
                    continue
                launch = (
                    possible[0]
                    if possible
                    else self._new(_born(file), f"{file.path} was made then, by a process of its own", None)
                )
                taken[launch] = writer
                reason = f"made at {_clock(_born(file))}{_by(file)}, launch started {_clock(launch.start)}"
                self._settle(file, Decision(launch, reason), file.mtime)
            if len(unsettled) == len(waiting):
                break
            waiting = unsettled
        for file in waiting:
            possible = [launch for launch in self._alive_at(_born(file)) if launch not in taken]
            self._settle(file, self._unsure(possible, f"made at {_clock(_born(file))}{_by(file)}"), None)

    # --- one file -----------------------------------------------------------------------------------------------

    def _by_home(self, file: FileEvidence) -> Decision:
        """Decide by the company a file keeps: the launch whose files of rank zero lie in the same directory."""
        same = [launch for launch in self.launches if launch.home == file.source]
        if not self.keeps_times:
            if len(same) == 1:
                return Decision(same[0], "lies with the logs of this launch; its own time was lost in a copy")
            return self._unsure(same, "its time was lost in a copy")
        started = [launch for launch in same if launch.start <= file.mtime + _SECOND]
        if started:
            launch = started[-1]
            return Decision(launch, f"lies with the files of the launch of {_clock(launch.start)}, written after")
        before = [
            launch for launch in self.launches if launch.start <= file.mtime + _SECOND and launch.home is not None
        ]
        free = [launch for launch in before if launch.first(file.kind) is None]
        if free and free[-1] is before[-1]:
            reason = (
                f"last written at {_clock(file.mtime)}, after the start of {_clock(free[-1].start)}, before the next"
            )
            return Decision(free[-1], reason)
        return self._unsure(free[-1:], f"last written at {_clock(file.mtime)}")

    def _by_segments(self, file: FileEvidence) -> Decision:
        """Decide a rank log: each part that begins with a heading was written by the launch that was alive then."""
        owners: list[PastLaunch] = []
        reasons = []
        for begin, end in self._segments(file):
            launch, reason = self._owner(begin, end)
            if launch not in owners:
                owners.append(launch)
                reasons.append(reason)
        if not owners:
            return self._by_home(file)
        if len(owners) > 1:
            reasons.append("lines of several launches are in it")
        return Decision(owners[0], "; ".join(reasons), tuple(owner for owner in owners[1:] if not owner.is_uncertain))

    def _owner(self, begin: float, end: float) -> tuple[PastLaunch, str]:
        """Return the launch whose life a part of a log falls into."""
        near = self._around(begin)
        alive = [
            launch
            for launch in near
            if begin <= max(launch.end, launch.start) + _SECOND and end + _SECOND >= launch.start
        ]
        words = f"lines from {_clock(begin)} to {_clock(end)}"
        if len(alive) == 1:
            return alive[0], f"{words}, during the launch of {_clock(alive[0].start)}"
        near = alive or [launch for launch in near if abs(launch.start - begin) <= _SKEW]
        ordered = sorted(near, key=lambda launch: abs(launch.start - begin))
        distances = [max(_SECOND, abs(launch.start - begin)) for launch in ordered]
        if ordered and (len(ordered) == 1 or distances[0] * _CLEARLY_NEARER <= distances[1]):
            return ordered[0], f"{words}, begun {distances[0]:.0f} s from the start of {_clock(ordered[0].start)}"
        launch = self._unsure(ordered, words).launch
        assert launch is not None  # noqa: S101 - `_unsure` always names a collection
        return launch, words

    def _by_events(self, file: FileEvidence, events: list[FileEvidence]) -> Decision:
        """Decide ``hparams.yaml``: it is written when the event file beside it is made."""
        beside = [event for event in events if event.source == file.source]
        if not self.keeps_times:
            if len(beside) == 1:
                found = self._decisions[beside[0].path]
                return Decision(found.launch, f"lies with {beside[0].name}")
            return self._by_home(file)
        distance, _, event = min(
            ((abs((event.born or 0.0) - file.mtime), event.path, event) for event in (beside or events)),
            default=(_SETTING_UP + 1, "", None),
        )
        if event is not None and distance <= _SETTING_UP:
            found = self._decisions[event.path]
            return Decision(found.launch, f"written {distance:.1f} s from {event.path}")
        alive = self._alive_at(file.mtime)
        if len(alive) == 1:
            return Decision(alive[0], f"written at {_clock(file.mtime)}, after the start of {_clock(alive[0].start)}")
        return self._unsure(alive, f"written at {_clock(file.mtime)}")

    def _by_company(self, file: FileEvidence) -> Decision:
        """Decide a file that NeMo does not make, but moves."""
        same = [launch for launch in self._around(file.mtime) if launch.home == file.source]
        is_moved = self._places.get(file.source) is not Place.TOP and self._homes[file.source] > 0
        if self.keeps_times:
            alive = [
                launch
                for launch in self._around(file.mtime)
                if launch.start - _SLACK <= file.mtime <= launch.end + _SLACK
            ]
            alive = [launch for launch in alive if launch.home == file.source] or alive
            if len(alive) == 1:
                return Decision(
                    alive[0], f"written at {_clock(file.mtime)}, during the launch of {_clock(alive[0].start)}"
                )
            if len(alive) > 1:
                return self._unsure(alive, f"written at {_clock(file.mtime)}")
        if is_moved:
            if self._homes[file.source] == 1:
                home = same[0] if same else next(each for each in self.launches if each.home == file.source)
                return Decision(home, "not NeMo's, but moved here with the files of this launch")
            return self._unsure(same, "not NeMo's, but moved here with the files of several launches")
        return Decision(None, "not a file of NeMo, and not written during a launch")

    # --- times --------------------------------------------------------------------------------------------------

    def _new(self, start: float, why: str, home: str | None) -> PastLaunch:
        launch = PastLaunch(start, why, home, start, why)
        position = bisect_right(self._starts, start)
        self._starts.insert(position, start)
        self.launches.insert(position, launch)
        return launch

    def _settle(self, file: FileEvidence, decision: Decision, end: float | None) -> None:
        self._decisions[file.path] = decision
        if decision.launch is not None:
            decision.launch.add(file, end)
            if not decision.launch.is_uncertain and decision.launch.home is None and file.kind is not Kind.EVENTS:
                decision.launch.home = file.source
        for launch in decision.also:
            launch.files.append(file)

    def _unsure(self, candidates: Sequence[PastLaunch], words: str) -> Decision:
        """Return the collection of the files that any of some launches could have made."""
        key = tuple(sorted(id(launch) for launch in candidates))
        known = self._uncertain.get(key)
        if known is None:
            ordered = tuple(sorted(candidates, key=lambda launch: launch.start))
            start = ordered[0].start if ordered else (self._starts[0] if self._starts else 0.0)
            known = PastLaunch(
                start, "files whose launch is not known", None, start, "", [], ordered, is_uncertain=True
            )
            self._uncertain[key] = known
        names = " or ".join(_clock(launch.start) for launch in known.candidates) or "none that is known"
        return Decision(known, f"uncertain: {words}; possible launches: {names}")

    def _segments(self, file: FileEvidence) -> Iterator[tuple[float, float]]:
        """Yield begin and end of the parts of a log; headings of the ranks of one launch begin one part."""
        begins = list(dict.fromkeys(file.headers))
        last = self._last_time(file)
        if not begins and file.first is not None:
            begins = [file.first]
        for number, begin in enumerate(begins):
            following = self._time(file, begins[number + 1]) if number + 1 < len(begins) else last
            yield self._time(file, begin), following if following is not None else self._time(file, begin)

    def _time(self, file: FileEvidence, stamp: float) -> float:
        return stamp + (file.zone if file.zone is not None else self.zone)

    def _last_time(self, file: FileEvidence) -> float | None:
        return None if file.last is None else self._time(file, file.last)

    def _around(self, time: float) -> list[PastLaunch]:
        """Return the launches that started around a time: some before and the next one."""
        position = bisect_right(self._starts, time + _SECOND)
        return self.launches[max(0, position - _NEIGHBOURS) : position + 1]

    def _alive_at(self, time: float) -> list[PastLaunch]:
        """Return the launches that were alive at a time, or else the one that had started last."""
        position = bisect_right(self._starts, time + _SECOND / 2)
        started = self.launches[max(0, position - _NEIGHBOURS) : position]
        return [launch for launch in started if launch.end >= time] or started[-1:]

    def _next_start(self, launch: PastLaunch) -> float:
        position = bisect_right(self._starts, launch.start)
        return self._starts[position] if position < len(self._starts) else float("inf")

    def _started_near(self, time: float, home: str | None, *, before: float, after: float) -> PastLaunch | None:
        """Return the launch that started nearest to a time, one of the same directory first.

        Args:
            time: Unix time.
            home: The directory.
            before: How long before the time it may have started.
            after: How long after.
        """
        low = bisect_right(self._starts, time - before)
        high = bisect_right(self._starts, time + after)
        near = self.launches[low:high]
        near = [launch for launch in near if home is not None and launch.home == home] or near
        return min(near, key=lambda launch: abs(launch.start - time), default=None)


def _judge_times(files: Iterable[FileEvidence]) -> tuple[float, bool]:
    """Return the usual time zone of the stamps, and whether modification times can be believed."""
    stamped = [file for file in files if file.last is not None]
    zones = Counter(file.zone for file in stamped if file.zone is not None)
    if not stamped:
        return 0.0, True
    if 2 * sum(zones.values()) < len(stamped):
        return 0.0, False
    return zones.most_common(1)[0][0], True


@lru_cache(maxsize=4096)
def _clock(seconds: float) -> str:
    return format_time(seconds)[:19].replace("T", " ") + "Z"


def _born(file: FileEvidence) -> float:
    return file.mtime if file.born is None else file.born


def _by(file: FileEvidence) -> str:
    return f" by process {file.writer[1]} on {file.writer[0]}" if file.writer else ""
