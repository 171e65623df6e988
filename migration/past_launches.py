"""The launches of one log directory by time: which started near a moment, which were alive then; pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from migration.evidence import FileEvidence
    from migration.file_kinds import Kind

SECOND: Final = 1.0
"""Stamps and the names of event files are cut to whole seconds."""

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


class Timeline:
    """The launches of one log directory, in the order of their starts.

    Attributes:
        launches: By start.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.launches: list[PastLaunch] = []
        self._starts: list[float] = []
        self._at_home: dict[str, list[PastLaunch]] = {}

    def add(self, start: float, why: str, home: str | None) -> PastLaunch:
        """Add a launch of which this is the first that is known, and return it."""
        launch = PastLaunch(start, why, home, start, why)
        position = bisect_right(self._starts, start)
        self._starts.insert(position, start)
        self.launches.insert(position, launch)
        if home is not None:
            self._at_home.setdefault(home, []).append(launch)
        return launch

    def settle_home(self, launch: PastLaunch, home: str) -> None:
        """Say where the files of rank zero of a launch lie, which had none so far."""
        launch.home = home
        self._at_home.setdefault(home, []).append(launch)

    def drop_empty(self) -> None:
        """Forget the launches of which no file is left."""
        self.launches = [launch for launch in self.launches if launch.files]
        self._starts = [launch.start for launch in self.launches]
        self._at_home = {}
        for launch in self.launches:
            if launch.home is not None:
                self._at_home.setdefault(launch.home, []).append(launch)

    def at_home(self, source: str) -> list[PastLaunch]:
        """Return the launches whose files of rank zero lie in a directory, by start."""
        return sorted(self._at_home.get(source, ()), key=lambda launch: launch.start)

    def before(self, time: float) -> list[PastLaunch]:
        """Return the launches that had started at a time."""
        return self.launches[: bisect_right(self._starts, time)]

    def around(self, time: float) -> list[PastLaunch]:
        """Return the launches that started around a time: some before and the next one."""
        position = bisect_right(self._starts, time + SECOND)
        return self.launches[max(0, position - _NEIGHBOURS) : position + 1]

    def alive_at(self, time: float) -> list[PastLaunch]:
        """Return the launches that were alive at a time, or else the one that had started last."""
        position = bisect_right(self._starts, time + SECOND / 2)
        started = self.launches[max(0, position - _NEIGHBOURS) : position]
        return [launch for launch in started if launch.end >= time] or started[-1:]

    def next_start(self, launch: PastLaunch) -> float:
        """Return when the next launch started."""
        position = bisect_right(self._starts, launch.start)
        return self._starts[position] if position < len(self._starts) else float("inf")

    def started_near(self, time: float, home: str | None, *, before: float, after: float) -> PastLaunch | None:
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
