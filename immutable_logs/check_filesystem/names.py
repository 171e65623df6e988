"""Try how a mount makes, links and renames names."""

from __future__ import annotations

import errno
import mmap
import os
import time
from typing import TYPE_CHECKING, Final

from immutable_logs import durable_files
from immutable_logs.check_filesystem.findings import DEGRADED, HOLDS, MISSING, Finding
from immutable_logs.check_filesystem.marks import FILES, LINKS
from immutable_logs.check_filesystem.processes import in_processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from immutable_logs.check_filesystem.marks import Marks

RACERS: Final = 4
RACES: Final = 50
_READERS: Final = 2
_READS: Final = 500
_PAUSE: Final = 0.0002
"""Seconds between two reads of a reader."""


def check_exclusive_files(workshop: Path) -> Finding:
    """Let processes create the same files at once: each must be made by one of them, and hold what that one wrote."""
    return _race(
        workshop / "files",
        name="exclusive files",
        marks=FILES,
        good="each rank's entry, and without symbolic links the claim, has one maker",
        bad="two launches can get the same run: do not use the immutable layout here",
    )


def check_symbolic_links(workshop: Path) -> Finding:
    """Make a symbolic link and read it, then one that leads through ``..``, as those in ``tensorboard/`` do."""
    path, inner = workshop / "link", workshop / "inner" / "link"
    try:
        durable_files.create_link("target", path)
    except OSError as error:
        if not durable_files.is_without_links(error):
            raise
        return Finding(
            "symbolic links",
            DEGRADED,
            f"none: {error.strerror}",
            "claims are files, `latest` is the file runs/latest.txt, and there is no tensorboard/",
        )
    found = durable_files.read_link(path)
    if found != "target":
        return Finding("symbolic links", MISSING, f"{found!r} is read where 'target' was written", "claims are lost")
    inner.parent.mkdir()
    durable_files.create_link("../link", inner)
    try:
        durable_files.read_link(inner)
    except OSError as error:
        if not durable_files.is_link_hidden(error):
            raise
        return Finding(
            "symbolic links",
            DEGRADED,
            "those that lead through `..` cannot be followed",
            "claims and `latest` are links; tensorboard/ cannot be read through this mount (SSHFS: mount with "
            "-o no_contain_symlinks)",
        )
    return Finding("symbolic links", HOLDS, "made and read", "claims and `latest` are links")


def check_exclusive_links(workshop: Path) -> Finding:
    """Let processes make the same symbolic links at once; to be tried only where there are symbolic links."""
    return _race(
        workshop / "links",
        name="exclusive links",
        marks=LINKS,
        good="one rank's claim decides for all ranks of a launch",
        bad="the ranks of a launch can land in different runs: do not use the immutable layout here",
    )


def check_hard_links(workshop: Path) -> Finding:
    """Give a file a second name."""
    source, path = workshop / "one-name", workshop / "two-names"
    durable_files.create_exclusive(source, b"content")
    try:
        durable_files.create_hard_link(source, path)
    except OSError as error:
        if not durable_files.is_without_hard_links(error):
            raise
        return Finding(
            "hard links",
            DEGRADED,
            f"none: {error.strerror}",
            "a migration makes symbolic links or copies; `finalize` cannot remove the old names of links",
        )
    is_one = os.path.samestat(os.stat(source), os.stat(path))
    found = "made; both names lead to one file" if is_one else "made, but as a copy"
    return Finding(
        "hard links",
        HOLDS if is_one else DEGRADED,
        found,
        "a migration takes no space" if is_one else "a migration takes the space of what it adopts",
    )


def check_switch(workshop: Path, marks: Marks) -> Finding:
    """Let a process rename over a name for as long as others read it: they must find the old or the new one."""
    path = workshop / "switched"
    marks.put(path, "target-0")
    done = mmap.mmap(-1, _READERS)  # one byte of each reader, shared by the processes: whether it is done

    def act(number: int) -> int:
        """Return how often a reader found nothing, or, for the last process, how often it has renamed."""
        if number == _READERS:
            return _switch_until(lambda: all(done[:]), path, marks)
        try:
            return sum(_misses(lambda: marks.read(path)) for _ in range(_READS))
        finally:
            done[number] = 1

    *missed, switches = in_processes(_READERS + 1, act)
    reads, misses = _READERS * _READS, sum(missed)
    return Finding(
        "switch in one step",
        HOLDS if not misses else DEGRADED,
        f"{misses} of {reads} reads during {switches} renames found nothing",
        "`latest` is always there" if not misses else "a reader can miss `latest` for a moment",
        {"switches": switches, "reads": reads, "misses": misses},
    )


def check_rename_over_open_file(workshop: Path) -> Finding:
    """Rename over a file that a process has open: what is open must stay readable."""
    path, private = workshop / "opened", workshop / "opened-next"
    durable_files.create_exclusive(path, b"old")
    durable_files.create_exclusive(private, b"new")
    with path.open("rb") as file:
        try:
            durable_files.replace(private, path)
            old, new = file.read(), durable_files.read_bytes(path)
        except OSError as error:
            return Finding(
                "rename over open files", DEGRADED, f"{error.strerror}", "a reader of runs/latest.txt can fail once"
            )
    is_kept = (old, new) == (b"old", b"new")
    return Finding(
        "rename over open files",
        HOLDS if is_kept else DEGRADED,
        "the open file keeps its content" if is_kept else f"the open file now reads {old!r}, the new one {new!r}",
        "readers are not disturbed" if is_kept else "a reader of runs/latest.txt can get half of it",
    )


def check_names(workshop: Path) -> Finding:
    """Make the longest kind of name there is, and two that differ in case only."""
    directory = workshop / "names"
    os.mkdir(directory)
    longest = "n" * 255
    try:
        durable_files.create_exclusive(directory / longest, b"")
        has_long = True
    except OSError:
        has_long = False
    durable_files.create_exclusive(directory / "case", b"")
    has_case = durable_files.create_exclusive(directory / "CASE", b"")
    problems = [
        *([] if has_long else ["names of 255 characters are refused"]),
        *([] if has_case else ["names that differ in case only are the same"]),
    ]
    return Finding(
        "names",
        HOLDS if not problems else DEGRADED,
        "; ".join(problems) or "255 characters, upper and lower case",
        "every name of the layout can be made"
        if has_long
        else "the layout's own names are shorter; a long `exp_manager.name` is refused",
    )


def _switch_until(is_over: Callable[[], bool], path: Path, marks: Marks) -> int:
    """Rename over a name again and again, and return how often."""
    switches = 0
    while not is_over():
        switches += 1
        private = path.with_name(f"{path.name}-{switches}")
        marks.put(private, f"target-{switches}")
        durable_files.replace(private, path)
    return switches


def _misses(read: Callable[[], object]) -> bool:
    """Read once, and tell whether nothing was there; then let the others go on, also where there is one processor."""
    try:
        read()
    except OSError as error:
        # A network client can also find that the name leads to what is gone, again and again.
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        return True
    finally:
        time.sleep(_PAUSE)
    return False


def _race(
    directory: Path,
    *,
    name: str,
    marks: Marks,
    good: str,
    bad: str,
) -> Finding:
    os.mkdir(directory)

    def act(number: int) -> list[bool]:
        return [marks.put(directory / str(turn), f"maker-{number}") for turn in range(RACES)]

    answers = in_processes(RACERS, act)
    wrong = lost = 0
    for turn in range(RACES):
        makers = [f"maker-{number}" for number, won in enumerate(answers) if won[turn]]
        content = marks.read(directory / str(turn))
        wrong += len(makers) > 1 or (len(makers) == 1 and content != makers[0])
        lost += not makers
    words = f"{RACES - wrong} of {RACES} races of {RACERS} processes had one winner"
    if lost:
        words += f"; {lost} winners were told that they had lost, which is allowed for"
    return Finding(name, MISSING if wrong else HOLDS, words, bad if wrong else good, {"races": RACES, "wrong": wrong})
