from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from immutable_logs.log_reading.log_clock import as_written, zone_of
from immutable_logs.log_reading.log_files import LogFile

WriteLog = Callable[..., LogFile]

NOON = 1796126400.0  # 2026-12-01 12:00:00 UTC


@pytest.mark.parametrize(
    ("clock", "zone"), [("12:00:00", 0), ("13:00:01", 3600), ("03:59:30", -28800), ("17:30:00", 19800)]
)
def test_the_zone_of_a_log_is_known_from_when_it_was_written(write_log: WriteLog, clock: str, zone: int) -> None:
    """Whatever the zone of this machine is: a container often has another."""
    log = write_log(0, f"[NeMo I 2026-12-01 {clock} a:1] x\n")
    os.utime(log.path, (NOON + 0.4, NOON + 0.4))

    assert zone_of([log]) == zone


def test_a_log_that_was_copied_tells_no_zone(write_log: WriteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time has nothing to do with its last line; then that of this machine is taken, or another log's."""
    copied = write_log(0, "[NeMo I 2026-12-01 09:07:00 a:1] x\n")
    os.utime(copied.path, (NOON, NOON))
    other = write_log(1, "[NeMo I 2026-12-01 14:00:00 a:1] x\n")
    os.utime(other.path, (NOON, NOON))

    assert zone_of([copied]) == time.localtime().tm_gmtoff
    assert zone_of([copied, other]) == 7200


def test_a_moment_is_written_as_the_logs_do() -> None:
    """In the form of times in logs, in their zone."""
    assert as_written(NOON + 0.25, 3600) == "2026-12-01 13:00:00.250"
