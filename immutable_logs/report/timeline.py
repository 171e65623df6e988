"""When the runs ran, a line for each, on one time axis, and which of them continues which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from immutable_logs.catalog import RUNNING, format_seconds
from immutable_logs.report.markup import Markup, element, join, shorten
from immutable_logs.report.status import draw_sign, status_class
from immutable_logs.report.time_axis import TimeAxis, side_of_label
from immutable_logs.report.wording import duration, moment, number, run_link

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from immutable_logs.catalog import RunSummary

_LEAST_WIDTH: Final = 0.3
_ROWS_WITH_AXIS_BELOW: Final = 25
_LONGEST_ARROW: Final = 25
"""Lines that an arrow crosses. Of a longer one the head alone is drawn: hundreds of runs can have resumed one run, and
their arrows, drawn whole, would hide each other and make the page large."""

_TOP: Final = "0"
_MIDDLE: Final = "50%"
_BOTTOM: Final = "100%"


def draw_timeline(runs: Sequence[RunSummary], parents: Mapping[str, str | None], now: float) -> Markup:
    """Return the timeline.

    Every line is a drawing of its own whose positions are shares of its width, so that it fits a phone and a sheet of
    paper with letters of one size, and can be divided between pages.

    Args:
        runs: The runs, the newest first; at least one.
        parents: For each run, the one that it continues.
        now: Unix time, which is where running ones end.
    """
    axis = TimeAxis((run.started, _end(run, now)) for run in runs)
    arrows = _Arrows(runs, parents, axis, now)
    shown = {run.id for run in runs}
    rows = []
    for index, run in enumerate(runs):
        label = element("span", draw_sign(run.status), run_link(run.id, shown), class_="name")
        track = element(
            "svg", element("use", href="#grid"), *arrows.of_row(index), _bar(run, axis, now), class_="track"
        )
        rows.append(element("li", label, track, element("span", duration(run, now), class_="duration")))
    scale = _draw_scale(axis)
    below = scale if len(rows) > _ROWS_WITH_AXIS_BELOW else None
    parts = _definitions(axis), scale, element("ol", join(rows)), below, _draw_breaks(axis)
    explanation = element("p", _explain(axis, arrows), class_="hint")
    return element("div", explanation, element("div", *parts, class_="timeline"))


def _explain(axis: TimeAxis, arrows: _Arrows) -> str:
    sentences = ["The newest run is at the top."]
    if arrows.are_there:
        sentences.append("Arrows lead from a run to those that resumed it.")
    if arrows.are_cut:
        sentences.append("Of a long arrow only the head is drawn.")
    if axis.breaks:
        sentences.append("In the grey bands nothing ran; they are drawn shorter than they were.")
    return " ".join(sentences)


def _end(run: RunSummary, now: float) -> float:
    if run.ended is not None:
        return max(run.started, run.ended)
    return max(run.started, now) if run.status == RUNNING else run.started


def _bar(run: RunSummary, axis: TimeAxis, now: float) -> Markup:
    start, end = (100 * axis.position(each) for each in (run.started, _end(run, now)))
    words = [run.id, shorten(run.status), f"started {moment(run.started)} UTC"]
    if run.ended is not None or run.status == RUNNING:
        words.append(f"ran {duration(run, now)}")
    else:
        words.append("no end recorded")
    if run.step is not None:
        words.append(f"step {number(run.step)}")
    return element(
        "rect",
        element("title", ", ".join(words)),
        x=f"{min(start, 100 - _LEAST_WIDTH):.2f}%",
        y="28%",
        width=f"{max(_LEAST_WIDTH, end - start):.2f}%",
        height="44%",
        rx=2,
        class_=f"bar {status_class(run.status)}",
    )


class _Arrows:
    """The arrows from each run to those that continue it, cut into what is drawn on each line.

    Attributes:
        are_cut: Whether of some the head alone is drawn.
    """

    def __init__(
        self, runs: Sequence[RunSummary], parents: Mapping[str, str | None], axis: TimeAxis, now: float
    ) -> None:
        self._rows: dict[int, list[Markup]] = {}
        self.are_cut = False
        index_of = {run.id: index for index, run in enumerate(runs)}
        for child, run in enumerate(runs):
            parent = index_of.get(parents.get(run.id) or "")
            if parent is None or parent == child:
                continue
            across = f"{100 * axis.position(run.started):.2f}%"
            origin = f"{100 * axis.position(_end(runs[parent], now)):.2f}%"
            # The older one stands below; where records are wrong, it stands above.
            near, far, edge = (_BOTTOM, _TOP, "76%") if parent > child else (_TOP, _BOTTOM, "24%")
            self._add(child, (across, near), (across, edge), marker="url(#arrow)")
            if abs(parent - child) > _LONGEST_ARROW:
                self.are_cut = True
                continue
            for between in range(min(child, parent) + 1, max(child, parent)):
                self._add(between, (across, _TOP), (across, _BOTTOM))
            self._add(parent, (across, far), (across, _MIDDLE))
            self._add(parent, (origin, _MIDDLE), (across, _MIDDLE))

    @property
    def are_there(self) -> bool:
        """Whether there are any."""
        return bool(self._rows)

    def of_row(self, index: int) -> list[Markup]:
        """Return what is drawn on a line."""
        return self._rows.get(index, [])

    def _add(self, row: int, start: tuple[str, str], end: tuple[str, str], marker: str | None = None) -> None:
        (x1, y1), (x2, y2) = start, end
        line = element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="arrow", marker_end=marker)
        self._rows.setdefault(row, []).append(line)


def _definitions(axis: TimeAxis) -> Markup:
    """Return what every line refers to, so that a page of thousands stays small."""
    grid = [
        element(
            "rect",
            x=f"{100 * each.start:.2f}%",
            width=f"{100 * (each.end - each.start):.2f}%",
            height=_BOTTOM,
            class_="break",
        )
        for each in axis.breaks
    ]
    for tick in axis.ticks():
        place = f"{100 * tick.position:.2f}%"
        grid.append(element("line", x1=place, y1=_TOP, x2=place, y2=_BOTTOM, class_="grid"))
    arrow = element(
        "marker",
        element("path", d="M0 0 8 4 0 8Z", class_="arrowhead"),
        id="arrow",
        viewBox="0 0 8 8",
        refX=6,
        refY=4,
        markerWidth=7,
        markerHeight=7,
        orient="auto",
    )
    return element("svg", arrow, element("symbol", *grid, id="grid"), class_="symbols", aria_hidden="true")


def _draw_scale(axis: TimeAxis) -> Markup:
    """Return the line with the times."""
    texts = [
        _text(tick.position, tick.label, "label" if tick.is_main else "label minor", side_of_label(tick.position))
        for tick in axis.ticks()
        if tick.label
    ]
    return _scale_line("UTC", texts)


def _draw_breaks(axis: TimeAxis) -> Markup | None:
    """Return the line with the lengths of the idle times that are shortened; on a phone there is no room for it."""
    if not axis.breaks:
        return None
    texts = [_text((each.start + each.end) / 2, _first_unit(each.seconds), "idle", "middle") for each in axis.breaks]
    return _scale_line("idle", texts, "minor")


def _scale_line(name: str, texts: Sequence[Markup], class_: str = "") -> Markup:
    parts = (
        element("span", name, class_="name"),
        element("svg", *texts, class_="track"),
        element("span", class_="duration"),
    )
    return element("div", *parts, class_=f"scale {class_}".strip())


def _text(position: float, text: str, class_: str, side: str) -> Markup:
    return element("text", text, x=f"{100 * position:.2f}%", y="50%", class_=class_, text_anchor=side)


def _first_unit(seconds: float) -> str:
    return " ".join(format_seconds(seconds).split(" ")[:2])
