from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from immutable_logs.log_reading.log_files import LogFile, find_log_files
from immutable_logs.log_reading.merging import Selection, merge_logs

WriteLog = Callable[..., LogFile]


def line(second: int, text: str) -> str:
    """Return a line of NeMo's form."""
    return f"[NeMo I 2026-12-01 12:00:{second:02d} a:1] {text}\n"


def texts(logs: list[LogFile], selection: Selection | None = None, *, last: int | None = None) -> list[str]:
    """Return rank and last word of the merged records."""

    def fail(error: OSError) -> None:
        raise error

    records = merge_logs(logs, selection or Selection(), last=last, on_problem=fail)
    return [f"{record.log.rank}:{record.text.split()[-1]}" for record in records]


@pytest.fixture
def three(write_log: WriteLog) -> list[LogFile]:
    """Three logs whose times interleave."""
    return [
        write_log(0, line(1, "a") + line(3, "b") + "    more\n" + line(5, "c")),
        write_log(1, line(2, "d") + line(3, "e")),
        write_log(2, line(3, "f") + line(4, "g")),
    ]


def test_records_come_by_time_and_within_a_second_by_rank(three: list[LogFile]) -> None:
    """Lines below a record stay with it."""
    assert texts(three) == ["0:a", "1:d", "0:more", "1:e", "2:f", "2:g", "0:c"]


def test_a_clock_that_went_back_reorders_no_log(write_log: WriteLog) -> None:
    """What was written later stays later."""
    logs = [write_log(0, line(5, "a") + line(1, "b") + line(6, "c")), write_log(1, line(2, "d") + line(5, "e"))]

    assert texts(logs) == ["1:d", "0:a", "0:b", "1:e", "0:c"]


def test_ranks_moments_and_patterns_are_selected(three: list[LogFile]) -> None:
    """Everything that is given must hold; a pattern may stand in any line of a record."""
    assert texts(three, Selection(frozenset({1, 2}))) == ["1:d", "1:e", "2:f", "2:g"]
    assert texts(three, Selection(since="2026-12-01 12:00:04")) == ["2:g", "0:c"]
    assert texts(three, Selection(pattern=re.compile("more|g$"))) == ["0:more", "2:g"]
    assert texts(three, Selection(frozenset({0}), "2026-12-01 12:00:04", re.compile("c"))) == ["0:c"]


def test_the_last_records_are_the_last_of_all(three: list[LogFile]) -> None:
    """Not of each log; with a pattern, of those that match."""
    assert texts(three, last=2) == ["2:g", "0:c"]
    assert texts(three, Selection(pattern=re.compile("[ad]$")), last=1) == ["1:d"]
    assert texts(three, last=0) == []


def test_logs_that_cannot_be_read_do_not_hide_the_others(three: list[LogFile], tmp_path: Path) -> None:
    """Each is told of."""
    problems: list[OSError] = []
    loop = tmp_path / "rank3.log"
    loop.symlink_to(loop.name)
    logs = [*three, LogFile(loop, 3), LogFile(tmp_path / "gone", 4)]

    records = list(
        merge_logs(
            logs, Selection(), ends=dict.fromkeys((log.path for log in logs), 10**6), on_problem=problems.append
        )
    )

    assert len(records) == 7
    assert {error.filename for error in problems} == {str(loop), str(tmp_path / "gone")}


@pytest.fixture
def few_open_files() -> Iterator[int]:
    """A limit of open files that is lower than the number of logs."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    yield 256
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_more_logs_than_files_may_be_open_are_merged(write_log: WriteLog, tmp_path: Path, few_open_files: int) -> None:
    """A run of hundreds of ranks is read under the usual limits."""
    for rank in range(2 * few_open_files):
        write_log(rank, line(rank % 60, "x") * 2)

    found = texts(find_log_files(tmp_path))

    assert len(found) == 4 * few_open_files
    assert found[:4] == ["0:x", "0:x", "60:x", "60:x"]
