"""The output of `immutable-logs logs --errors`: who failed first, with what, and who left no error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import typer

from immutable_logs.cli.columns import paint
from immutable_logs.cli.plain_text import NOTHING, format_bytes, format_ranges, harmless, harmless_lines
from immutable_logs.cli.terminal import has_colours, note, print_json
from immutable_logs.log_reading.failure_order import RankError, end_record_error, judge, shorten_traceback
from immutable_logs.log_reading.log_bytes import size_of
from immutable_logs.log_reading.log_clock import as_written
from immutable_logs.log_reading.many_scans import scan_logs
from immutable_logs.process import is_alive, this_process
from immutable_logs.rank_entries import count_joined_ranks, read_rank_process
from immutable_logs.records import FORMAT, parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from immutable_logs.catalog import Experiment, RunSummary
    from immutable_logs.log_reading.error_scan import ScannedLog
    from immutable_logs.log_reading.failure_order import Failure, SilentRank, Verdict
    from immutable_logs.log_reading.log_files import LogFile

_MAX_SILENT_SHOWN: Final = 8
_MAX_RANKS: Final = 1_000_000


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
    chosen = [log for log in logs if ranks is None or log.rank in ranks]
    progress = _Progress(chosen)
    scanned = scan_logs(chosen, since=since, on_scanned=progress)
    progress.clear()
    errors = [RankError(each.log.rank, each.log.path.name, each.error) for each in scanned if each.error is not None]
    errors += _end_record(experiment, run, ranks=ranks, since=since, zone=zone)
    last_times: dict[int, str] = {}
    for each in scanned:
        if each.log.rank is not None and each.problem is None:
            last_times[each.log.rank] = max(last_times.get(each.log.rank, ""), each.last_time)
    verdict = judge(errors, last_times, [rank for rank in _joined(experiment, run) if ranks is None or rank in ranks])
    problems = [each.problem for each in scanned if each.problem is not None]
    if as_json:
        print_json(_document(experiment, run, verdict, scanned, problems))
        return
    typer.echo("\n".join(_lines(experiment, run, verdict)), color=True)
    for problem in problems:
        note(f"Warning: a log cannot be read: {problem}")
    size = sum(each.searched for each in scanned)
    note(
        f"Searched {format_bytes(size)} of {len(scanned)} log{'' if len(scanned) == 1 else 's'} of run {run.id} "
        f"({run.status})"
    )


def _joined(experiment: Experiment, run: RunSummary) -> list[int]:
    """Return the ranks that joined: known without reading their entries where none is missing."""
    layout = experiment.layout.run(run.id)
    joined = count_joined_ranks(layout)
    if run.world_size is not None and joined == run.world_size <= _MAX_RANKS:
        return list(range(joined))
    from immutable_logs.rank_entries import read_rank_entries

    return [entry.global_rank for entry in read_rank_entries(layout)]


def _end_record(
    experiment: Experiment, run: RunSummary, *, ranks: frozenset[int] | None, since: str, zone: int
) -> list[RankError]:
    """Return the error that rank zero has put into the end record, as one of its own."""
    if ranks is not None and 0 not in ranks:
        return []
    record = experiment.describe(run).finish_record
    if record is None or not record.error:
        return []
    ended = parse_time(record.ended)
    time = "" if ended is None else as_written(ended, zone)
    path = experiment.layout.run(run.id).finish_record
    return [RankError(0, path.name, end_record_error(record.error, time))] if time >= since else []


def _lines(experiment: Experiment, run: RunSummary, verdict: Verdict) -> list[str]:
    colours = has_colours()
    lines = [paint(line, "bold") if colours else line for line in _headline(experiment, run, verdict)]
    for failure in verdict.failures:
        heading = f"{_who(failure)} at {failure.time or 'an unknown time'}"
        if failure.is_echo:
            heading += ", which tells only that another rank was gone or that it was ended"
        if not failure.is_exact:
            heading += "; the text is that of the first, the others differ a little"
        # Of an echo the frames tell only where the rank happened to wait.
        text = harmless_lines(failure.summary if failure.is_echo else shorten_traceback(failure.text)).rstrip()
        lines += ["", paint(heading, "yellow" if failure.is_echo else "bold red") if colours else heading]
        lines += [f"  {line}".rstrip() for line in text.split("\n")]
    if verdict.silent and (verdict.failures or run.status != "finished"):
        lines += ["", "Ranks that left no error, the one that fell silent first at the top:"]
        lines += _silent(experiment, run, verdict.silent)
    return lines


def _headline(experiment: Experiment, run: RunSummary, verdict: Verdict) -> list[str]:
    first = verdict.first
    if first is not None:
        when = f", at {first.time}" if first.time else ""
        lines = [f"{_who(first)} failed first{when}: {harmless(first.summary)}"]
        earlier = [each for each in verdict.failures if each.is_echo and each.time and each.time < first.time]
        if earlier:
            lines.append(
                f"{_who(earlier[0])} wrote earlier, at {earlier[0].time}, that another rank was gone: "
                "the clocks of the nodes differ, or the cause is not in the logs"
            )
        return lines
    if not verdict.failures:
        return [f"No error in the logs of run {run.id}, which is {run.status} ({harmless(run.evidence)})"]
    with_log = [each for each in verdict.silent if each.has_log]
    echo = verdict.failures[0]
    lines = ["No rank tells what went wrong first"]
    lines.append(f"{_who(echo)} wrote at {echo.time or 'an unknown time'} only that another was gone, or was ended")
    suspects = with_log or verdict.silent
    if len(suspects) == 1:
        (only,) = suspects
        lines.append(
            f"Rank {only.rank} alone left no error, and {_last_write(only)}"
            f"{_process(experiment, run, only.rank)}: it may have been killed, as for want of memory"
        )
    elif suspects:
        lines.append("One of those that left no error may have been killed, as for want of memory")
    else:
        lines.append("Every rank wrote an error: somebody ended them, or the network failed")
    return lines


def _last_write(silent: SilentRank) -> str:
    if not silent.has_log:
        return "has no log"
    return f"wrote last at {silent.last_time or 'an unknown time'}"


def _who(failure: Failure) -> str:
    if not failure.ranks:
        return harmless(", ".join(failure.files))
    return f"Rank{'' if len(failure.ranks) == 1 else 's'} {format_ranges(list(failure.ranks))}"


def _silent(experiment: Experiment, run: RunSummary, silent: Sequence[SilentRank]) -> list[str]:
    with_log = [each for each in silent if each.has_log]
    lines = [
        f"  rank {each.rank}: last line at {each.last_time or NOTHING}{_process(experiment, run, each.rank)}"
        for each in with_log[:_MAX_SILENT_SHOWN]
    ]
    if len(with_log) > _MAX_SILENT_SHOWN:
        rest = sorted(each.rank for each in with_log[_MAX_SILENT_SHOWN:])
        lines.append(f"  and {len(rest)} more: {format_ranges(rest)}")
    without = sorted(each.rank for each in silent if not each.has_log)
    if without:
        lines.append(
            f"  without a log: {format_ranges(without)} (exp_manager.log_every_rank=true gives each rank one)"
        )
    return lines


def _process(experiment: Experiment, run: RunSummary, rank: int) -> str:
    """Return in words whether the process of a rank lives, where that can be seen from here."""
    process = read_rank_process(experiment.layout.run(run.id), rank)
    if process is None:
        return ""
    alive = is_alive(process, this_process())
    words = {True: " is alive", False: " is gone", None: ""}[alive]
    return f" (process {process.pid} on {harmless(process.host)}{words})"


def _document(
    experiment: Experiment, run: RunSummary, verdict: Verdict, scanned: Sequence[ScannedLog], problems: Sequence[str]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "experiment": str(experiment.path),
        "run": run.id,
        "status": run.status,
        "first": None if verdict.first is None else _failure_document(verdict.first),
        "errors": [_failure_document(failure) for failure in verdict.failures],
        "without_error": [
            {"rank": each.rank, "last_time": each.last_time or None, "has_log": each.has_log}
            for each in verdict.silent
        ],
        "logs": len(scanned),
        "searched_bytes": sum(each.searched for each in scanned),
        "problems": list(problems),
    }


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
