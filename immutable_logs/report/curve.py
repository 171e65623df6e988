"""The training loss over the global step, a line for each lineage, with the places where it was resumed."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from immutable_logs.cli.plain_text import NOTHING
from immutable_logs.report.markup import Markup, element, shorten
from immutable_logs.report.scale import Scale, step_scale, thin_out, value_scale
from immutable_logs.report.wording import compact, counted, number, scalar, short_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from immutable_logs.curves import Segment
    from immutable_logs.report.contents import LineageCurve

_HEIGHT: Final = 280
_MARGIN: Final = 10
_WIDTH: Final = 1000
"""Of the plane in which lines are drawn; it is stretched to the width of the page."""

_LABELS_ON_A_PHONE: Final = 3


def draw_curves(curves: Sequence[LineageCurve]) -> Markup:
    """Return the drawing and its legend.

    Args:
        curves: The curves, the newest first; each has a loss.
    """
    drawn = [(each, parts) for each in curves if (parts := loss_parts(each))]
    values = [value for _, parts in drawn for part in parts for value in part.values if math.isfinite(value)]
    legend = element(
        "ul", *(_legend(index, each, parts) for index, (each, parts) in enumerate(drawn)), class_="legend"
    )
    if not values:
        return legend
    steps = [step for _, parts in drawn for part in parts for step in part.steps]
    x, y = step_scale(min(steps), max(steps)), value_scale(values)
    lines = [_line(index, parts, x, y) for index, (_, parts) in enumerate(drawn)]
    plane = element("svg", *lines, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", preserveAspectRatio="none", height=_HEIGHT)
    marks = [
        mark
        for index, (_, parts) in enumerate(drawn)
        for mark in _resumes(index, parts, x, y, is_alone=len(drawn) == 1)
    ]
    plot = element(
        "svg",
        *_grid(x, y),
        plane,
        *marks,
        class_="plot",
        height=_HEIGHT + 24,
        role="img",
        aria_label=f"Training loss over the global step, {scalar(min(values))} at the lowest",
    )
    tags = sorted({each.curves.loss_tag or NOTHING for each, _ in drawn})
    kind = ", on a logarithmic axis" if y.is_logarithmic else ""
    caption = element("p", element("code", shorten(", ".join(tags))), f" over the global step{kind}", class_="caption")
    return element("div", caption, element("div", _values(y), plot, class_="chart"), legend)


def loss_parts(curve: LineageCurve) -> list[Segment]:
    """Return the parts of the loss, one for each run."""
    tag = curve.curves.loss_tag
    return [] if tag is None else curve.curves.by_tag.get(tag, [])


def _vertical(value: float, y: Scale) -> float:
    return _MARGIN + (1 - y.position(value)) * (_HEIGHT - 2 * _MARGIN)


def _line(index: int, parts: Sequence[Segment], x: Scale, y: Scale) -> Markup:
    """Return the line, interrupted where a value is no number."""
    commands = []
    for piece in _finite_pieces(parts):
        for position, (step, value) in enumerate(thin_out(*zip(*piece, strict=True))):
            commands.append(f"{'L' if position else 'M'}{_WIDTH * x.position(step):.1f} {_vertical(value, y):.1f}")
        if len(piece) == 1:
            # A point alone: a line without length is drawn as a dot, with round ends.
            commands.append("h0")
    return element("path", d="".join(commands), class_=f"line line-{index}")


def _finite_pieces(parts: Sequence[Segment]) -> list[list[tuple[int, float]]]:
    pieces: list[list[tuple[int, float]]] = [[]]
    for part in parts:
        for step, value in zip(part.steps, part.values, strict=True):
            if math.isfinite(value):
                pieces[-1].append((step, value))
            elif pieces[-1]:
                pieces.append([])
    return [piece for piece in pieces if piece]


def _resumes(index: int, parts: Sequence[Segment], x: Scale, y: Scale, *, is_alone: bool) -> list[Markup]:
    """Return the marks where each run but the first takes over."""
    drawn: list[Markup] = []
    for before, part in pairwise(parts):
        step = part.steps[0]
        place = f"{100 * x.position(step):.2f}%"
        hint = element("title", f"{part.run} goes on from {before.run} at step {number(step)}")
        if is_alone:
            drawn.append(
                element("line", hint, x1=place, y1=_MARGIN, x2=place, y2=_HEIGHT - _MARGIN, class_="resume-line")
            )
        value = next((each for each in part.values if math.isfinite(each)), None)
        if value is not None:
            drawn.append(
                element(
                    "circle", hint, cx=place, cy=f"{_vertical(value, y):.1f}", r=4.5, class_=f"resume line-{index}"
                )
            )
    return drawn


def _grid(x: Scale, y: Scale) -> list[Markup]:
    drawn = []
    for mark in y.marks:
        height = f"{_vertical(mark, y):.1f}"
        drawn.append(element("line", x1="0", y1=height, x2="100%", y2=height, class_="grid"))
    stride = max(1, math.ceil(len(x.marks) / _LABELS_ON_A_PHONE))
    for index, mark in enumerate(x.marks):
        position = x.position(mark)
        place = f"{100 * position:.2f}%"
        side = "start" if position < 0.04 else "end" if position > 0.96 else "middle"  # noqa: PLR2004
        drawn.append(element("line", x1=place, y1=_HEIGHT - _MARGIN, x2=place, y2=_HEIGHT - 4, class_="tick"))
        kind = "label" if index % stride == 0 else "label minor"
        drawn.append(element("text", compact(mark), x=place, y=_HEIGHT + 14, text_anchor=side, class_=kind))
    return drawn


def _values(y: Scale) -> Markup:
    labels = [
        element("text", f"{mark:.6g}", x="100%", y=f"{_vertical(mark, y) + 4:.1f}", text_anchor="end", class_="label")
        for mark in y.marks
    ]
    return element("svg", *labels, class_="values", height=_HEIGHT + 24, aria_hidden="true")


def _legend(index: int, curve: LineageCurve, parts: Sequence[Segment]) -> Markup:
    sample = element(
        "svg",
        element("path", d="M1 6H33", class_=f"line line-{index}"),
        class_="sample",
        viewBox="0 0 34 12",
        aria_hidden="true",
    )
    values = [value for part in parts for value in part.values]
    finite = [value for value in values if math.isfinite(value)]
    words = [f"last {scalar(values[-1])} at step {number(parts[-1].steps[-1])}"]
    if finite:
        words.append(f"lowest {scalar(min(finite))}")
    words.append(f"resumed {counted(len(parts) - 1, 'time')}" if len(parts) > 1 else "not resumed")
    if len(finite) < len(values):
        words.append(f"{counted(len(values) - len(finite), 'value')} not finite")
    name = element("strong", f"Lineage {shorten(short_id(curve.lineage))}", title=shorten(curve.lineage))
    return element("li", sample, element("span", name, f": {', '.join(words)}"))
