"""The page as a whole. It loads nothing and runs nothing, which its first lines also tell the browser to enforce."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from immutable_logs.cli.plain_text import NOTHING
from immutable_logs.report.curve import draw_curves, loss_parts
from immutable_logs.report.failures import draw_failure
from immutable_logs.report.launches import draw_launches, draw_newest
from immutable_logs.report.lineage import draw_lineages
from immutable_logs.report.markup import Markup, element, join, shorten
from immutable_logs.report.status import draw_sign, status_symbols
from immutable_logs.report.timeline import draw_timeline
from immutable_logs.report.wording import counted, moment, number, run_link, scalar

if TYPE_CHECKING:
    from immutable_logs.report.contents import Contents

GENERATOR: Final = "immutable-logs report"
"""What the page calls its maker; by it an older report is known."""


def render_page(contents: Contents) -> bytes:
    """Return the page."""
    # Inside `<style>` nothing is escaped; it is this package's own file, without a value from anywhere.
    style = Markup(files(__package__).joinpath("style.css").read_text(encoding="utf-8"))
    digest = b64encode(sha256(style.encode()).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    name = shorten(contents.path.name or contents.path)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="generator", content=GENERATOR),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{name}: {counted(contents.total, 'run')}"),
        element("style", style),
    )
    body = element(
        "body",
        status_symbols(),
        _header(contents, name),
        element("main", join(_sections(contents))),
        _footer(contents),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n".encode()


def _header(contents: Contents, name: str) -> Markup:
    shown = {run.id for run in contents.runs}
    facts = [element("p", "No runs yet.")]
    if contents.runs:
        latest = next((run for run in contents.runs if run.id == contents.latest), None)
        words: list[object] = [_last_loss(contents)]
        if latest is not None:
            words += [" Latest run: ", run_link(latest.id, shown, is_short=False), f", {latest.status}."]
        elif contents.latest is None:
            words.append(" No link `latest` shows one of the runs.")
        facts = [_counts(contents), element("p", *words)]
    return element(
        "header",
        element("p", f"Experiment report, made {moment(contents.made)} UTC", class_="kind"),
        element("h1", name),
        element("p", shorten(contents.path, 500), class_="path"),
        *facts,
        *(element("p", text, class_="warning") for text in _warnings(contents)),
        _navigation(contents) if contents.runs else None,
    )


def _navigation(contents: Contents) -> Markup:
    names = {"timeline": "Timeline", "loss": "Loss", "lineage": "Lineage"}
    names.update({"errors": "First errors"} if contents.failures else {})
    names.update({"launches": "Launches"})
    return element(
        "nav", *(element("a", text, href=f"#{name}") for name, text in names.items()), aria_label="Sections"
    )


def _counts(contents: Contents) -> Markup:
    total = element("li", element("strong", f"{contents.total:,}"), " run" if contents.total == 1 else " runs")
    counts = [
        element("li", draw_sign(status), element("strong", f"{count:,}"), f" {shorten(status, 30)}")
        for status, count in contents.counts.items()
    ]
    return element("ul", total, *counts, class_="counts")


def _last_loss(contents: Contents) -> str:
    for curve in contents.curves:
        parts = loss_parts(curve)
        if parts:
            return f"Last loss {scalar(parts[-1].values[-1])} at step {number(parts[-1].steps[-1])}."
    step = next((run.step for run in contents.runs if run.step is not None), None)
    return "" if step is None else f"Last step {number(step)}."


def _warnings(contents: Contents) -> list[str]:
    found = []
    if len(contents.runs) < contents.total:
        found.append(
            f"Shown are the newest {len(contents.runs):,} of {counted(contents.total, 'run')}; "
            "immutable-logs report --last N shows more"
        )
    if contents.damaged_lines:
        found.append(
            f"Lines of the manifest that cannot be read: {contents.damaged_lines:,}. "
            "No run is lost by it: runs are found by their directories too"
        )
    return found


def _sections(contents: Contents) -> list[Markup]:
    if not contents.runs:
        return []
    shown = {run.id for run in contents.runs}
    sections = [
        _section("timeline", "Timeline", None, draw_timeline(contents.runs, contents.parents, contents.made)),
        _section("loss", "Loss", None, *_loss(contents)),
        _section("lineage", "Lineage", None, draw_lineages(contents)),
    ]
    if contents.failures:
        more = None
        if contents.failures_left_out:
            more = (
                f"The newest {len(contents.failures)} runs that ended badly. {contents.failures_left_out:,} more: "
                "immutable-logs logs RUN --errors tells of each"
            )
        drawn = (draw_failure(each, shown) for each in contents.failures)
        sections.append(_section("errors", "First errors", more, *drawn))
    sections.append(_section("launches", "Launches", None, draw_launches(contents)))
    if contents.newest is not None:
        which = "Latest run" if contents.newest.summary.id == contents.latest else "Newest run"
        sections.append(_section("newest", which, None, draw_newest(contents.newest)))
    return sections


def _loss(contents: Contents) -> list[Markup]:
    drawn = []
    if contents.curve_problem is not None:
        drawn += [element("p", each, class_="hint") for each in contents.curve_problem.split("\n")]
    elif any(loss_parts(curve) for curve in contents.curves):
        drawn.append(draw_curves(contents.curves))
        drawn.append(
            element(
                "p",
                "Circles mark where a run was resumed. Steps that were trained again are drawn once, as the later run "
                "has them.",
                class_="hint",
            )
        )
    else:
        drawn.append(element("p", "No run that is shown has event files with a training loss.", class_="hint"))
    problems = [problem for curve in contents.curves for problem in curve.curves.problems]
    return drawn + [element("p", f"Could not be read: {shorten(each, 500)}", class_="hint") for each in problems[:5]]


def _section(name: str, heading: str, hint: str | None, *content: Markup) -> Markup:
    said = None if hint is None else element("p", hint, class_="hint")
    return element(
        "section",
        element("h2", heading, id=f"{name}-heading"),
        said,
        *content,
        id=name,
        aria_labelledby=f"{name}-heading",
    )


def _footer(contents: Contents) -> Markup:
    version = shorten(contents.version or NOTHING)
    return element(
        "footer",
        element(
            "p",
            f"Made {moment(contents.made)} UTC by immutable-logs {version}. All times are UTC, but for those in logs.",
        ),
    )
