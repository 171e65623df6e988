"""The few crash-safe verbs; the only module that links, renames, syncs and creates exclusively.

Three different words: *complete* (written in full), *visible* (others can find it), *durable* (survives power loss).
Each verb says which it gives. What it rests on NFS for stands at each verb.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from immutable_logs.errors import NotVisibleError
from immutable_logs.regular_files import open_regular, read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

VISIBILITY_TIMEOUT: Final = 75.0
"""Seconds to wait for a name that exists on the server: NFS clients cache directory attributes for up to 60 s."""

_NO_SYMLINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, 524})
"""What `symlink` answers on a mount that has none; 524 is the kernel's ENOTSUPP, which some NFS servers let out."""

_NO_HARD_LINKS: Final = _NO_SYMLINKS | {errno.EXDEV, errno.EMLINK, errno.EACCES}
"""What `link` answers across file systems, for a file of somebody else that cannot be written, after too many."""

_NO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS, errno.EACCES})
"""What `fsync` of a directory answers where that cannot be done."""


def create_exclusive(path: Path, data: bytes, *, durable: bool = False) -> bool:
    """Create a file with its content, unless the name is taken.

    Visible at once, complete a moment later: a reader may see the file empty or cut, and a crash in between leaves
    it so. One `write` of a few kilobytes. Exclusive on NFS since version 3.

    Args:
        path: The new file; its directory must exist.
        data: The whole content.
        durable: Flush file and directory to storage before returning.

    Returns:
        Whether this call created the file. False can also mean that it did and the server's answer was lost: a caller
        to whom it matters reads the file back.

    Raises:
        OSError: `FileNotFoundError` without the directory, and whatever the file system says.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if _is_taken(error, path):
            return False
        raise
    try:
        _write_all(descriptor, data)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if durable:
        sync_directory(path.parent)
    return True


def create_link(text: str, path: Path) -> bool:
    """Create a symbolic link, unless the name is taken: exclusive, and complete when visible, on NFS too.

    Returns:
        Whether this call created it; False can be a lost answer, so read the link back.

    Raises:
        OSError: Where the mount has no symbolic links, `is_without_links` tells so.
    """
    return _make(path, lambda: os.symlink(text, path))


def is_without_links(error: OSError) -> bool:
    """Tell whether `create_link` failed because the mount has no symbolic links."""
    return error.errno in _NO_SYMLINKS


def create_hard_link(source: Path | str, path: Path | str) -> bool:
    """Give a file, or a link itself, a second name, unless that name is taken: complete when visible.

    Returns:
        Whether this call created it; False can be a lost answer, so compare the inodes.

    Raises:
        OSError: `FileNotFoundError` if the source or the directory is gone; where the mount has no hard links, or not
            for this file, `is_without_hard_links` tells so.
    """
    return _make(path, lambda: os.link(source, path, follow_symlinks=False))


def is_without_hard_links(error: OSError) -> bool:
    """Tell whether `create_hard_link` failed because these two names cannot share a file."""
    return error.errno in _NO_HARD_LINKS


def read_link(path: Path) -> str:
    """Return the text of a symbolic link; ESTALE is retried once."""
    return retry_stale(lambda: os.readlink(path))


def is_link_hidden(error: OSError) -> bool:
    """Tell whether a mount refuses to say where a link leads.

    SSHFS with ``contain_symlinks`` does so for each that is absolute or leads through ``..``; of ours, for those in
    ``tensorboard/``.
    """
    return error.errno == errno.EPERM


def read_bytes(path: Path) -> bytes:
    """Return the content of a file as `read_regular` does; ESTALE is retried once."""
    return retry_stale(lambda: read_regular(path))


def replace(source: Path, target: Path) -> None:
    """Rename over an existing name in one step: a reader finds the old or the new one, never none."""
    os.replace(source, target)


def create_directory(path: Path, *, like: Path) -> None:
    """Make a directory and those above it that are missing, deepest first, with the group access of another.

    Deepest first costs one call where everything is there already. `EEXIST` is success, whoever made it, but not
    where something else has the name.

    Args:
        path: The directory.
        like: An existing directory above `path`; its group and group permissions are taken over, so that a colleague
            of the group can resume. Where that is not allowed it is left.

    Raises:
        NotADirectoryError: If a file or a dangling link has the name.
        OSError: Whatever the file system says.
    """
    try:
        is_made = _make(path, lambda: os.mkdir(path))
    except FileNotFoundError:
        if path.parent == path:
            raise
        create_directory(path.parent, like=like)
        is_made = _make(path, lambda: os.mkdir(path))
    if is_made:
        _take_over_group(path, like)
        return
    mode = wait_until_visible(lambda: os.lstat(path), path).st_mode
    if not stat.S_ISDIR(mode) and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "expected a directory, found something else", str(path))


def wait_until_visible(read: Callable[[], _Result], path: Path, *, timeout: float = VISIBILITY_TIMEOUT) -> _Result:
    """Read what must exist, since a server has said so, although a cached answer still denies it.

    Lists the parent before each further try: on NFS that renews what the client knows of the directory. Costs one
    call where the name is visible, as everywhere but on NFS.

    Args:
        read: What to do; `FileNotFoundError` means "not visible yet".
        path: The name that is waited for.
        timeout: Seconds.

    Raises:
        NotVisibleError: If the name does not show up in time.
    """
    deadline = time.monotonic() + timeout
    pause = 0.05
    while True:
        try:
            return read()
        except FileNotFoundError:
            if time.monotonic() >= deadline:
                raise NotVisibleError(path, timeout) from None
        with suppress(OSError), os.scandir(path.parent) as entries:
            for _ in entries:
                pass
        time.sleep(pause)
        pause = min(2.0, pause * 2)


def server_time(directory: Path) -> float:
    """Return the file server's present time, which file times on that server can be compared with.

    Touches the directory: both the kernel and NFS then let the server's clock set its time.
    """
    os.utime(directory)
    return os.stat(directory).st_mtime


def append(path: Path, data: bytes, *, after_newline: bool) -> None:
    """Append a record with one `write`, durably; never through a link.

    Args:
        path: The file; made if missing.
        data: A line with its newline.
        after_newline: The caller holds the lock: look at the end of the file, and mend a torn last line by beginning
            with a newline. Without the lock the end may change meanwhile, so every line begins with one; readers
            skip the blank lines.
    """
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, follows_link=False)
    try:
        size = os.fstat(descriptor).st_size
        is_clean = after_newline and (size == 0 or os.pread(descriptor, 1, size - 1) == b"\n")
        _write_all(descriptor, data if is_clean else b"\n" + data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if size == 0:
        sync_directory(path.parent)


def extend(path: Path, data: bytes) -> None:
    """Append bytes as they are, durably: the caller holds the lock and knows how the file ends."""
    descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND, follows_link=False)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mark(path: Path, data: bytes) -> bool:
    """Give an empty file some content; nothing happens if it has some already.

    Visible at once, and complete as soon as it has any byte; not durable. Never through a link: in a shared directory
    anyone can have put one there.

    Returns:
        Whether it has content now; False if it is gone.
    """
    try:
        descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND, follows_link=False)
    except FileNotFoundError:
        return False
    try:
        if os.fstat(descriptor).st_size == 0:
            _write_all(descriptor, data)
    finally:
        os.close(descriptor)
    return True


def has_locks(path: Path) -> bool:
    """Tell whether the mount of an existing file has locks at all: to give one back is refused only where not."""
    descriptor = open_regular(path, os.O_RDWR, follows_link=False)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextmanager
def locked(path: Path, *, timeout: float) -> Iterator[bool]:
    """Hold an advisory lock on a file for the time of a `with` block, if it can be had.

    Args:
        path: The file; made if missing.
        timeout: Seconds to wait for another holder at the most.

    Yields:
        Whether the lock is held: False where the mount has none or the wait timed out.
    """
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, follows_link=False)
    try:
        _share_with_group(descriptor, path.parent)
        is_held = _lock(descriptor, timeout)
        try:
            yield is_held
        finally:
            if is_held:
                # Not only closed: a child forked meanwhile has a copy of the descriptor and would keep the lock.
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> bool:
    """Make the names in a directory durable, where the mount can do that.

    Returns:
        Whether it can.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_SYNC:
            return False
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
        return False
    finally:
        os.close(descriptor)
    return True


def _make(path: Path | str, call: Callable[[], None]) -> bool:
    """Make a name by a system call, and tell whether this made it: False if the name is taken."""
    try:
        call()
    except OSError as error:
        if _is_taken(error, path):
            return False
        raise
    return True


def _is_taken(error: OSError, path: Path | str) -> bool:
    """Tell whether a name could not be made because it is there.

    SSHFS says EPERM for it when another client has just made the name: SFTP has no word for "it exists".
    """
    return error.errno == errno.EEXIST or (error.errno == errno.EPERM and os.path.lexists(path))


def _lock(descriptor: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    pause = 0.002
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        except OSError:
            return False
        else:
            return True
        time.sleep(pause)
        pause = min(0.1, pause * 2)


def _write_all(descriptor: int, data: bytes) -> None:
    """Write everything, also where the kernel takes less at a time, as on an almost full disk."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _take_over_group(path: Path, like: Path) -> None:
    try:
        wanted = os.stat(like)
        found = os.stat(path)
        if found.st_gid != wanted.st_gid:
            os.chown(path, -1, wanted.st_gid)
        group_access = wanted.st_mode & 0o2070
        if found.st_mode & group_access != group_access:
            path.chmod((found.st_mode | group_access) & 0o7777)
    except OSError as error:
        _log.debug("The group access of %s could not be taken over: %s", path, error)


def _share_with_group(descriptor: int, directory: Path) -> None:
    """Give the group the access to a file of ours that it has to the directory, whatever the umask says."""
    found = os.fstat(descriptor)
    wanted = os.stat(directory).st_mode & 0o060
    if found.st_uid == os.geteuid() and found.st_mode & wanted != wanted:
        with suppress(OSError):
            os.fchmod(descriptor, (found.st_mode | wanted) & 0o7777)


def retry_stale(read: Callable[[], _Result]) -> _Result:
    """Do something once more after ESTALE: the path now leads to what is there."""
    try:
        return read()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return read()
