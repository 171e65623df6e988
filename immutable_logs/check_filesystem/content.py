"""Try how a mount appends, locks and flushes."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Final

from immutable_logs import durable_files
from immutable_logs.check_filesystem.findings import DEGRADED, HOLDS, MISSING, Finding
from immutable_logs.check_filesystem.processes import in_processes

if TYPE_CHECKING:
    from pathlib import Path

WRITERS: Final = 4
LINES: Final = 25
_LINE_LENGTH: Final = 300
"""Bytes; about what a line of the manifest has."""

_LOCK_TIMEOUT: Final = 30.0
_FILES: Final = 20


def check_appends(workshop: Path) -> Finding:
    """Let processes append lines to one file at once, without a lock: every line must be there, whole, once."""
    path = workshop / "appended"
    append_lines(path, writers=WRITERS)
    return judge_appends(path, writers=[str(number) for number in range(WRITERS)], where="on this host")


def append_lines(path: Path, *, writers: int) -> None:
    """Append `LINES` lines in each of some processes."""
    in_processes(writers, lambda number: append_lines_of(path, str(number)))


def append_lines_of(path: Path, writer: str) -> None:
    """Append the lines of one writer."""
    for number in range(LINES):
        durable_files.append(path, _line(writer, number), after_newline=False)


def judge_appends(path: Path, *, writers: list[str], where: str, name: str = "appends") -> Finding:
    """Return what became of the lines of some writers."""
    lines = durable_files.read_bytes(path).split(b"\n")
    there = [line for line in lines if line]
    expected = {_line(writer, number).strip() for writer in writers for number in range(LINES)}
    lost = len(expected - set(there))
    return Finding(
        name,
        DEGRADED if lost else HOLDS,
        f"{len(expected) - lost} of {len(expected)} lines of {len(writers)} writers {where} are there",
        "the manifest keeps every line without a lock too"
        if not lost
        else "without the lock manifest lines can be lost: readers find the runs all the same, and `verify --repair` "
        "adds the lines again",
        {"lines": len(expected), "lost": lost},
    )


def check_locks(workshop: Path) -> Finding:
    """Hold a lock in one process and ask for it in another, then let processes count under it."""
    path, counter = workshop / "lock", workshop / "counter"
    with durable_files.locked(path, timeout=0) as is_held:
        if not is_held:
            return no_locks("there are none")
        (is_taken_too,) = in_processes(1, lambda _: try_lock(path))
    if is_taken_too:
        return no_locks("two processes held it at once")
    durable_files.create_exclusive(counter, b"0")
    failed = sum(in_processes(WRITERS, lambda _: _count_up(path, counter)))
    counted = int(durable_files.read_bytes(counter))
    if failed or counted != WRITERS * LINES:
        return no_locks(f"{counted} of {WRITERS * LINES} counts under the lock are there")
    return Finding(
        "locks",
        HOLDS,
        f"{WRITERS} processes counted to {counted} under it",
        "`latest` never goes back to an earlier run; manifest lines are never mixed",
    )


def try_lock(path: Path) -> bool:
    """Tell whether a lock is free."""
    with durable_files.locked(path, timeout=0) as is_held:
        return is_held


def no_locks(found: str, name: str = "locks") -> Finding:
    """Return the finding for a lock that does not hold."""
    return Finding(
        name,
        DEGRADED,
        found,
        "two launches that publish in the same instant can pass `latest` back and forth before it rests on the later "
        "one",
    )


def check_flushing(workshop: Path) -> Finding:
    """Flush small files and their directory to storage, and take the time."""
    seconds = []
    for number in range(_FILES):
        begin = time.perf_counter()
        durable_files.create_exclusive(workshop / f"flushed-{number}", b"x" * 1000, durable=True)
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds) * 1000
    figures = {"milliseconds": round(median, 3)}
    if not durable_files.sync_directory(workshop):
        return Finding(
            "flushing to storage",
            DEGRADED,
            "directories cannot be flushed",
            "after a loss of power the last names can be missing",
            figures,
        )
    return Finding(
        "flushing to storage",
        HOLDS,
        f"a file and its directory in {median:.1f} ms",
        "records survive a loss of power",
        figures,
    )


def check_writing(workshop: Path) -> Finding:
    """Write a file, and read it in another process."""
    path = workshop / "written"
    content = os.urandom(5000)
    durable_files.create_exclusive(path, content)
    (found,) = in_processes(1, lambda _: durable_files.read_bytes(path).hex())
    if bytes.fromhex(found) != content:
        return Finding(
            "writing", MISSING, "another process reads something else than was written", "do not use this directory"
        )
    return Finding("writing", HOLDS, "another process reads what was written", "records can be trusted")


def _line(writer: str, number: int) -> bytes:
    return f"{writer}:{number}:".encode().ljust(_LINE_LENGTH - 1, b".") + b"\n"


def _count_up(lock: Path, counter: Path) -> int:
    """Add one for each line, and return how often the lock could not be had."""
    failed = 0
    for _ in range(LINES):
        with durable_files.locked(lock, timeout=_LOCK_TIMEOUT) as is_held:
            failed += not is_held
            # In place, so that the count is read and written while the lock is held, and by nothing else.
            counter.write_bytes(b"%d" % (int(durable_files.read_bytes(counter) or 0) + 1))
    return failed
