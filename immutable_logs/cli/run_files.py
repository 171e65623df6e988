"""What lies in a run directory, and how large it is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from immutable_logs import durable_files

_MAX_COUNTED: Final = 10_000
"""Files in one directory that are looked at: a distributed checkpoint can have more than anyone wants to wait for."""


def list_run_files(path: Path) -> list[dict[str, Any]]:
    """Return what lies in a directory, by name, as plain values; nothing if the directory is gone.

    Each has ``name``, ``kind`` (``file``, ``directory``, ``link`` or ``other``) and ``bytes``, the size of a file or
    of all files in a directory; a directory has also ``files``, how many those are, and ``is_complete``, whether all
    were counted.
    """
    found = []
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(OSError):
                found.append(_describe(entry))
    return sorted(found, key=lambda each: str(each["name"]))


def _describe(entry: os.DirEntry[str]) -> dict[str, Any]:
    if entry.is_symlink():
        return {"name": entry.name, "kind": "link", "bytes": None, "target": _target(Path(entry.path))}
    if entry.is_dir():
        return {"name": entry.name, "kind": "directory", **_measure(Path(entry.path))}
    return {
        "name": entry.name,
        "kind": "file" if entry.is_file() else "other",
        "bytes": entry.stat(follow_symlinks=False).st_size,
    }


def _target(path: Path) -> str | None:
    try:
        return durable_files.read_link(path)
    except OSError as error:
        if durable_files.is_link_hidden(error):
            return None
        raise


def _measure(path: Path) -> dict[str, Any]:
    files = size = 0
    for directory, _, names in os.walk(path):
        for name in names:
            if files == _MAX_COUNTED:
                return {"bytes": size, "files": files, "is_complete": False}
            files += 1
            with suppress(OSError):
                size += os.lstat(os.path.join(directory, name)).st_size
    return {"bytes": size, "files": files, "is_complete": True}
