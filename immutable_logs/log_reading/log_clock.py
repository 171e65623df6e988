"""Tie the times in logs, which have no zone, to those of this machine and of records, which are known."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from immutable_logs.log_reading.log_bytes import last_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from immutable_logs.log_reading.log_files import LogFile

_ZONE_STEP: Final = 900
_TOLERANCE: Final = 120
"""Seconds between the time in the last line and that at which the file was written, beyond any difference of zones."""

_MAX_ZONE: Final = 14 * 3600
_MAX_LOOKED_AT: Final = 8


def zone_of(logs: Iterable[LogFile]) -> int:
    """Return how many seconds the times in logs are ahead of UTC.

    The last line of a log was written when the file was: what lies between the two times is the zone. Where that
    cannot be, as in a file that was copied, the zone of this machine is taken. A container often has another one.
    """
    for log in list(logs)[:_MAX_LOOKED_AT]:
        with suppress(OSError, ValueError):
            written = _seconds(last_time(log)) - os.stat(log.path).st_mtime
            zone = round(written / _ZONE_STEP) * _ZONE_STEP
            if abs(zone) <= _MAX_ZONE and abs(written - zone) <= _TOLERANCE:
                return zone
    return time.localtime().tm_gmtoff


def as_written(moment: float, zone: int) -> str:
    """Return a Unix time as the logs of a zone write it, to the millisecond."""
    text = datetime.fromtimestamp(moment + zone, timezone.utc).isoformat(sep=" ", timespec="milliseconds")
    return text.partition("+")[0]


def _seconds(written: str) -> float:
    """Return a time of a log as if it were UTC.

    Raises:
        ValueError: If it is none.
    """
    return datetime.strptime(written[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
