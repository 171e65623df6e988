"""Let the kernel tell of every name in a tree that goes away, also one that is gone for a microsecond only.

    python -m tests.watch.name_watch DIRECTORY

Prints ``ready`` when it sees everything, watches until its standard input ends, and prints one JSON object, `Seen`.

What this cannot see is what happens in a new directory before the watch on it is set. Whatever is there then is taken
in, and in the end it is looked for: so a name can only be missed that came and went within that moment.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import struct
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_Q_OVERFLOW = 0x4000
IN_ONLYDIR = 0x1000000
IN_DONT_FOLLOW = 0x2000000
IN_ISDIR = 0x40000000

EVENT = struct.Struct("iIII")
"""What stands before each name: watch, mask, cookie, length of the name with its padding."""

BUFFER = 1 << 20


@dataclass
class Seen:
    """What happened in the tree; paths are relative to it.

    Attributes:
        overflows: How often the kernel's queue was full, and something was lost: then the rest proves nothing.
        created: How many new names were made in directories that were watched already.
        deleted: Names that were removed.
        moved_away: Names from which something was renamed, once for each time.
        replaced: Names that were there, and to which something was renamed, once for each time.
        missing: Names that were seen at any time and are not there in the end.
    """

    overflows: int = 0
    created: int = 0
    deleted: list[str] = field(default_factory=list)
    moved_away: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class NameWatch:
    """An inotify watch on a directory and every directory below it, those that are made later included.

    Attributes:
        descriptor: Readable when something has happened.
        seen: What has happened so far.
    """

    def __init__(self, directory: Path) -> None:
        """Watch what is there."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self.seen = Seen()
        self._directory = directory
        self._watched: dict[int, Path] = {}
        self._names: set[Path] = {directory}
        self._listed: dict[Path, int] = {}
        self._add(directory)

    def read_events(self) -> None:
        """Take in everything that has happened since."""
        while True:
            try:
                data = os.read(self.descriptor, BUFFER)
            except BlockingIOError:
                return
            offset = 0
            while offset < len(data):
                watch, mask, _, length = EVENT.unpack_from(data, offset)
                offset += EVENT.size
                self._take_in(watch, mask, os.fsdecode(data[offset : offset + length].rstrip(b"\0")))
                offset += length

    def end(self) -> Seen:
        """Look for every name that was ever seen, and return everything."""
        self.read_events()
        self.seen.missing = [self._shown(path) for path in sorted(self._names) if not os.path.lexists(path)]
        return self.seen

    def _take_in(self, watch: int, mask: int, name: str) -> None:
        if mask & IN_Q_OVERFLOW:
            self.seen.overflows += 1
            return
        if not name:  # about a directory itself, of which the one above it tells by name
            return
        path = self._watched[watch] / name
        if mask & IN_DELETE:
            self.seen.deleted.append(self._shown(path))
        elif mask & IN_MOVED_FROM:
            self.seen.moved_away.append(self._shown(path))
        else:
            if mask & IN_MOVED_TO and path in self._names and not self._is_listed_already(path):
                self.seen.replaced.append(self._shown(path))
            else:
                self.seen.created += 1
            self._names.add(path)
            if mask & IN_ISDIR:
                self._add(path)

    def _is_listed_already(self, path: Path) -> bool:
        """Tell whether a listing of a directory that had just been watched has found what is told now."""
        inode = self._listed.pop(path, None)
        try:
            return inode is not None and inode == path.lstat().st_ino
        except FileNotFoundError:
            return False

    def _add(self, directory: Path) -> None:
        """Watch a directory, and then what has been made in it before the watch was set."""
        mask = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR | IN_DONT_FOLLOW
        try:
            watch = self._checked(self._libc.inotify_add_watch(self.descriptor, os.fsencode(directory), mask))
            entries = list(os.scandir(directory))
        except FileNotFoundError:
            return  # of its end the directory above it tells, or the last look
        self._watched[watch] = directory
        for entry in entries:
            self._names.add(directory / entry.name)
            self._listed[directory / entry.name] = entry.inode()
            if entry.is_dir(follow_symlinks=False):
                self._add(directory / entry.name)

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._directory))

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def main() -> None:
    """Watch until standard input ends, and report."""
    watch = NameWatch(Path(sys.argv[1]))
    print("ready", flush=True)
    is_wanted = True
    while is_wanted:
        ready, _, _ = select.select([sys.stdin, watch.descriptor], [], [])
        is_wanted = sys.stdin not in ready
        watch.read_events()
    json.dump(asdict(watch.end()), sys.stdout)


if __name__ == "__main__":
    main()
