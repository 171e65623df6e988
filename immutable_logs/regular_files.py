"""Open files, and nothing else, under names at which anyone in a shared directory can have put another thing.

To open a pipe waits for its other end, for ever if there is none. A device has no end. A link in the place of a file
that is written to lets a colleague choose the file. So a name is opened without waiting, and what was opened is
looked at, since what is there before the opening can be another thing a moment later.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}

_OTHER: Final = "something else"

MAX_BYTES: Final = 64 * 1024 * 1024
"""A record is some kilobytes, with a large configuration some megabytes; no launch wrote more."""


def open_regular(path: Path, flags: int, *, follows_link: bool) -> int:
    """Open a file and return its descriptor; a new one has the mode that the umask leaves.

    Args:
        path: The file.
        flags: Those of `os.open`; it is never waited for, and not passed on to other programs.
        follows_link: Whether a symbolic link to a file will do.

    Raises:
        OSError: If something else has the name, in words; and whatever the file system says.
    """
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if follows_link else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        found = _kind_of(path, follows_link=follows_link)
        if found is not None and error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _not_a_file(path, found) from None
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise _not_a_file(path, _KINDS.get(kind, _OTHER))
    return descriptor


def read_regular(path: Path, *, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a file, or of the one that a link leads to.

    Raises:
        OSError: If it is something else, is larger than the limit, or cannot be read.
    """
    descriptor = open_regular(path, os.O_RDONLY, follows_link=True)
    with open(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"expected at most {limit:,} bytes, found {size:,}", str(path))
        return file.readall()


def _kind_of(path: Path, *, follows_link: bool) -> str | None:
    try:
        status = os.stat(path, follow_symlinks=follows_link)
    except OSError:
        return None
    return _KINDS.get(stat.S_IFMT(status.st_mode))


def _not_a_file(path: Path, found: str) -> OSError:
    number = errno.EISDIR if found == _KINDS[stat.S_IFDIR] else errno.EINVAL
    return OSError(number, f"expected a file, found {found}; move it out of the way", str(path))
