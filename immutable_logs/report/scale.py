"""A number axis with round marks, and curves reduced to what can be seen; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOGARITHMIC_FROM: Final = 50.0
"""How many times the smallest value the largest is, where a curve on a plain axis would be a corner."""

_MAX_BUCKETS: Final = 400


@dataclass(frozen=True, slots=True)
class Scale:
    """A number axis.

    Attributes:
        low: Its smallest value.
        high: Its largest.
        marks: Round values on it.
        is_logarithmic: Whether equal distances are equal factors.
    """

    low: float
    high: float
    marks: tuple[float, ...]
    is_logarithmic: bool = False

    def position(self, value: float) -> float:
        """Return where a value lies, from 0 to 1."""
        if self.is_logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        # Halves, since the difference of two values can be more than a number holds.
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)


def step_scale(low: float, high: float) -> Scale:
    """Return an axis for steps, which ends where they end."""
    high = max(high, low + 1)
    return Scale(low, high, tuple(mark for mark in _round_marks(low, high, whole=True) if low <= mark <= high))


def value_scale(values: Sequence[float]) -> Scale:
    """Return an axis for finite values, at least one, with the marks at its ends."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= _LOGARITHMIC_FROM:
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        stride = max(1, len(exponents) // 6)
        tens = [10.0**exponent for exponent in exponents if exponent >= -307 and exponent <= 307]  # noqa: PLR2004
        if len(tens) > 1:
            return Scale(min(tens[0], low), max(tens[-1], high), tuple(tens[::stride]), is_logarithmic=True)
    if low == high:
        low, high = low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    if not math.isfinite(high - low):
        return Scale(low, high, (low, high))
    marks = _round_marks(low, high)
    return Scale(min(low, marks[0]), max(high, marks[-1]), tuple(marks))


def thin_out(steps: Sequence[int], values: Sequence[float]) -> list[tuple[int, float]]:
    """Return the points of a curve that can be seen: of many the smallest and the largest of each part.

    Args:
        steps: The steps.
        values: The value at each; all finite.
    """
    points = list(zip(steps, values, strict=True))
    if len(points) <= 2 * _MAX_BUCKETS:
        return points
    kept: list[tuple[int, float]] = [points[0]]
    for bucket in range(_MAX_BUCKETS):
        part = points[bucket * len(points) // _MAX_BUCKETS : (bucket + 1) * len(points) // _MAX_BUCKETS]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return [*kept, points[-1]]


def _round_marks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return four to eight round values, from at or below the smallest to at or above the largest."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
    size = next((factor * power for factor in (1, 2, 5, 10) if factor * power >= rough), 0.0)
    if whole:
        size = max(1.0, size)
    first, last = (math.floor(low / size), math.ceil(high / size)) if size else (0, 0)
    if not size or last - first > 20:  # noqa: PLR2004 - values so close that no number lies between them
        return [low, high]
    return [number * size for number in range(first, last + 1)]
