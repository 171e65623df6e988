from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs.log_reading import error_scan, many_scans
from immutable_logs.log_reading.error_scan import MAX_TEXT, ScannedLog, scan_log
from immutable_logs.log_reading.log_files import LogFile, find_log_files
from immutable_logs.log_reading.many_scans import scan_logs

WriteLog = Callable[..., LogFile]

HARMLESS = (
    "[NeMo E 2026-12-01 12:00:00 exp_manager:847] You are running multi-node training without SLURM handling the "
    "processes. Please note that this is not tested in NeMo and could result in errors.\n"
)
TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: no\n'


def line(level: str, second: int, text: str) -> str:
    """Return a record of NeMo's form, what follows its first line indented as NeMo does."""
    return f"[NeMo {level} 2026-12-01 12:00:{second:02d} a:1] {text}".replace("\n", "\n    ").rstrip() + "\n"


def found(scanned: ScannedLog) -> tuple[str, str, str] | None:
    """Return kind, time and last word of the error that was found."""
    error = scanned.error
    return None if error is None else (error.kind, error.time[-2:], error.text.split()[-1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (line("I", 1, "fine"), None),
        (HARMLESS, None),
        (HARMLESS + line("E", 2, "bad"), ("error", "02", "bad")),
        (line("E", 1, "first") + line("E", 2, "second"), ("error", "01", "first")),
        (line("E", 1, "e") + line("C", 2, "c") + line("C", 3, "d"), ("critical", "02", "c")),
        (line("C", 1, "c") + line("E", 2, TRACE), ("exception", "02", "no")),
        (line("I", 1, "x") + TRACE + line("I", 2, "y"), ("exception", "01", "no")),
        (line("W", 1, f"tried in vain\n{TRACE}") + line("I", 2, "y"), None),
        (line("W", 1, f"tried in vain\n{TRACE}") + line("E", 2, TRACE), ("exception", "02", "no")),
        (line("I", 1, "[NeMo E is only said here]"), None),
        ("2026-12-01 12:00:01 INFO the ERROR rate\n2026-12-01 12:00:02 ERROR bad\n", ("error", "02", "bad")),
        ("2026-12-01 12:00:01 INFO x\n  ERROR in a line below\n", None),
        ("2026-12-01 12:00:01 FATAL bad\n", ("critical", "01", "bad")),
        ("I1201 12:00:00.5 1 x] y\n[rank3]:[E1201 12:00:01.500 p.cpp:1] bad\n", ("error", "00", "bad")),
    ],
)
def test_the_strongest_error_counts_and_of_several_the_first(
    write_log: WriteLog, text: str, expected: tuple[str, str, str] | None
) -> None:
    """Exceptions before critical lines before errors; what somebody dealt with, or always comes, is none."""
    assert found(scan_log(write_log(0, text))) == expected


def test_what_ended_a_rank_is_stronger_than_any_exception_before(write_log: WriteLog) -> None:
    """A log may have had exceptions that did not end the training."""
    log = write_log(
        0,
        line("E", 1, TRACE)
        + line("I", 2, "goes on")
        + "[NeMo E 2026-12-01 12:00:03.250 immutable_logs:ended rank:0] This ended it:\n"
        + "    Traceback (most recent call last):\n    KeyError: 7\n",
    )

    scanned = scan_log(log)

    assert scanned.error is not None
    assert (scanned.error.kind, scanned.error.time) == ("end", "2026-12-01 12:00:03.250")
    assert scanned.error.text.endswith("KeyError: 7")


@pytest.mark.parametrize("before", [0, (1 << 20) - 300, 1 << 20, 3_000_000])
def test_an_error_is_found_wherever_it_stands(write_log: WriteLog, before: int) -> None:
    """Also where the pieces meet in which a log is read, and however much follows."""
    filler = line("I", 1, "x" * 60)
    text = filler * (before // len(filler) + 1)
    text = text[-before:].partition("\n")[2] if before else ""
    for shift in range(0, 400, 13):
        log = write_log(shift, text + line("I", 1, "y" * shift) + line("E", 5, TRACE) + filler * 1000)

        assert found(scan_log(log)) == ("exception", "05", "no"), shift
        log.path.unlink()


def test_errors_before_a_moment_do_not_count(write_log: WriteLog) -> None:
    """As in the second of two attempts in one log."""
    log = write_log(0, line("E", 1, TRACE) + line("E", 5, "later") + line("E", 6, TRACE))

    assert found(scan_log(log, "2026-12-01 12:00:04")) == ("exception", "06", "no")
    assert found(scan_log(log, "2026-12-01 12:00:07")) is None


def test_an_endless_error_is_cut_in_the_middle(write_log: WriteLog) -> None:
    """An exception can carry a whole tensor; its beginning and its end are kept."""
    log = write_log(0, line("E", 1, "Traceback (most recent call last):\n" + "x" * 50_000 + "\nValueError: no"))

    error = scan_log(log).error

    assert error is not None
    assert len(error.text) < MAX_TEXT + 100
    assert "characters left out" in error.text
    assert error.text.endswith("ValueError: no")


def test_a_log_that_cannot_be_read_is_told_of(tmp_path: Path) -> None:
    """It does not end the search of the others."""
    scanned = scan_log(LogFile(tmp_path / "gone", 3))

    assert scanned.error is None
    assert scanned.problem == f"No such file or directory: {tmp_path / 'gone'}"


def test_the_real_logs_tell_which_rank_failed(real_logs: Path) -> None:
    """In one run all four ranks left what ended them; in the other the rank that was killed left nothing."""
    raised = {scanned.log.path.name: scanned for scanned in scan_logs(find_log_files(real_logs / "raised"))}
    killed = {scanned.log.path.name: scanned for scanned in scan_logs(find_log_files(real_logs / "killed"))}
    kinds = [
        [None if scanned.error is None else scanned.error.kind for scanned in logs.values()]
        for logs in (raised, killed)
    ]

    assert kinds == [[None, "end", "end", "end", "end"], [None, "end", "end", None, "end"]]
    assert killed["nemo_log_globalrank-2_localrank-2.txt"].last_time == "2026-12-01 13:36:16"


def test_several_processes_find_the_same_as_one(
    write_log: WriteLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the order of the logs, and each is told of when it was searched."""
    for rank in range(20):
        write_log(rank, line("I", 1, "x" * 1000) * 200 + (line("E", 2, f"bad-{rank}") if rank % 3 else ""))
    logs = find_log_files(tmp_path)
    alone = scan_logs(logs)
    monkeypatch.setattr(many_scans, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr(many_scans, "_processors", lambda: 3)
    told: list[ScannedLog] = []

    together = scan_logs(logs, on_scanned=told.append)

    assert together == alone == told
    assert [each.error is not None for each in together] == [bool(rank % 3) for rank in range(20)]
    assert error_scan.scan_log(logs[1]) == together[1]
