"""Find what went wrong in a run, as `immutable-logs logs --errors` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from immutable_logs.log_reading.failure_order import RankError, Verdict, end_record_error, judge
from immutable_logs.log_reading.log_clock import as_written, zone_of
from immutable_logs.log_reading.log_files import find_log_files
from immutable_logs.log_reading.many_scans import scan_logs
from immutable_logs.rank_entries import count_joined_ranks, read_rank_entries
from immutable_logs.records import parse_time

if TYPE_CHECKING:
    from immutable_logs.catalog import Experiment, RunSummary
    from immutable_logs.layout import RunLayout


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What went wrong in a run.

    Attributes:
        run: The run.
        verdict: Which rank failed first, and with what; None if its logs could not be read.
        problems: What could not be read, and why.
    """

    run: RunSummary
    verdict: Verdict | None
    problems: tuple[str, ...] = ()


def find_failure(experiment: Experiment, run: RunSummary) -> RunFailure:
    """Return what went wrong in a run, as `immutable-logs logs --errors` tells it."""
    layout = experiment.layout.run(run.id)
    try:
        logs = find_log_files(layout.path)
    except OSError as error:
        return RunFailure(run, None, (f"{error.strerror}: {layout.path}",))
    scanned = scan_logs(logs)
    errors = [RankError(each.log.rank, each.log.path.name, each.error) for each in scanned if each.error is not None]
    record = experiment.describe(run).finish_record
    if record is not None and record.error:
        ended = parse_time(record.ended)
        time = "" if ended is None else as_written(ended, zone_of(logs))
        errors.append(RankError(0, layout.finish_record.name, end_record_error(record.error, time)))
    last_times: dict[int, str] = {}
    for each in scanned:
        if each.log.rank is not None and each.problem is None:
            last_times[each.log.rank] = max(last_times.get(each.log.rank, ""), each.last_time)
    joined = range(count) if (count := count_joined_ranks(layout)) == run.world_size else _joined_ranks(layout)
    problems = tuple(each.problem for each in scanned if each.problem is not None)
    return RunFailure(run, judge(errors, last_times, joined), problems)


def _joined_ranks(layout: RunLayout) -> list[int]:
    return [entry.global_rank for entry in read_rank_entries(layout)]
