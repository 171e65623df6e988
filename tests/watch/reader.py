"""Read a tree as people's programs do while launches write into it, and count what is lost.

    python -m tests.watch.reader DIRECTORY HOW

HOW is ``files`` (list, and a moment later look at, open and read everything that was ever listed) or ``fsspec`` (list
every directory with fsspec's `ls`, which looks at each name in it, and open what it says is a file). Prints ``ready``,
reads until its standard input ends, and prints one JSON object with ``passes``, ``reads`` and ``failures``.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from immutable_logs.demo.reader import Reader

PAUSE = 0.01
"""Seconds between two looks."""


def read_until_told(look: Callable[[], None]) -> int:
    """Say that one is ready, look again and again until standard input ends, and return how often that was.

    The end is asked for before each look, so that the last look comes after everything that the caller did.
    """
    os.nice(10)  # what is looked at shall go on meanwhile
    print("ready", flush=True)
    passes = 0
    is_wanted = True
    while is_wanted:
        is_wanted = not select.select([sys.stdin], [], [], PAUSE)[0]
        look()
        passes += 1
    return passes


def read_files(directory: Path) -> dict[str, Any]:
    """Read with the reader of `immutable-logs demo`, which also sees a file replaced and `latest` led astray."""
    reader = Reader(directory)

    def look() -> None:
        reader.list_names()
        reader.read_names()

    passes = read_until_told(look)
    found = reader.findings
    assert len(found.failures) == min(found.failure_count, 100)
    return {"passes": passes, "reads": found.reads, "failures": found.failures}


def read_with_fsspec(directory: Path) -> dict[str, Any]:
    """Walk with fsspec; a directory or file that was listed and is not there is a failure."""
    from fsspec.implementations.local import LocalFileSystem

    files = LocalFileSystem(skip_instance_cache=True)
    failures: list[dict[str, str]] = []
    reads = 0

    def walk(path: str) -> None:
        nonlocal reads
        try:
            entries = files.ls(path, detail=True)
        except OSError as error:
            # Before fsspec 2024.12 a listing fails when a name in it goes away meanwhile.
            if not is_private_link(str(error.filename)):
                failures.append({"path": str(error.filename), "problem": repr(error)})
            return
        for entry in entries:
            name = entry["name"]
            if entry["type"] == "directory" and not entry["islink"]:
                walk(name)
            elif entry["type"] == "file" and not is_private_link(name):
                try:
                    with files.open(name) as stream:
                        stream.read()
                    reads += 1
                except OSError as error:
                    failures.append({"path": name, "problem": repr(error)})

    def is_private_link(name: str) -> bool:
        """Tell whether it is the private name of the next `latest`, which is there for a moment only."""
        return Path(name).parent.name == ".latest" and name.endswith(".link")

    passes = read_until_told(lambda: walk(str(directory)))
    return {"passes": passes, "reads": reads, "failures": failures}


if __name__ == "__main__":
    read = {"files": read_files, "fsspec": read_with_fsspec}[sys.argv[2]]
    json.dump(read(Path(sys.argv[1])), sys.stdout)
