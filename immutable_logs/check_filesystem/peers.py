"""Try what one host sees of another's doing on a mount; each function is called on both, and measured by the first.

One-way times are halves of round trips: the clocks of two hosts cannot be compared that exactly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from immutable_logs import durable_files
from immutable_logs.agreement import JOIN_WINDOW
from immutable_logs.check_filesystem.content import append_lines_of, judge_appends, no_locks, try_lock
from immutable_logs.check_filesystem.findings import DEGRADED, HOLDS, MISSING, Finding
from immutable_logs.check_filesystem.marks import FILES, LINKS
from immutable_logs.check_filesystem.meeting import FIRST, SECOND
from immutable_logs.durable_files import VISIBILITY_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from immutable_logs.check_filesystem.marks import Marks
    from immutable_logs.check_filesystem.meeting import Meeting

_TRIPS: Final = 3
_SLOW_TRIPS: Final = 2
"""How often is tried what can take a minute on NFS."""

_RACES: Final = 100
_BETWEEN_RACES: Final = 0.01
_BETWEEN_TRIPS: Final = 0.2
"""Seconds in which the other begins to look for what is not there yet, which is what a client caches."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the first knows of the second's clock, and how long news takes; the second knows nothing.

    Attributes:
        ahead: Seconds by which the second's clock is ahead.
        accuracy: Seconds by which that can be wrong.
        listed: The longest time, in seconds, until a new name was seen by listing the directory.
        asked: The longest time, in seconds, until one was seen by asking for it, again and again from before it was
            there.
    """

    ahead: float = 0.0
    accuracy: float = 0.0
    listed: float = 0.0
    asked: float = 0.0

    @property
    def one_way(self) -> float:
        """Seconds until a rank sees a new name, which asks and lists in turn."""
        return min(self.listed, self.asked)


def measure_clocks(meeting: Meeting) -> Clocks:
    """Let messages go there and back; the second reads its clock when it has one."""
    listed = _trips(meeting, "listed", meeting.hear, _TRIPS)
    asked = _trips(meeting, "asked", meeting.hear_by_asking, _SLOW_TRIPS)
    if not meeting.is_first:
        return Clocks()
    shortest = min(listed + asked)
    return Clocks(shortest.ahead, shortest.seconds / 2, max(listed).seconds / 2, max(asked).seconds / 2)


def choose_marks(meeting: Meeting) -> Marks:
    """Return how a claim is put and read here."""
    try:
        LINKS.put(meeting.directory / f"probe.{meeting.me}", "target")
    except OSError as error:
        if not durable_files.is_without_links(error):
            raise
        return FILES
    return LINKS


def judge_clocks(clocks: Clocks) -> Finding:
    """Return what the difference of the clocks means."""
    is_far = abs(clocks.ahead) > JOIN_WINDOW
    direction = "ahead" if clocks.ahead > 0 else "behind"
    return Finding(
        "clocks of two hosts",
        DEGRADED if is_far else HOLDS,
        f"the other's is {abs(clocks.ahead):.3f} s {direction}, give or take {clocks.accuracy:.3f} s",
        "launches that only an address tells apart need IMMUTABLE_LOGS_LAUNCH_ID; merged logs are out of order"
        if is_far
        else "merged logs are in order to within this difference",
        {"ahead_seconds": round(clocks.ahead, 6), "accuracy_seconds": round(clocks.accuracy, 6)},
    )


def judge_new_names(clocks: Clocks) -> Finding:
    """Return what it means how long the other takes to see a new name."""
    is_in_time = clocks.one_way <= VISIBILITY_TIMEOUT
    return Finding(
        "new names on two hosts",
        HOLDS if is_in_time else MISSING,
        f"seen after {clocks.listed:.3f} s by listing the directory, {clocks.asked:.3f} s by asking for the name",
        f"ranks find their run in time: they ask and list in turn, up to {VISIBILITY_TIMEOUT:.0f} s"
        if is_in_time
        else f"ranks on other nodes give up after {VISIBILITY_TIMEOUT:.0f} s: do not use the immutable layout here",
        {"listed_seconds": round(clocks.listed, 6), "asked_seconds": round(clocks.asked, 6)},
    )


def check_switch(meeting: Meeting, marks: Marks) -> Finding:
    """Measure when the other reads the new content of a name that has been renamed over."""
    mine, theirs = (meeting.directory / f"switched-by-{end}" for end in (meeting.me, meeting.other))
    marks.put(mine, "0")
    meeting.exchange("switches-begin", None)

    def signal(number: int) -> None:
        private = mine.with_name(f"{mine.name}-{number}")
        marks.put(private, str(number))
        durable_files.replace(private, mine)

    longest = 0.0
    for number in range(1, _SLOW_TRIPS + 1):
        begin = time.monotonic()
        if meeting.is_first:
            signal(number)
        meeting.wait_for(partial(_reads, marks, theirs, str(number)), "switch")
        if not meeting.is_first:
            signal(number)
        longest = max(longest, (time.monotonic() - begin) / 2)
    return Finding(
        "switch on two hosts",
        HOLDS,
        f"the new content is read after {longest:.3f} s",
        "until then `latest` shows the run before on other hosts; ranks do not look at it",
        {"seconds": round(longest, 6)},
    )


def check_races(meeting: Meeting, marks: Marks, clocks: Clocks) -> Finding:
    """Let both create the same names at the same time: each must be made by one, and both must read that one's."""
    begin = _appointment(meeting, clocks, "races")
    won = []
    for number in range(_RACES):
        _sleep_until(begin + number * _BETWEEN_RACES)
        won.append(marks.put(meeting.directory / f"race-{number}", meeting.me))
    meeting.exchange("races-run", None)
    seen = [
        durable_files.wait_until_visible(partial(marks.read, path), path)
        for path in (meeting.directory / f"race-{number}" for number in range(_RACES))
    ]
    answer = meeting.exchange("races-judged", [won, seen])
    wrong = sum(
        ours == theirs or our_reading != their_reading or our_reading != (meeting.me if ours else meeting.other)
        for ours, our_reading, theirs, their_reading in zip(won, seen, *answer, strict=True)
    )
    met = "" if 0 < sum(won) < _RACES else "; one host was always first, so this says little of true races"
    return Finding(
        "exclusive names on two hosts",
        MISSING if wrong else HOLDS,
        f"{_RACES - wrong} of {_RACES} races had one winner, whom both hosts saw{met}",
        "one rank's claim decides for all nodes"
        if not wrong
        else "the nodes of a launch can land in different runs: do not use the immutable layout here",
        {"races": _RACES, "wrong": wrong, "won_here": sum(won)},
    )


def check_locks(meeting: Meeting) -> Finding:
    """Hold a lock on one host, and ask for it on the other, while it is held and after."""
    path = meeting.directory / "lock"
    name = "locks on two hosts"
    if meeting.is_first:
        with durable_files.locked(path, timeout=0) as is_held:
            taken_too = meeting.exchange("lock-held", None)
        taken_after = meeting.exchange("lock-free", None)
    else:
        meeting.hear("lock-held")
        is_held = True
        taken_too = try_lock(path)
        meeting.say("lock-held", taken_too)
        meeting.hear("lock-free")
        taken_after = try_lock(path)
        meeting.say("lock-free", taken_after)
    if not is_held or not taken_after:
        return no_locks("there are none", name)
    if taken_too:
        return no_locks("each host has locks of its own", name)
    return Finding(name, HOLDS, "held on one host, refused on the other", "two launches never mix their publishing")


def check_appends(meeting: Meeting, clocks: Clocks) -> Finding:
    """Append to one file from both hosts at once, without a lock."""
    path = meeting.directory / "appended"
    _sleep_until(_appointment(meeting, clocks, "appends"))
    append_lines_of(path, meeting.me)
    meeting.exchange("appends-done", None)
    return judge_appends(path, writers=[FIRST, SECOND], where="on two hosts", name="appends on two hosts")


class _Trip(NamedTuple):
    """A message there and one back.

    Attributes:
        seconds: How long both took.
        ahead: Seconds by which the second's clock then seemed to be ahead.
    """

    seconds: float
    ahead: float


def _trips(meeting: Meeting, kind: str, hear: Callable[[str], Any], count: int) -> list[_Trip]:
    """Return what the first measured; nothing on the second's side."""
    trips = []
    for topic in (f"{kind}-{number}" for number in range(count)):
        if not meeting.is_first:
            hear(topic)
            meeting.say(topic, time.time())
            continue
        time.sleep(_BETWEEN_TRIPS)
        sent, begin = time.time(), time.monotonic()
        meeting.say(topic)
        theirs = hear(topic)
        seconds = time.monotonic() - begin
        trips.append(_Trip(seconds, theirs - (sent + seconds / 2)))
    return trips


def _appointment(meeting: Meeting, clocks: Clocks, topic: str) -> float:
    """Return a moment that both wait for, each by its own clock."""
    if not meeting.is_first:
        moment = float(meeting.hear(f"{topic}-at"))
        meeting.say(f"{topic}-at")
        return moment
    begin = time.time() + 2 * clocks.one_way + _BETWEEN_TRIPS
    meeting.say(f"{topic}-at", begin + clocks.ahead)
    meeting.hear(f"{topic}-at")
    return begin


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))


def _reads(marks: Marks, path: Path, expected: str) -> bool:
    return marks.read(path) == expected
