"""Look into a directory that is to go, and remove it: never through a link, never across a mount, never what is new.

Everything is done below an open directory, not by paths: whoever swaps a directory for a link meanwhile leads nobody
elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from immutable_logs.durable_files import retry_stale
from immutable_logs.errors import RemovalError
from immutable_logs.mounts import mount_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

_MAX_DEPTH: Final = 100
"""Directories in directories; each holds one descriptor while it is looked at."""

_KEPT_OPEN: Final = ".nfs"
"""How NFS clients begin the name of a file that was removed while somebody had it open."""


@dataclass(slots=True)
class Tree:
    """What lies in a directory.

    Attributes:
        size: Bytes in its files.
        freed: Bytes in those that have no other name.
        newest: Unix time of the last change of a file or directory.
        newest_file: Unix time of the last change of a file; of a link, or the file that it leads to.
        newest_status: Unix time of the last change of a file's status, as when it was put there; nobody can set it.
        obstacle: Why it must not be removed, in words, if so.
        locked: A directory in which this user may not remove, if any.
        names: The names directly in it.
        identity: Device and inode of the directory, so that another one in its place is noticed.
    """

    size: int = 0
    freed: int = 0
    newest: float = 0.0
    newest_file: float = 0.0
    newest_status: float = 0.0
    obstacle: str | None = None
    locked: str | None = None
    names: frozenset[str] = frozenset()
    identity: tuple[int, int] = (0, 0)


def measure_tree(path: Path, *, apart: Collection[str] = ()) -> Tree:
    """Look at everything in a directory; nothing is opened but directories, and no link is followed.

    Args:
        path: The directory.
        apart: Names directly in it that do not count for `Tree.newest_file`.

    Raises:
        OSError: If it is a link or no directory, or cannot be read.
    """
    tree = Tree()
    with _opened(path) as directory:
        tree.names = frozenset(os.listdir(directory))
        tree.identity = _identity(directory)
        _measure(directory, tree, mount=mount_of(directory), apart=frozenset(apart), name="", depth=0)
    return tree


def remove_tree(
    path: Path,
    *,
    identity: tuple[int, int],
    not_after: float,
    apart: Collection[str] = (),
    first: Sequence[str] = (),
) -> None:
    """Remove a directory and what is in it; what is gone already is fine, and two callers at once are too.

    Not in one step: the caller has seen to it that nobody takes what is left for a whole directory. It stops at a
    file that was written too late, and at anything that appears meanwhile, since the directory is not empty then.

    Args:
        path: The directory; its parent may be reached through links.
        identity: What `measure_tree` said of it.
        not_after: Unix time after which no file may have been written.
        apart: Names directly in it to which that does not apply.
        first: Names directly in it that go first, in this order.

    Raises:
        RemovalError: If it has to stop; what is left can be removed by another call.
        OSError: If the file system refuses.
    """

    def empty() -> None:
        with _opened(path) as directory:
            if _identity(directory) != identity:
                raise RemovalError(path, "another directory has taken its place meanwhile, and is left alone")
            removal = _Removal(path, mount_of(directory), not_after)
            names = os.listdir(directory)
            for name in [*(each for each in first if each in names), *(each for each in names if each not in first)]:
                removal.remove(directory, name, shown=name, is_apart=name in apart, depth=0)

    try:
        retry_stale(empty)  # on NFS and SSHFS an open directory goes stale when another host removes it
    except FileNotFoundError:
        return
    try:
        with suppress(FileNotFoundError):
            os.rmdir(path)
    except OSError as error:
        raise _describe(error, path) from None


def remove_link(path: Path) -> None:
    """Remove a symbolic link; fine if it is gone.

    Raises:
        OSError: If the file system refuses.
    """
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(os.lstat(path).st_mode):
            os.unlink(path)


def remove_if_empty(path: Path) -> None:
    """Remove a directory if nothing is in it; anything else stays, and what is gone is fine.

    Raises:
        OSError: If the file system refuses.
    """
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise


@contextmanager
def _opened(path: Path | str, parent: int | None = None) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _measure(directory: int, tree: Tree, *, mount: object, apart: frozenset[str], name: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        tree.obstacle = f"directories are nested more than {_MAX_DEPTH} deep in it"
        return
    tree.newest = max(tree.newest, os.fstat(directory).st_mtime)
    if tree.locked is None and not os.access(".", os.W_OK | os.X_OK, dir_fd=directory):
        tree.locked = name or "."
    with os.scandir(directory) as entries:
        for entry in entries:
            # What goes meanwhile is no longer to be removed.
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    inner = f"{name}{entry.name}/"
                    with _opened(entry.name, directory) as child:
                        if mount_of(child) != mount:
                            tree.obstacle = f"another file system is mounted in it, at {inner}"
                            continue
                        _measure(child, tree, mount=mount, apart=frozenset(), name=inner, depth=depth + 1)
                else:
                    _count(entry, directory, tree, is_apart=entry.name in apart)


def _count(entry: os.DirEntry[str], directory: int, tree: Tree, *, is_apart: bool) -> None:
    status = entry.stat(follow_symlinks=False)
    written = status.st_mtime
    if stat.S_ISREG(status.st_mode):
        tree.size += status.st_size
        tree.freed += status.st_size if status.st_nlink == 1 else 0
    elif stat.S_ISLNK(status.st_mode):
        with suppress(OSError):
            written = max(written, os.stat(entry.name, dir_fd=directory).st_mtime)
    tree.newest = max(tree.newest, written)
    tree.newest_status = max(tree.newest_status, status.st_ctime)
    if not is_apart:
        tree.newest_file = max(tree.newest_file, written)


class _Removal:
    """One call of `remove_tree`."""

    def __init__(self, path: Path, mount: object, not_after: float) -> None:
        self._path = path
        self._mount = mount
        self._not_after = not_after

    def remove(self, parent: int, name: str, *, shown: str, is_apart: bool, depth: int) -> None:
        """Remove one name; `shown` is its path in the directory that goes."""
        try:
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    self._empty(parent, name, shown=shown, depth=depth)
                    os.rmdir(name, dir_fd=parent)
                elif status.st_mtime > self._not_after and not is_apart:
                    raise RemovalError(self._path / shown, "something was written meanwhile, so the rest stays")
                else:
                    _unlink(parent, name)
        except OSError as error:
            raise _describe(error, self._path / shown) from None

    def _empty(self, parent: int, name: str, *, shown: str, depth: int) -> None:
        with _opened(name, parent) as directory:
            if mount_of(directory) != self._mount:
                raise RemovalError(self._path / shown, "another file system is mounted there")
            if depth == _MAX_DEPTH:
                raise RemovalError(self._path / shown, f"directories are nested more than {_MAX_DEPTH} deep")
            for each in os.listdir(directory):
                self.remove(directory, each, shown=f"{shown}/{each}", is_apart=False, depth=depth + 1)


def _unlink(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except OSError as error:
        # It goes by itself when the process that has it open closes it; until then its directory cannot go.
        if not (name.startswith(_KEPT_OPEN) and error.errno == errno.EBUSY):
            raise


def _describe(error: OSError, path: Path) -> OSError:
    """Return the error that tells where it happened, and what to do where a name came in between."""
    if isinstance(error, RemovalError):
        return error
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return RemovalError(
            path,
            "it is not empty: a file has appeared in it meanwhile, or a process has one open, which NFS then keeps "
            f"as {_KEPT_OPEN}...",
        )
    # Below an open directory every name is relative: an absolute one was told further down already.
    is_told = isinstance(error.filename, str) and os.path.isabs(error.filename)
    return error if is_told else OSError(error.errno, error.strerror, str(path))


def _identity(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino
