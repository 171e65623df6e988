"""A time axis on which long idle times take little room; pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from immutable_logs.report.wording import utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_IDLE_SHARE: Final = 0.15
_IDLE_AT_LEAST: Final = 600.0
"""An idle time is compressed if it is longer than this share of the busy time, and than so many seconds."""

_BREAK_WIDTH: Final = 0.05
_BREAKS_WIDTH: Final = 0.35
"""Room for one compressed time, and for all of them, as a share of the axis."""

_INTERVALS: Final = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)
_MINUTE: Final = 60
_DAY: Final = 86400
_MAX_TICKS: Final = 7
_LABEL_WIDTH: Final = 0.12
_LABEL_WIDTH_ON_A_PHONE: Final = 0.42
_NEAR_AN_END: Final = 0.18


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the axis.

    Attributes:
        position: Where, from 0 to 1.
        label: What stands there; empty where there is no room.
        is_main: Whether there is room for the label on a phone too.
    """

    position: float
    label: str
    is_main: bool


@dataclass(frozen=True, slots=True)
class Break:
    """An idle time that takes less room than its due: where it begins and ends on the axis, and how long it was."""

    start: float
    end: float
    seconds: float


@dataclass(frozen=True, slots=True)
class _Span:
    start: float
    end: float
    first: float
    last: float


class TimeAxis:
    """Where on an axis from 0 to 1 each moment lies.

    Attributes:
        breaks: The idle times that are compressed.
    """

    def __init__(self, times: Iterable[tuple[float, float]]) -> None:
        """Lay out the axis.

        Args:
            times: Beginning and end of everything to be shown, as Unix times; at least one.
        """
        busy = _merge(sorted(times))
        longest_idle = max(_IDLE_AT_LEAST, _IDLE_SHARE * sum(end - start for start, end in busy))
        spans = [busy[0]]
        for start, end in busy[1:]:
            if start - spans[-1][1] > longest_idle:
                spans.append((start, end))
            else:
                spans[-1] = (spans[-1][0], end)
        count = len(spans) - 1
        width = min(_BREAK_WIDTH, _BREAKS_WIDTH / count) if count else 0.0
        # At least a second each, so that even what began and ended at once has a place.
        lengths = [max(1.0, end - start) for start, end in spans]
        scale = (1 - width * count) / sum(lengths)
        self._spans: list[_Span] = []
        self.breaks: list[Break] = []
        position = 0.0
        for (start, end), length in zip(spans, lengths, strict=True):
            if self._spans:
                self.breaks.append(Break(position, position + width, start - self._spans[-1].end))
                position += width
            self._spans.append(_Span(start, end, position, position + length * scale))
            position += length * scale
        self._starts = [span.start for span in self._spans]

    def position(self, moment: float) -> float:
        """Return where a moment lies."""
        span = self._spans[max(0, bisect_right(self._starts, moment) - 1)]
        share = (moment - span.start) / max(1.0, span.end - span.start)
        return span.first + min(1.0, max(0.0, share)) * (span.last - span.first)

    def ticks(self) -> list[Tick]:
        """Return the marks, from left to right: the beginning of each span, and round times between."""
        busy = sum(span.end - span.start for span in self._spans)
        interval = next((each for each in _INTERVALS if busy / each <= _MAX_TICKS), None) or max(
            _DAY, round(busy / _MAX_TICKS / _DAY) * _DAY
        )
        moments = [(span.start, True) for span in self._spans]
        for span in self._spans:
            moment = (span.start // interval + 1) * interval
            while moment < span.end:
                moments.append((moment, False))
                moment += interval
        has_dates = self._spans[-1].end - self._spans[0].start >= _DAY
        moments.sort()
        positions = [self.position(moment) for moment, _ in moments]
        return _place(moments, positions, lambda moment: _label(moment, interval, has_date=has_dates))


def side_of_label(position: float) -> str:
    """Return which part of a label lies at its position, so that it does not stand out at an end of the axis."""
    return "start" if position < _NEAR_AN_END else "end" if position > 1 - _NEAR_AN_END else "middle"


def _place(
    moments: Sequence[tuple[float, bool]], positions: Sequence[float], label: Callable[[float], str]
) -> list[Tick]:
    """Give labels to those marks that have room for one, the beginnings of spans first, from both ends inwards."""
    on_a_page: list[float] = []
    on_a_phone: list[float] = []
    ticks = [Tick(position, "", is_main=False) for position in positions]
    order = sorted(range(len(moments)), key=lambda index: (not moments[index][1], -abs(positions[index] - 0.5)))
    for index in order:
        if _take_room(on_a_page, positions[index], _LABEL_WIDTH):
            is_main = _take_room(on_a_phone, positions[index], _LABEL_WIDTH_ON_A_PHONE)
            ticks[index] = Tick(positions[index], label(moments[index][0]), is_main)
    return ticks


def _take_room(taken: list[float], position: float, width: float) -> bool:
    """Put the beginning of a label to those that are taken, unless it would overlap one."""
    start = position - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[side_of_label(position)]
    if any(abs(start - other) < width for other in taken):
        return False
    taken.append(start)
    return True


def _label(moment: float, interval: float, *, has_date: bool) -> str:
    time = utc(moment)
    clock = time.strftime("%H:%M:%S" if interval < _MINUTE else "%H:%M")
    if not has_date:
        return clock
    date = f"{time.day} {time:%b}"
    return date if interval >= _DAY and clock.startswith("00:00") else f"{date} {clock}"


def _merge(times: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return times that overlap as one."""
    merged = [times[0]]
    for start, end in times[1:]:
        if start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
