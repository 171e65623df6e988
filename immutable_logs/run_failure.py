"""What went wrong in a run: what its logs, its end record and its rank entries tell together; read-only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from immutable_logs.log_reading.failure_order import RankError, Verdict, end_record_error, judge
from immutable_logs.log_reading.log_clock import as_written
from immutable_logs.log_reading.many_scans import scan_logs
from immutable_logs.process import is_alive, this_process
from immutable_logs.rank_entries import count_joined_ranks, format_ranges, read_rank_entries, read_rank_process
from immutable_logs.records import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from immutable_logs.catalog import Experiment, RunSummary
    from immutable_logs.log_reading.error_scan import ScannedLog
    from immutable_logs.log_reading.failure_order import Failure
    from immutable_logs.log_reading.log_files import LogFile

_MAX_RANKS: Final = 1_000_000
_MAX_PROCESSES: Final = 8
"""Of how many silent ranks it is looked up whether their processes live."""


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What went wrong in a run.

    Attributes:
        run: The run.
        verdict: Which rank failed first, and with what.
        scanned: The logs that were searched.
        processes: Of the first silent ranks that have a log: the process, and whether it lives where that can be
            seen from here, as in ``process 12 on node1 is gone``.
        problems: What could not be read, and why.
    """

    run: RunSummary
    verdict: Verdict
    scanned: tuple[ScannedLog, ...]
    processes: dict[int, str]
    problems: tuple[str, ...]

    def explain(self) -> list[str]:
        """Return what can be said where no rank tells what went wrong first; nothing where one does.

        A rank that was killed cannot leave an error, so that those without one are the suspects.
        """
        if self.verdict.first is not None or not self.verdict.failures:
            return []
        echo = self.verdict.failures[0]
        when = echo.time or "an unknown time"
        lines = [
            "No rank tells what went wrong first",
            f"{who_failed(echo)} wrote at {when} only that another was gone, or was ended",
        ]
        suspects = [each for each in self.verdict.silent if each.has_log] or self.verdict.silent
        if len(suspects) == 1:
            (only,) = suspects
            last = f"wrote last at {only.last_time or 'an unknown time'}" if only.has_log else "has no log"
            process = f" ({self.processes[only.rank]})" if only.rank in self.processes else ""
            lines.append(
                f"Rank {only.rank} alone left no error, and {last}{process}: "
                "it may have been killed, as for want of memory"
            )
        elif suspects:
            lines.append("One of those that left no error may have been killed, as for want of memory")
        else:
            lines.append("Every rank wrote an error: somebody ended them, or the network failed")
        return lines


def who_failed(failure: Failure) -> str:
    """Return the ranks that an error is of, or the names of their logs where those are of no rank."""
    if not failure.ranks:
        return ", ".join(failure.files)
    return f"Rank{'' if len(failure.ranks) == 1 else 's'} {format_ranges(failure.ranks)}"


def find_failure(
    experiment: Experiment,
    run: RunSummary,
    logs: Sequence[LogFile],
    *,
    zone: int,
    ranks: frozenset[int] | None = None,
    since: str = "",
    on_scanned: Callable[[ScannedLog], None] | None = None,
) -> RunFailure:
    """Return what went wrong in a run.

    Args:
        experiment: The experiment.
        run: The run.
        logs: Its logs.
        zone: How many seconds the times in the logs are ahead of UTC.
        ranks: Only these ranks; all where it is None.
        since: Only what was written from this moment on, in the form of the logs.
        on_scanned: Told of each log that was searched.
    """
    scanned = scan_logs(
        [log for log in logs if ranks is None or log.rank in ranks], since=since, on_scanned=on_scanned
    )
    errors = [RankError(each.log.rank, each.log.path.name, each.error) for each in scanned if each.error is not None]
    if ranks is None or 0 in ranks:
        errors += _end_record(experiment, run, since=since, zone=zone)
    last_times: dict[int, str] = {}
    for each in scanned:
        if each.log.rank is not None and each.problem is None:
            last_times[each.log.rank] = max(last_times.get(each.log.rank, ""), each.last_time)
    verdict = judge(errors, last_times, [rank for rank in _joined(experiment, run) if ranks is None or rank in ranks])
    with_log = [each.rank for each in verdict.silent if each.has_log]
    asked = (with_log or [each.rank for each in verdict.silent])[:_MAX_PROCESSES]
    processes = {rank: words for rank in asked if (words := _process(experiment, run, rank))}
    problems = tuple(each.problem for each in scanned if each.problem is not None)
    return RunFailure(run, verdict, tuple(scanned), processes, problems)


def _joined(experiment: Experiment, run: RunSummary) -> list[int]:
    """Return the ranks that joined: known without reading their entries where none is missing."""
    layout = experiment.layout.run(run.id)
    joined = count_joined_ranks(layout)
    if run.world_size is not None and joined == run.world_size <= _MAX_RANKS:
        return list(range(joined))
    return [entry.global_rank for entry in read_rank_entries(layout)]


def _end_record(experiment: Experiment, run: RunSummary, *, since: str, zone: int) -> list[RankError]:
    """Return the error that rank zero has put into the end record, as one of its own."""
    record = experiment.describe(run).finish_record
    if record is None or not record.error:
        return []
    ended = parse_time(record.ended)
    time = "" if ended is None else as_written(ended, zone)
    path = experiment.layout.run(run.id).finish_record
    return [RankError(0, path.name, end_record_error(record.error, time))] if time >= since else []


def _process(experiment: Experiment, run: RunSummary, rank: int) -> str:
    process = read_rank_process(experiment.layout.run(run.id), rank)
    if process is None:
        return ""
    words = {True: " is alive", False: " is gone", None: ""}[is_alive(process, this_process())]
    return f"process {process.pid} on {process.host}{words}"
