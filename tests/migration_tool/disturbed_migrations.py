"""Kill a command of the migration at each of its system calls in turn, run it again, and tell what is then different.

Arguments: an old tree, a directory to work in, and ``apply``, ``undo`` or ``finalize``; ``apply-apart`` is ``apply``
with a second process, which dies instead of the first where it is the one that makes the call. Prints one JSON object
a case.
A call is one that changes the file system: what CPython reports to an audit hook, and every `os.write`, of which half
is written before the kill.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from immutable_logs.layout import ExperimentLayout
from migration import linking
from migration.apply import apply_plan
from migration.finalize import finalize_migration
from migration.legacy_search import find_experiments
from migration.undo import undo_migration

CHANGES = {"os.mkdir", "os.link", "os.symlink", "os.rename", "os.remove", "os.rmdir", "os.chmod"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SECOND_DIED = 3
JOURNAL = "runs/.migration/journal.jsonl"


def contents(directory: Path) -> dict[str, str]:
    """Return what is in a tree; the journal, which tells how it came about, aside."""
    found = {}
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(parent, name)
            what = "directory"
            if path.is_symlink():
                what = os.readlink(path)
            elif path.is_file():
                what = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(directory))] = what
    found.pop(JOURNAL, None)
    return found


def run(command: str, tree: Path) -> None:
    """Run a command on a tree."""
    if command == "undo":
        undo_migration(ExperimentLayout.of(tree))
        return
    for experiment in find_experiments([tree], []):
        if command == "apply":
            apply_plan(experiment)
        else:
            finalize_migration(experiment, now=time.time())


def copy(source: Path, target: Path) -> Path:
    """Copy a tree with its times, links and second names."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    return target


def run_and_die(command: str, tree: Path, number: int) -> str | None:
    """Run a command in a child that is killed at a call; return the call, or None if there are fewer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0
        first = os.getpid()

        def die_at(name: str) -> bool:
            nonlocal count
            count += 1
            if count == number:
                real_write(writing, name.encode() + (b"" if os.getpid() == first else b" in the second process"))
            return count == number

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            is_change = event in CHANGES or (event == "open" and arguments[2] and arguments[2] & WRITING)
            if is_change and die_at(f"{event} {arguments[0]}"):
                os.kill(os.getpid(), signal.SIGKILL)

        def write(descriptor: int, data: bytes) -> int:
            if die_at("write"):
                real_write(descriptor, bytes(data[: len(data) // 2]))
                os.kill(os.getpid(), signal.SIGKILL)
            return real_write(descriptor, data)

        real_write = os.write
        os.write = write  # type: ignore[assignment]
        sys.addaudithook(hook)
        try:
            run(command, tree)
        except linking.LinkingStoppedError:
            os._exit(SECOND_DIED)
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        # Read to its end: a second process has the other end too, and works on until it sees that the first is gone.
        call = told.read()
    if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == SECOND_DIED:
        return call
    assert status == 0
    return None


def main(original: Path, work: Path, command: str) -> None:
    """Disturb a command at every call; a kill loses nothing that was written, so that nothing need be flushed."""
    os.fsync = lambda fd: None
    if command == "apply-apart":
        command = "apply"
        linking.MANY = 0  # type: ignore[misc]
    start = copy(original, work / "start")
    if command != "apply":
        run("apply", start)
    expected = copy(start, work / "expected")
    run(command, expected)
    wanted = contents(expected)
    number = 0
    while True:
        number += 1
        tree = copy(start, work / "tree")
        call = run_and_die(command, tree, number)
        if call is None:
            break
        half_way = copy(tree, work / "half-way")
        run(command, tree)
        differences = [
            f"{command} again: {each}" for each in sorted(set(contents(tree).items()) ^ set(wanted.items()))
        ]
        if command == "apply":
            run("undo", half_way)
            undone = set(contents(half_way).items()) ^ set(contents(original).items())
            differences += [f"undo: {each}" for each in sorted(undone)]
            run("undo", tree)
            undone = set(contents(tree).items()) ^ set(contents(original).items())
            differences += [f"apply again, undo: {each}" for each in sorted(undone)]
        print(json.dumps({"number": number, "call": call, "differences": differences}))


main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
