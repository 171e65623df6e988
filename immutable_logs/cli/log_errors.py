"""The output of `immutable-logs logs --errors`: who failed first, with what, and who left no error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import typer

from immutable_logs.cli.columns import paint
from immutable_logs.cli.plain_text import NOTHING, format_bytes, harmless, harmless_lines
from immutable_logs.cli.terminal import has_colours, note, print_json
from immutable_logs.log_reading.failure_order import shorten_traceback
from immutable_logs.log_reading.log_bytes import size_of
from immutable_logs.rank_entries import format_ranges
from immutable_logs.records import FORMAT
from immutable_logs.run_failure import find_failure, who_failed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from immutable_logs.catalog import Experiment, RunSummary
    from immutable_logs.log_reading.error_scan import ScannedLog
    from immutable_logs.log_reading.failure_order import Failure
    from immutable_logs.log_reading.log_files import LogFile
    from immutable_logs.run_failure import RunFailure

_MAX_SILENT_SHOWN: Final = 8


def print_errors(
    experiment: Experiment,
    run: RunSummary,
    logs: Sequence[LogFile],
    *,
    ranks: frozenset[int] | None,
    since: str,
    zone: int,
    as_json: bool,
) -> None:
    """Print what went wrong in a run.

    Args:
        experiment: The experiment.
        run: The run.
        logs: Its logs.
        ranks: Only these ranks; all where it is None.
        since: Only what was written from this moment on.
        zone: How many seconds the times in the logs are ahead of UTC.
        as_json: One JSON object instead of text.
    """
    progress = _Progress([log for log in logs if ranks is None or log.rank in ranks])
    failure = find_failure(experiment, run, logs, ranks=ranks, since=since, zone=zone, on_scanned=progress)
    progress.clear()
    if as_json:
        print_json(_document(experiment, failure))
        return
    typer.echo("\n".join(_lines(failure)), color=True)
    for problem in failure.problems:
        note(f"Warning: a log cannot be read: {problem}")
    searched = len(failure.scanned)
    note(
        f"Searched {format_bytes(_searched_bytes(failure))} of {searched} log{'' if searched == 1 else 's'} of run "
        f"{run.id} ({run.status})"
    )


def _lines(failure: RunFailure) -> list[str]:
    colours = has_colours()
    verdict = failure.verdict
    lines = [paint(line, "bold") if colours else line for line in _headline(failure)]
    for each in verdict.failures:
        heading = f"{harmless(who_failed(each))} at {each.time or 'an unknown time'}"
        if each.is_echo:
            heading += ", which tells only that another rank was gone or that it was ended"
        if not each.is_exact:
            heading += "; the text is that of the first, the others differ a little"
        # Of an echo the frames tell only where the rank happened to wait.
        text = harmless_lines(each.summary if each.is_echo else shorten_traceback(each.text)).rstrip()
        lines += ["", paint(heading, "yellow" if each.is_echo else "bold red") if colours else heading]
        lines += [f"  {line}".rstrip() for line in text.split("\n")]
    if verdict.silent and (verdict.failures or failure.run.status != "finished"):
        lines += ["", "Ranks that left no error, the one that fell silent first at the top:"]
        lines += _silent(failure)
    return lines


def _headline(failure: RunFailure) -> list[str]:
    verdict, run = failure.verdict, failure.run
    if not verdict.failures:
        return [f"No error in the logs of run {run.id}, which is {run.status} ({harmless(run.evidence)})"]
    first = verdict.first
    if first is None:
        return [harmless(line) for line in failure.explain()]
    when = f", at {first.time}" if first.time else ""
    lines = [f"{harmless(who_failed(first))} failed first{when}: {harmless(first.summary)}"]
    earlier = [each for each in verdict.failures if each.is_echo and each.time and each.time < first.time]
    if earlier:
        lines.append(
            f"{harmless(who_failed(earlier[0]))} wrote earlier, at {earlier[0].time}, that another rank was gone: "
            "the clocks of the nodes differ, or the cause is not in the logs"
        )
    return lines


def _silent(failure: RunFailure) -> list[str]:
    silent = failure.verdict.silent
    with_log = [each for each in silent if each.has_log]
    lines = []
    for each in with_log[:_MAX_SILENT_SHOWN]:
        process = f" ({harmless(failure.processes[each.rank])})" if each.rank in failure.processes else ""
        lines.append(f"  rank {each.rank}: last line at {each.last_time or NOTHING}{process}")
    if len(with_log) > _MAX_SILENT_SHOWN:
        rest = sorted(each.rank for each in with_log[_MAX_SILENT_SHOWN:])
        lines.append(f"  and {len(rest)} more: {format_ranges(rest)}")
    without = sorted(each.rank for each in silent if not each.has_log)
    if without:
        lines.append(
            f"  without a log: {format_ranges(without)} (exp_manager.log_every_rank=true gives each rank one)"
        )
    return lines


def _document(experiment: Experiment, failure: RunFailure) -> dict[str, Any]:
    verdict = failure.verdict
    return {
        "format": FORMAT,
        "experiment": str(experiment.path),
        "run": failure.run.id,
        "status": failure.run.status,
        "first": None if verdict.first is None else _failure_document(verdict.first),
        "errors": [_failure_document(each) for each in verdict.failures],
        "without_error": [
            {"rank": each.rank, "last_time": each.last_time or None, "has_log": each.has_log}
            for each in verdict.silent
        ],
        "logs": len(failure.scanned),
        "searched_bytes": _searched_bytes(failure),
        "problems": list(failure.problems),
    }


def _searched_bytes(failure: RunFailure) -> int:
    return sum(each.searched for each in failure.scanned)


def _failure_document(failure: Failure) -> dict[str, Any]:
    return {
        "ranks": list(failure.ranks),
        "files": list(failure.files),
        "time": failure.time or None,
        "kind": failure.kind,
        "summary": failure.summary,
        "text": failure.text,
        "is_echo": failure.is_echo,
        "is_exact": failure.is_exact,
    }


class _Progress:
    """Says on a terminal how much has been searched."""

    def __init__(self, logs: Sequence[LogFile]) -> None:
        self._sizes: dict[Path, int] = {}
        self._done = self._count = 0
        self._is_watched = sys.stderr.isatty()
        if self._is_watched:
            self._sizes = {log.path: size_of(log.path) for log in logs}
        self._size = sum(self._sizes.values())

    def __call__(self, scanned: ScannedLog) -> None:
        if not self._is_watched:
            return
        self._count += 1
        self._done += self._sizes[scanned.log.path]
        typer.echo(
            f"\r\x1b[2KSearched {self._count} of {len(self._sizes)} logs, {format_bytes(self._done)} of "
            f"{format_bytes(self._size)}",
            nl=False,
            err=True,
        )

    def clear(self) -> None:
        if self._is_watched and self._count:
            typer.echo("\r\x1b[2K", nl=False, err=True)
