"""Tell of a directory that the nodes of a launch do not share.

Each of them then makes a run of its own there, and nothing fails. Waiting for the ranks of another node would show
it; the type of the file system shows most cases of it without waiting.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from immutable_logs.launch import Launch

_log = logging.getLogger(__name__)

_PROC: Final = Path("/proc/self")

_OF_ONE_MACHINE: Final = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")
)
"""Types that one machine mounts at a time. Others see them only where that machine exports them, under another type.
Not FUSE, 9p and virtiofs, behind which anything can be."""


def warn_of_local_file_system(directory: Path, launch: Launch) -> None:
    """Warn if a launch has several nodes and its experiment is on a file system of one machine.

    Done by the first rank of the second node alone, for its first run in the experiment: one line for a launch,
    however many nodes it has, and not from rank zero's node, which may be the one that exports its disk to the others.
    A launcher that tells no node number gets no warning.

    Args:
        directory: The experiment, which exists.
        launch: Which launch and rank this is.
    """
    if (launch.ranks.node_rank, launch.ranks.local_rank, launch.call) != (1, 0, 1):
        return
    kind = file_system_type(directory)
    if kind in _OF_ONE_MACHINE:
        _log.warning(
            "Rank %d is on the second node of the launch, where %s is on a file system of one machine (%s). "
            "Unless all nodes see the same directory, each has a run of its own, and only rank zero's is recorded. "
            "HINT: choose a directory on a file system that the nodes share",
            launch.ranks.global_rank,
            directory,
            kind,
        )


def file_system_type(directory: Path) -> str | None:
    """Return the type of the file system that a directory is on, such as ``ext4`` or ``nfs4``; None if unknown.

    Found by the number of the mount, which the kernel tells of an open directory: paths could be compared only after
    following every link in them, and device numbers are not those of the mount on Btrfs.
    """
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            number = mount_of(descriptor)
        finally:
            os.close(descriptor)
        return next((kind for mount, kind in _mounts() if mount == number), None)
    return None


def mount_of(descriptor: int) -> str:
    """Return what tells the mount of an open file or directory from others.

    That is the kernel's number of the mount, since a directory that is mounted a second time elsewhere has the same
    device there; where the kernel does not tell, the device.
    """
    with suppress(OSError):
        words = (_PROC / "fdinfo" / str(descriptor)).read_text(encoding="ascii").split()
        if "mnt_id:" in words:
            return words[words.index("mnt_id:") + 1]
    return f"device {os.fstat(descriptor).st_dev}"


def _mounts() -> Iterator[tuple[str, str]]:
    """Yield number and type of every mount, as proc_pid_mountinfo(5) has them; spaces in paths are escaped there."""
    for line in (_PROC / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        mount, separator, source = line.partition(" - ")
        if separator:
            yield mount.split(" ", 1)[0], source.split(" ", 1)[0]
