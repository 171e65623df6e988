"""Which processes of this host have a file open, as far as this user may look."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


@dataclass(slots=True)
class OpenFiles:
    """The open files of this host.

    Attributes:
        can_look: Whether there is a ``/proc`` to look into.
        hidden: How many processes belong to somebody else and cannot be looked into.
        holders: Process id and command, by device and inode.
    """

    can_look: bool = False
    hidden: int = 0
    holders: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)


def find_open_files() -> OpenFiles:
    """Return the files that the processes of this host have open."""
    found = OpenFiles()
    try:
        processes = [int(name) for name in os.listdir(_PROC) if name.isdecimal()]
    except OSError:
        return found
    found.can_look = True
    for pid in processes:
        directory = _PROC / str(pid) / "fd"
        try:
            descriptors = os.listdir(directory)
        except FileNotFoundError:
            continue
        except OSError:
            found.hidden += 1
            continue
        for descriptor in descriptors:
            with suppress(OSError):
                status = os.stat(directory / descriptor)
                if stat.S_ISREG(status.st_mode):
                    found.holders.setdefault((status.st_dev, status.st_ino), (pid, _command(pid)))
    return found


def _command(pid: int) -> str:
    with suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode("utf-8", "replace").strip()[:200]
    return "?"
