"""Search many logs at once, in as many processes as there are processors: two of them search twice as quickly."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Final

from immutable_logs.log_reading.error_scan import ScannedLog, scan_log
from immutable_logs.log_reading.log_bytes import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from immutable_logs.log_reading.log_files import LogFile

_WORTH_PROCESSES: Final = 64 << 20
"""Bytes in all from which on it pays to start processes."""

_MAX_PROCESSES: Final = 16
"""A file server has other readers too."""


def scan_logs(
    logs: Sequence[LogFile], *, since: str = "", on_scanned: Callable[[ScannedLog], None] | None = None
) -> list[ScannedLog]:
    """Return what each log tells about the end of its rank, in the order of the logs.

    Args:
        logs: The files.
        since: What has a time before this moment does not count.
        on_scanned: Told of each log that was searched.
    """
    found = []
    for scanned in _scan(logs, since):
        found.append(scanned)
        if on_scanned is not None:
            on_scanned(scanned)
    return found


def _scan(logs: Sequence[LogFile], since: str) -> Iterator[ScannedLog]:
    processes = max(1, min(_processors(), _MAX_PROCESSES, len(logs)))
    if processes == 1 or sum(size_of(log.path) for log in logs) < _WORTH_PROCESSES:
        yield from map(partial(scan_log, since=since), logs)
        return
    # Loaded only where it pays.
    from multiprocessing import get_context

    with get_context("fork").Pool(processes, _leave_ctrl_c_to_parent) as pool:
        yield from pool.imap(partial(scan_log, since=since), logs)


def _leave_ctrl_c_to_parent() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
