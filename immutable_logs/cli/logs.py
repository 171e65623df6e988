"""`immutable-logs logs`: the logs of all ranks as one, as they grow, and what went wrong first."""

from __future__ import annotations

import re
import time
from typing import Annotated, Final

import typer

from immutable_logs.catalog import RUNNING, Experiment, RunSummary
from immutable_logs.cli.filters import parse_since
from immutable_logs.cli.log_output import Problems, RecordPrinter
from immutable_logs.cli.options import HERE, ExperimentOption, ReferenceArgument
from immutable_logs.cli.terminal import note
from immutable_logs.errors import ConfigurationError
from immutable_logs.layout import LATEST
from immutable_logs.log_reading.log_clock import as_written, zone_of
from immutable_logs.log_reading.log_files import LogFile, find_log_files
from immutable_logs.log_reading.merging import Selection, merge_logs
from immutable_logs.rank_entries import format_ranges

_ENTRIES_BEFORE_FOLLOWING: Final = 20
_MAX_RANKS: Final = 1_000_000
_RANKS: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")

RanksOption = Annotated[
    str | None, typer.Option("-r", "--rank", metavar="RANKS", help="Only these ranks, as in 0,3-7.")
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Only what was written since: 90m, 6h, 2d, 1w ago, or 2026-12-01T08:30 as in the logs."
    ),
]
GrepOption = Annotated[
    str | None,
    typer.Option(
        "-g", "--grep", metavar="REGEX", help="Only entries in whose lines this is found; (?i) ignores case."
    ),
]


def show_logs(
    reference: ReferenceArgument = LATEST,
    experiment: ExperimentOption = HERE,
    *,
    rank: RanksOption = None,
    since: SinceOption = None,
    grep: GrepOption = None,
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", min=0, metavar="N", help="Only the last N entries.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with what is written; from `latest` also in the next run.")
    ] = False,
    errors: Annotated[bool, typer.Option("--errors", help="Which rank failed first, and with what.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each entry; with --errors one in all.")
    ] = False,
) -> None:
    """Show the logs of all ranks of a run as one, or say which rank failed first.

    Entries are merged by their times, as they are written: NeMo writes local time without a zone, and the clocks of
    nodes can differ. Each line begins with its rank, as in [3], or with the name of a log that is of no rank. Lines
    without a time belong to the one above.

    With --errors the first error of each rank is shown in the order of their times, and on top who failed first. The
    same error of many ranks is shown once. Ranks that only lost their connection to another one are told apart from
    those that failed by themselves, and ranks that left no error are named: one that was killed cannot leave any.

    With --follow the last entries are shown first, unless --lines or --since says from where. It ends with Ctrl-C, or
    when the run is over; where `latest` was asked for, it goes on to the run that `latest` shows next.

    \b
    Examples:
      immutable-logs logs --errors                   why did it die?
      immutable-logs logs latest~1 --errors          ... the run before
      immutable-logs logs -f                         what does it do now? also after a requeue
      immutable-logs logs --rank 0,8-15 --since 10m  some ranks, the last ten minutes
      immutable-logs logs -g 'loss.*nan' | head
      immutable-logs logs --json | jq -r 'select(.level == "warning") | .text'
    """
    opened = Experiment(experiment)
    run = opened.find(reference)
    ranks = parse_ranks(rank) if rank is not None else None
    pattern = _compile(grep) if grep is not None else None
    logs = _find_logs(run)
    zone = zone_of(logs)
    moment = None if since is None else _parse_moment(since, zone)
    if not logs:
        note(f"No log is in the run directory{' yet' if run.status == RUNNING else ''}: {run.path}")
    if errors:
        if follow or grep is not None or lines is not None:
            raise ConfigurationError(
                "--errors",
                "--follow, --grep or --lines",
                "expected --errors alone, with --rank, or with --since; found --follow, --grep or --lines beside it",
            )
        from immutable_logs.cli.log_errors import print_errors

        print_errors(opened, run, logs, ranks=ranks, since=moment or "", zone=zone, as_json=as_json)
        return
    selection, problems, printer = (
        Selection(ranks, moment, pattern),
        Problems(),
        RecordPrinter(run.id, as_json=as_json),
    )
    if ranks is not None and not any(selection.includes(log) for log in logs):
        note(
            f"No log of rank {format_ranges(sorted(ranks))} in run {run.id}. "
            "HINT: with exp_manager.log_every_rank=true each rank writes one"
        )
    if not follow:
        printer.show(merge_logs(logs, selection, last=lines, on_problem=problems))
        return
    from immutable_logs.cli.log_following import LogFollowing
    from immutable_logs.log_reading.following import current_ends

    if lines is None and since is None:
        lines = _ENTRIES_BEFORE_FOLLOWING
    ends = current_ends(logs, on_problem=problems)
    printer.show(merge_logs(logs, selection, last=lines, ends=ends, on_problem=problems))
    LogFollowing(opened, run, selection, printer, problems, ends=ends, is_latest=reference == LATEST).follow()


def parse_ranks(text: str) -> frozenset[int]:
    """Return the ranks that a text such as ``0,3-7`` means.

    Raises:
        ConfigurationError: If it is none.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANKS.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last > _MAX_RANKS:
            raise ConfigurationError("--rank", text, f"expected --rank to be such as 3 or 0,3-7, found {text!r}")
        ranks.update(range(first, last + 1))
    return frozenset(ranks)


def _find_logs(run: RunSummary) -> list[LogFile]:
    try:
        return find_log_files(run.path)
    except FileNotFoundError:
        # A run that was pruned, or whose directory somebody removed: the error says which path.
        raise FileNotFoundError(2, f"the directory of this run is gone ({run.status})", str(run.path)) from None


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(
            "--grep", pattern, f"expected --grep to be a regular expression, found {pattern!r}: {error}"
        ) from None


def _parse_moment(text: str, zone: int) -> str:
    """Return a moment as the logs write it: a length of time before now, or digits that are taken as they are."""
    is_utc = text.endswith("Z")
    moment = parse_since(text, now=time.time() + (0 if is_utc else zone))
    # Without a fraction, which would be later than the whole second in the form of the logs.
    return as_written(moment, zone if is_utc else 0).partition(".")[0]
