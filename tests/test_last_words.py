from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs.last_words import append_last_words
from immutable_logs.layout import RunLayout
from immutable_logs.log_reading.error_scan import scan_log
from immutable_logs.log_reading.log_files import LogFile, find_log_files
from immutable_logs.run import begin_run, start_run

if TYPE_CHECKING:
    from tests.conftest import Children

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: no'


def test_what_ended_a_rank_is_read_back(tmp_path: Path) -> None:
    """With the time to the millisecond, and whatever stood in the log before."""
    log = tmp_path / "nemo_log_globalrank-3_localrank-1.txt"
    log.write_text("[NeMo I 2026-12-01 12:00:00 a:1] no newline")
    now = time.mktime((2026, 12, 1, 12, 0, 1, 0, 0, -1)) + 0.25

    append_last_words(log, TRACE, rank=3, now=now)
    error = scan_log(LogFile(log, 3)).error

    assert error is not None
    assert (error.kind, error.time) == ("end", "2026-12-01 12:00:01.250")
    assert error.text.startswith("[NeMo E 2026-12-01 12:00:01.250 immutable_logs:ended rank:3]")
    assert error.text.endswith("    ValueError: no")


def test_an_endless_text_is_cut_in_the_middle(tmp_path: Path) -> None:
    """So that its line is still found at the end of the log."""
    log = tmp_path / "rank3.log"

    append_last_words(log, f"Traceback (most recent call last):\n{'x' * 100_000}\nValueError: no", rank=3, now=0.0)

    assert log.stat().st_size < 30_000
    error = scan_log(LogFile(log, 3)).error
    assert error is not None
    assert error.text.endswith("ValueError: no")


def test_a_rank_that_fails_leaves_a_log(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has none, for NeMo 3 writes none by default; rank zero has the end record instead."""
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "one")
    monkeypatch.setenv("RANK", "5")
    run = begin_run(experiment)

    with pytest.raises(ValueError, match="is wrong"), run:
        raise ValueError("token=abc is wrong")

    (log,) = find_log_files(run.path)
    text = log.path.read_text()
    assert log.rank == 5
    assert "token=***" in text
    assert "Traceback (most recent call last)" in text


def test_rank_zero_makes_no_log_for_it(experiment: Path) -> None:
    """But adds to the one that is there."""
    first = start_run(experiment)
    first.finish("failed", error=ValueError("no"))
    second = start_run(experiment)
    log = RunLayout(second.path).rank_log(0, 0)
    log.touch()
    second.finish("failed", error="SIGTERM")

    assert find_log_files(first.path) == []
    assert log.read_text().endswith(" This ended the training on this rank:\n    SIGTERM\n")


def test_a_run_that_ends_well_leaves_no_words(experiment: Path, children: Children) -> None:
    """Nor does a child that was forked from a rank."""
    code = """
        from immutable_logs import start_run
        run = start_run(sys.argv[1])
        if os.fork() == 0:
            run.finish("failed", error="in the child")
            os._exit(0)
        os.wait()
        run.finish()
        report(path=str(run.path))
        """
    environ: dict[str, Any] = {"IMMUTABLE_LOGS_LAUNCH_ID": "one", "RANK": "1"}

    assert find_log_files(Path(children.start(code, experiment, environ=environ).report()["path"])) == []


def test_a_log_that_cannot_be_written_stops_nothing(experiment: Path, caplog: pytest.LogCaptureFixture) -> None:
    """There is one warning, and the end is recorded."""
    run = start_run(experiment)
    RunLayout(run.path).rank_log(0, 0).mkdir()

    run.finish("failed", error=ValueError("no"))

    assert "Could not leave the error of this rank in run" in caplog.text
    assert (run.path / "finished.json").exists()
