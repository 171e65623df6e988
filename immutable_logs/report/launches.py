"""The table of the launches, and how the newest of them was started."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from immutable_logs.cli.plain_text import NOTHING
from immutable_logs.report.markup import Markup, element, join, shorten
from immutable_logs.report.status import status_label
from immutable_logs.report.wording import anchor, duration, moment, number, place, ranks, run_link

if TYPE_CHECKING:
    from immutable_logs.catalog import RunDetails, RunSummary
    from immutable_logs.report.contents import Contents

_HEADINGS: Final = ("Run", "Status", "Started", "Duration", "Ranks", "Step", "Where", "Resumed from")
_NUMBERS: Final = frozenset({"Duration", "Ranks", "Step"})
_LABELLED: Final = _NUMBERS | {"Resumed from"}
"""Where the value alone does not tell what it is."""

_MAX_COMMAND: Final = 2000
_MAX_PACKAGES: Final = 30


def draw_launches(contents: Contents) -> Markup:
    """Return the table; on a phone the style sheet makes a card of each row, for which each cell has its heading."""
    shown = {run.id for run in contents.runs}
    heading = element("tr", *(element("th", text, scope="col") for text in _HEADINGS))
    rows = join(_row(run, contents, shown) for run in contents.runs)
    caption = element("caption", "The newest launch is at the top")
    return element("div", element("table", caption, element("thead", heading), element("tbody", rows)), class_="table")


def _row(run: RunSummary, contents: Contents, shown: set[str]) -> Markup:
    latest = element("span", "latest", class_="badge") if run.id == contents.latest else None
    cells = (
        element("span", element("span", run.id, class_="id"), latest),
        status_label(run.status),
        moment(run.started),
        duration(run, contents.made),
        ranks(run),
        number(_last_step(run, contents)),
        place(run),
        run_link(contents.parents.get(run.id), shown),
    )
    first, *rest = cells
    head = element("th", first, scope="row")
    others = (_cell(label, cell, run) for label, cell in zip(_HEADINGS[1:], rest, strict=True))
    return element("tr", head, *others, id=anchor(run.id))


def _cell(label: str, value: object, run: RunSummary) -> Markup:
    classes = ["nothing"] if value == NOTHING else []
    classes += ["number"] if label in _NUMBERS else []
    classes += ["labelled"] if label in _LABELLED else []
    evidence = shorten(run.evidence) if label == "Status" else None
    return element("td", value, data_label=label, class_=" ".join(classes) or None, title=evidence)


def _last_step(run: RunSummary, contents: Contents) -> int | None:
    """Return the last step as recorded at the end, else as the curve has it."""
    if run.step is not None:
        return run.step
    return contents.steps[run.id][1] if run.id in contents.steps else None


def draw_newest(details: RunDetails) -> Markup:
    """Return how a run was started; not its configuration, which is not for everyone whom a report reaches."""
    run, record = details.summary, details.run_record
    facts: list[tuple[str, object]] = [
        ("Run", element("span", run.id, class_="id")),
        ("Status", element("span", status_label(run.status), f" ({shorten(run.evidence)})")),
        ("Directory", shorten(run.path, _MAX_COMMAND)),
    ]
    if record is not None:
        command = shorten(shlex.join(map(str, record.arguments)), _MAX_COMMAND) or NOTHING
        versions = ", ".join(f"{name} {version}" for name, version in list(record.versions.items())[:_MAX_PACKAGES])
        facts += [
            ("Command", element("code", command)),
            ("Started in", record.working_directory),
            ("Started by", record.user),
            ("Commit", record.git_commit),
            ("Checkpoint", record.checkpoint or "from nothing"),
            ("Versions", versions),
        ]
    pairs = [
        element(
            "div",
            element("dt", label),
            element("dd", value if isinstance(value, Markup) else shorten(value or NOTHING, _MAX_COMMAND)),
        )
        for label, value in facts
    ]
    problems = [element("p", f"Could not be read: {shorten(each, 500)}", class_="hint") for each in details.problems]
    return element("div", element("dl", *pairs), *problems)
