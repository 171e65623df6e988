from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from immutable_logs.log_reading.following import RunFollower, current_ends
from immutable_logs.log_reading.log_files import LogFile, find_log_files
from immutable_logs.log_reading.merging import Selection

WriteLog = Callable[..., LogFile]


def fail(error: OSError) -> None:
    """Be told of a problem where there must be none."""
    raise error


def line(second: int, text: str) -> str:
    """Return a line of NeMo's form."""
    return f"[NeMo I 2026-12-01 12:00:{second:02d} a:1] {text}\n"


def look(follower: RunFollower) -> list[str]:
    """Return rank and last word of what is new."""
    return [f"{record.log.rank}:{record.text.split()[-1]}" for record in follower.look()]


def test_only_what_is_new_is_returned_by_time(write_log: WriteLog, tmp_path: Path) -> None:
    """What was there before is not shown again."""
    write_log(0, line(1, "old"))
    follower = RunFollower(
        tmp_path, Selection(), ends=current_ends(find_log_files(tmp_path), on_problem=fail), on_problem=fail
    )

    assert look(follower) == []
    write_log(0, line(4, "b") + line(2, "after the clock was set"))
    write_log(1, line(3, "a"))
    assert look(follower) == ["1:a", "0:b", "0:set"]
    assert look(follower) == []


def test_a_line_is_shown_when_it_is_whole(write_log: WriteLog, tmp_path: Path) -> None:
    """A writer that was caught in the middle of a line is waited for; at the end the rest counts as a line."""
    follower = RunFollower(tmp_path, Selection(), on_problem=fail)
    write_log(0, line(1, "a") + "[NeMo I 2026-12-01 12:00:02 a:1] hal")

    assert look(follower) == ["0:a"]
    write_log(0, "f\n[NeMo I 2026-12-01 12:00:03 a:1] rest")
    assert look(follower) == ["0:half"]
    assert [record.text.split()[-1] for record in follower.finish()] == ["rest"]


def test_a_half_line_at_the_beginning_is_not_lost(write_log: WriteLog, tmp_path: Path) -> None:
    """The line that a writer has begun before the following began is shown whole."""
    write_log(0, line(1, "old") + "[NeMo I 2026-12-01 12:00:02 a:1] ha")
    ends = current_ends(find_log_files(tmp_path), on_problem=fail)
    follower = RunFollower(tmp_path, Selection(), ends=ends, on_problem=fail)
    write_log(0, "lf\n")

    assert look(follower) == ["0:half"]


def test_logs_that_appear_later_are_followed(write_log: WriteLog, tmp_path: Path) -> None:
    """A rank may start late; one that is not wanted stays out."""
    follower = RunFollower(tmp_path, Selection(frozenset({0, 2})), on_problem=fail)
    write_log(0, line(1, "a"))
    assert look(follower) == ["0:a"]
    write_log(2, line(2, "c"))
    write_log(1, line(2, "b"))

    assert look(follower) == ["2:c"]


def test_a_log_that_is_written_anew_is_read_from_its_beginning(write_log: WriteLog, tmp_path: Path) -> None:
    """As with a redirection of the shell into a file that was there."""
    log = write_log(0, line(1, "a") + line(2, "b"))
    follower = RunFollower(tmp_path, Selection(), on_problem=fail)
    assert look(follower) == ["0:a", "0:b"]
    log.path.write_text(line(3, "c"))

    assert look(follower) == ["0:c"]


def test_a_run_directory_that_vanishes_is_told_of(tmp_path: Path) -> None:
    """Following goes on, as the directory of a mount may come back."""
    problems: list[OSError] = []
    follower = RunFollower(tmp_path / "gone", Selection(), on_problem=problems.append)

    assert look(follower) == []
    assert [error.filename for error in problems] == [str(tmp_path / "gone")]
