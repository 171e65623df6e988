"""What went wrong in the runs that ended badly: the rank that failed first on top, the rest to be unfolded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from immutable_logs.log_reading.failure_order import shorten_traceback
from immutable_logs.rank_entries import format_ranges
from immutable_logs.report.markup import Markup, element, lines, shorten
from immutable_logs.report.status import draw_sign
from immutable_logs.report.wording import counted, run_link
from immutable_logs.run_failure import who_failed

if TYPE_CHECKING:
    from immutable_logs.log_reading.failure_order import Failure
    from immutable_logs.run_failure import RunFailure

_MAX_TEXT: Final = 4000
_MAX_ERRORS_OF_A_RUN: Final = 5
_MAX_SUMMARY: Final = 300


def draw_failure(failure: RunFailure, shown: set[str]) -> Markup:
    """Return what went wrong in a run."""
    run = failure.run
    heading = element("h3", draw_sign(run.status), run_link(run.id, shown, is_short=False), f" {run.status}")
    parts: list[Markup | None] = [heading, *_draw_verdict(failure)]
    found = failure.verdict.failures
    parts += [_draw_error(each, is_open=each is failure.verdict.first) for each in found[:_MAX_ERRORS_OF_A_RUN]]
    if len(found) > _MAX_ERRORS_OF_A_RUN:
        parts.append(
            element("p", f"{counted(len(found) - _MAX_ERRORS_OF_A_RUN, 'other error')} left out", class_="hint")
        )
    # Of a run without any error all ranks are silent, which says nothing of one that was interrupted.
    if found or run.status != "interrupted":
        parts.append(_draw_silent(failure))
    parts += [element("p", f"Could not be read: {problem}", class_="hint") for problem in failure.problems]
    return element("article", *parts, class_="failure")


def _draw_verdict(failure: RunFailure) -> list[Markup]:
    verdict = failure.verdict
    if verdict.first is not None:
        when = f", at {verdict.first.time}" if verdict.first.time else ""
        who = element("strong", f"{shorten(who_failed(verdict.first))} failed first")
        summary = element("code", shorten(verdict.first.summary, _MAX_SUMMARY))
        return [element("p", who, f"{when}: ", summary, class_="verdict")]
    if verdict.failures:
        return [element("p", f"{shorten(line, _MAX_SUMMARY)}.") for line in failure.explain()]
    if failure.problems and not failure.scanned:
        return [element("p", "Its logs cannot be read.")]
    return [element("p", f"No error in its logs ({shorten(failure.run.evidence)}).")]


def _draw_error(failure: Failure, *, is_open: bool) -> Markup:
    words = f"{shorten(who_failed(failure))}{f' at {failure.time}' if failure.time else ''}"
    if failure.is_echo:
        words += ", which tells only that another rank was gone or that it was ended"
    if not failure.is_exact:
        words += "; the text is that of the first, the others differ a little"
    text = failure.summary if failure.is_echo else shorten_traceback(failure.text)
    return element(
        "details",
        element("summary", words),
        element("pre", lines(_cut(text.rstrip())), tabindex=0),
        open=True if is_open else None,
    )


def _cut(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    half = _MAX_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"


def _draw_silent(failure: RunFailure) -> Markup | None:
    silent = failure.verdict.silent
    if not silent:
        return None
    ranks = shorten(format_ranges(sorted(each.rank for each in silent)))
    last = next((each for each in silent if each.last_time), None)
    fell = ""
    if last is not None:
        process = f" ({shorten(failure.processes[last.rank])})" if last.rank in failure.processes else ""
        fell = f"; rank {last.rank}{process} fell silent first, at {last.last_time}"
    return element("p", f"Without an error: rank{'' if len(silent) == 1 else 's'} {ranks}{fell}", class_="hint")
