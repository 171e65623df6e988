"""Try what a mount's times are worth, and whether a group can share a directory there."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Final

from immutable_logs import durable_files
from immutable_logs.agreement import JOIN_WINDOW
from immutable_logs.check_filesystem.findings import DEGRADED, HOLDS, Finding

if TYPE_CHECKING:
    from pathlib import Path

_TOUCHES: Final = 50
_COARSE: Final = 1.0
_SHARED: Final = 0o2770


def check_times(workshop: Path) -> Finding:
    """Look how fine the times of files are, and how far the file server's clock is from this host's."""
    directory = workshop / "times"
    os.mkdir(directory)
    stamps = []
    for number in range(_TOUCHES):
        path = directory / str(number)
        durable_files.create_exclusive(path, b"x")
        stamps.append(os.stat(path).st_mtime_ns)
        time.sleep(0.002)
    ticks = {stamp % 1_000_000_000 for stamp in stamps}
    is_coarse = ticks == {0}
    before = time.time()
    server = durable_files.server_time(directory)
    after = time.time()
    ahead = server - (before + after) / 2 if not before - _COARSE <= server <= after + _COARSE else 0.0
    is_far = abs(ahead) > JOIN_WINDOW
    found = "to the second" if is_coarse else "finer than a second"
    found += f"; the server's clock is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}" if ahead else ""
    return Finding(
        "file times",
        DEGRADED if is_far else HOLDS,
        found,
        f"launches that only an address tells apart need IMMUTABLE_LOGS_LAUNCH_ID: the clocks differ by more than "
        f"{JOIN_WINDOW / 60:.0f} min"
        if is_far
        else "ages in `ls` are right",
        {"server_ahead_seconds": round(ahead, 3)},
    )


def check_group_access(workshop: Path) -> Finding:
    """Give a directory the group's permissions, as every directory of the layout gets those of the experiment."""
    directory = workshop / "group"
    os.mkdir(directory)
    try:
        directory.chmod(_SHARED)
        mode = stat.S_IMODE(os.stat(directory).st_mode)
    except OSError as error:
        return _no_group(f"permissions cannot be set: {error.strerror}")
    if mode != _SHARED:
        return _no_group(f"{mode:04o} is found where {_SHARED:04o} was set")
    return Finding("group access", HOLDS, "permissions and set-group-ID hold", "colleagues of the group can resume")


def _no_group(found: str) -> Finding:
    return Finding("group access", DEGRADED, found, "who may write is decided by the mount alone")
