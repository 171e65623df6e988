"""Who a process is, so that another process can tell whether it is the same one and whether it lives.

A pid alone is reused, and means another process in another container: host, boot, pid name space and start time
are compared too. Read from ``/proc``; where there is none (macOS) the unknown parts stay empty.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_START_TIME_FIELD: Final = 22
"""Number of ``starttime`` in proc_pid_stat(5), counted from 1; the command name before it can hold spaces."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process on one boot of one host.

    Attributes:
        host: Host name.
        pid: Process id.
        boot_id: Identifies a boot; empty if unknown.
        pid_namespace: Identifies the name space in which the pid counts; empty if unknown.
        start_ticks: Start time in clock ticks since boot; None if unknown.
    """

    host: str
    pid: int
    boot_id: str = ""
    pid_namespace: str = ""
    start_ticks: int | None = None


def this_process() -> Process:
    """Return the identity of the calling process."""
    boot_id = pid_namespace = ""
    with suppress(OSError):
        boot_id = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        pid_namespace = os.readlink(_PROC / "self/ns/pid")
    return Process(socket.gethostname(), os.getpid(), boot_id, pid_namespace, _start_ticks(os.getpid()))


def process_age() -> float:
    """Return for how many seconds this process has run; 0.0 where that cannot be known."""
    start = _start_ticks(os.getpid())
    if start is None:
        return 0.0
    with suppress(OSError, ValueError):
        uptime = float((_PROC / "uptime").read_text(encoding="ascii").split()[0])
        return max(0.0, uptime - start / os.sysconf("SC_CLK_TCK"))
    return 0.0


def is_alive(process: Process, observer: Process) -> bool | None:
    """Tell whether a process lives, or None where the observer cannot know.

    Args:
        process: The process that is asked about.
        observer: The process that asks; only processes of its own host, boot and pid name space can be seen.
    """
    if not process.boot_id or process.start_ticks is None:
        return None
    if (process.host, process.boot_id, process.pid_namespace) != (
        observer.host,
        observer.boot_id,
        observer.pid_namespace,
    ):
        return None
    return _start_ticks(process.pid) == process.start_ticks


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process; None if it is gone, a zombie, or ``/proc`` is not there."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()
    if after_name[0] in ("Z", "X"):
        return None
    return int(after_name[_START_TIME_FIELD - 3])
