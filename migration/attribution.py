"""Which of the launches of a log directory made a file; pure.

A log belongs to the launch during whose life it was written. Where that is true of two, or of none, the file is
uncertain: it goes to a run that says so.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from immutable_logs.records import format_time
from migration.file_kinds import Kind
from migration.legacy_layout import Place
from migration.past_launches import SECOND, PastLaunch, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from migration.evidence import FileEvidence
    from migration.legacy_layout import Source

SURVEYED: Final = frozenset(
    {Kind.ARGUMENTS, Kind.GIT, Kind.ERRORS, Kind.LIGHTNING, Kind.HPARAMS, Kind.EVENTS, Kind.RANK_LOG}
)
"""Kinds that tell of launches; of rank logs only those of rank zero. The rest is decided by what these tell."""

SETTING_UP: Final = 120.0
"""How long ``git diff`` or making the loggers can take."""

SKEW: Final = 60.0
"""How far apart the ranks of a launch can begin without a sign that they belong together."""

SLACK: Final = 5.0
_CLEARLY_NEARER: Final = 3.0
_MAX_REMEMBERED: Final = 4096


class Decision(NamedTuple):
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
    """The answer for each file of one log directory, once its launches have been found.

    Attributes:
        timeline: The launches.
        zone: Seconds to add to a stamp to have Unix time.
        keeps_times: Whether modification times can be believed.
    """

    def __init__(self, sources: Sequence[Source], *, zone: float, keeps_times: bool) -> None:
        """Begin without launches; `migration.launch_survey` finds them.

        Args:
            sources: The directories of the log directory.
            zone: Seconds to add to a stamp in a file whose last write does not tell them.
            keeps_times: Whether modification times can be believed.
        """
        self.timeline = Timeline()
        self.zone = zone
        self.keeps_times = keeps_times
        self._places = {source.path: source.place for source in sources}
        self._decisions: dict[str, Decision] = {}
        self._uncertain: dict[tuple[int, ...], PastLaunch] = {}
        self._by_stamps: dict[tuple[object, ...], Decision] = {}

    @property
    def launches(self) -> list[PastLaunch]:
        """The launches, by start."""
        return self.timeline.launches

    def decide(self, file: FileEvidence) -> Decision:
        """Return which launch made a file; when all launches have been found."""
        if file.kind is Kind.OTHER:
            return self._by_company(file)
        if file.kind is Kind.RANK_LOG and file.rank != 0:
            return self._by_same_stamps(file)
        known = self._decisions.get(file.path)
        if known is not None:
            return known
        if file.kind is Kind.CHECKPOINT:
            return Decision(None, "a checkpoint; checkpoints stay where they are")
        if file.kind is Kind.RANK_LOG:
            return self.by_segments(file)
        return Decision(None, "appeared while the directory was read")

    def _by_same_stamps(self, file: FileEvidence) -> Decision:
        """Decide a rank log as an earlier one with the same stamps: the ranks of a launch write at the same time."""
        if file.first is None and not file.headers:
            return self.by_segments(file)
        key = (file.first, file.last, file.headers, file.ends, file.zone)
        known = self._by_stamps.get(key)
        if known is None:
            if len(self._by_stamps) >= _MAX_REMEMBERED:
                self._by_stamps.clear()
            known = self._by_stamps[key] = self.by_segments(file)
        return known

    def by_home(self, file: FileEvidence) -> Decision:
        """Decide by the company a file keeps: the launch whose files of rank zero lie in the same directory."""
        same = self.timeline.at_home(file.source)
        if not self.keeps_times:
            if len(same) == 1:
                return Decision(same[0], "lies with the logs of this launch; its own time was lost in a copy")
            return self.unsure(same, "its time was lost in a copy")
        started = [launch for launch in same if launch.start <= file.mtime + SECOND]
        if started:
            launch = started[-1]
            return Decision(launch, f"lies with the files of the launch of {clock(launch.start)}, written after")
        before = [launch for launch in self.timeline.before(file.mtime + SECOND) if launch.home is not None]
        free = next((launch for launch in reversed(before) if launch.first(file.kind) is None), None)
        words = f"last written at {clock(file.mtime)}"
        if free is None:
            return self.unsure((), words)
        if free is before[-1]:
            return Decision(free, f"{words}, after the start of {clock(free.start)}, before the next")
        return self.unsure((free,), words)

    def by_segments(self, file: FileEvidence) -> Decision:
        """Decide a rank log: each part that begins with a heading was written by the launch that was alive then."""
        owners: list[PastLaunch] = []
        reasons = []
        for begin, end in self.segments(file):
            launch, reason = self._owner(begin, end)
            if launch not in owners:
                owners.append(launch)
                reasons.append(reason)
        if not owners:
            return self.by_home(file)
        if len(owners) > 1:
            reasons.append("lines of several launches are in it")
        return Decision(owners[0], "; ".join(reasons), tuple(owner for owner in owners[1:] if not owner.is_uncertain))

    def _owner(self, begin: float, end: float) -> tuple[PastLaunch, str]:
        """Return the launch whose life a part of a log falls into."""
        near = self.timeline.around(begin)
        alive = [
            launch
            for launch in near
            if begin <= max(launch.end, launch.start) + SECOND and end + SECOND >= launch.start
        ]
        words = f"lines from {clock(begin)} to {clock(end)}"
        if len(alive) == 1:
            return alive[0], f"{words}, during the launch of {clock(alive[0].start)}"
        near = alive or [launch for launch in near if abs(launch.start - begin) <= SKEW]
        ordered = sorted(near, key=lambda launch: abs(launch.start - begin))
        distances = [max(SECOND, abs(launch.start - begin)) for launch in ordered]
        if ordered and (len(ordered) == 1 or distances[0] * _CLEARLY_NEARER <= distances[1]):
            return ordered[0], f"{words}, begun {distances[0]:.0f} s from the start of {clock(ordered[0].start)}"
        launch = self.unsure(ordered, words).launch
        assert launch is not None  # noqa: S101 - `_unsure` always names a collection
        return launch, words

    def by_events(self, file: FileEvidence, events: list[FileEvidence]) -> Decision:
        """Decide ``hparams.yaml``: it is written when the event file beside it is made."""
        beside = [event for event in events if event.source == file.source]
        if not self.keeps_times:
            if len(beside) == 1:
                found = self._decisions[beside[0].path]
                return Decision(found.launch, f"lies with {beside[0].name}")
            return self.by_home(file)
        distance, _, event = min(
            ((abs((event.born or 0.0) - file.mtime), event.path, event) for event in (beside or events)),
            default=(SETTING_UP + 1, "", None),
        )
        if event is not None and distance <= SETTING_UP:
            found = self._decisions[event.path]
            return Decision(found.launch, f"written {distance:.1f} s from {event.path}")
        alive = self.timeline.alive_at(file.mtime)
        if len(alive) == 1:
            return Decision(alive[0], f"written at {clock(file.mtime)}, after the start of {clock(alive[0].start)}")
        return self.unsure(alive, f"written at {clock(file.mtime)}")

    def _by_company(self, file: FileEvidence) -> Decision:
        """Decide a file that NeMo does not make, but moves."""
        near = self.timeline.around(file.mtime)
        if self.keeps_times:
            alive = [launch for launch in near if launch.start - SLACK <= file.mtime <= launch.end + SLACK]
            alive = [launch for launch in alive if launch.home == file.source] or alive
            if len(alive) == 1:
                return Decision(
                    alive[0], f"written at {clock(file.mtime)}, during the launch of {clock(alive[0].start)}"
                )
            if len(alive) > 1:
                return self.unsure(alive, f"written at {clock(file.mtime)}")
        same = self.timeline.at_home(file.source)
        if same and self._places.get(file.source) is not Place.TOP:
            if len(same) == 1:
                return Decision(same[0], "not NeMo's, but moved here with the files of this launch")
            same = [launch for launch in near if launch.home == file.source]
            return self.unsure(same, "not NeMo's, but moved here with the files of several launches")
        return Decision(None, "not a file of NeMo, and not written during a launch")

    def settle(self, file: FileEvidence, decision: Decision, end: float | None) -> None:
        """Keep a decision, and count the file as its launch's.

        Args:
            file: The file.
            decision: Whose it is.
            end: A sign of life of the launch in it, if there is one; Unix time.
        """
        self._decisions[file.path] = decision
        if decision.launch is not None:
            decision.launch.add(file, end)
            if not decision.launch.is_uncertain and decision.launch.home is None and file.kind is not Kind.EVENTS:
                self.timeline.settle_home(decision.launch, file.source)
        for launch in decision.also:
            launch.files.append(file)

    def share(self, file: FileEvidence, launches: Sequence[PastLaunch], reason: str) -> None:
        """Say of a file whose launch is known that further launches wrote into it."""
        known = self._decisions[file.path]
        if launches and known.launch is not None:
            self._decisions[file.path] = Decision(known.launch, reason, (*known.also, *launches))
            for launch in launches:
                launch.files.append(file)

    def unsure(self, candidates: Sequence[PastLaunch], words: str) -> Decision:
        """Return the collection of the files that any of some launches could have made."""
        key = tuple(sorted(id(launch) for launch in candidates))
        known = self._uncertain.get(key)
        if known is None:
            ordered = tuple(sorted(candidates, key=lambda launch: launch.start))
            start = ordered[0].start if ordered else (self.launches[0].start if self.launches else 0.0)
            known = PastLaunch(
                start, "files whose launch is not known", None, start, "", [], ordered, is_uncertain=True
            )
            self._uncertain[key] = known
        names = " or ".join(clock(launch.start) for launch in known.candidates) or "none that is known"
        return Decision(known, f"uncertain: {words}; possible launches: {names}")

    def segments(self, file: FileEvidence) -> Iterator[tuple[float, float]]:
        """Yield begin and end of the parts of a log; headings of the ranks of one launch begin one part."""
        ends: dict[float, float | None] = {}
        for begin, end_before in zip(file.headers, file.ends, strict=True):
            ends.setdefault(begin, end_before)
        if not ends and file.first is not None:
            ends[file.first] = None
        if not ends:
            return
        begins = list(ends)
        for begin, following in zip(begins, [*begins[1:], None], strict=True):
            end = file.last if following is None else ends[following]
            if end is None:
                end = begin if following is None else following
            yield self.time(file, begin), self.time(file, max(begin, end))

    def time(self, file: FileEvidence, stamp: float) -> float:
        """Return the Unix time of a stamp in a file."""
        return stamp + (file.zone if file.zone is not None else self.zone)

    def last_time(self, file: FileEvidence) -> float | None:
        """Return the Unix time of the last stamp in a file."""
        return None if file.last is None else self.time(file, file.last)


def clock(seconds: float) -> str:
    """Return a time for people, to the second."""
    return _clock(int(seconds // 1))


@lru_cache(maxsize=1 << 14)
def _clock(seconds: int) -> str:
    return format_time(seconds)[:19].replace("T", " ") + "Z"
