from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs.process import Process, is_alive, process_age, this_process

if TYPE_CHECKING:
    from tests.conftest import Children

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

WAITING = """
    from dataclasses import asdict
    from immutable_logs.process import this_process
    report(**asdict(this_process()))
    gate()
"""


def identity_of(children: Children) -> Process:
    """Return the identity of a child that waits at its gate."""
    child = children.start(WAITING, is_gated=True)
    assert child.popen.stdout is not None
    return Process(**json.loads(child.popen.stdout.readline()))


def test_this_process_knows_itself() -> None:
    """Host and pid are always there."""
    process = this_process()

    assert process.host == socket.gethostname()
    assert process.pid == os.getpid()


@needs_proc
def test_living_and_ended_processes_are_told_apart(children: Children) -> None:
    """A child is seen to live, and to be gone once it has ended, reaped or not."""
    process = identity_of(children)
    observer = this_process()
    assert is_alive(process, observer) is True

    children.open_gate()
    deadline = time.monotonic() + 30.0
    while is_alive(process, observer) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_alive(process, observer) is False
    children.reap()
    assert is_alive(process, observer) is False


@needs_proc
def test_reused_pid_is_another_process() -> None:
    """The same pid with another start time does not live."""
    process = this_process()
    assert process.start_ticks is not None
    earlier = dataclasses.replace(process, start_ticks=process.start_ticks - 1)

    assert is_alive(process, process) is True
    assert is_alive(earlier, process) is False


@needs_proc
@pytest.mark.parametrize("field", ["host", "boot_id", "pid_namespace"])
def test_process_elsewhere_cannot_be_judged(field: str) -> None:
    """On another host, before a reboot and in another container, the pid says nothing."""
    process = this_process()

    changes: dict[str, Any] = {field: "another"}
    assert is_alive(process, dataclasses.replace(process, **changes)) is None


@pytest.mark.parametrize("unknown", [Process("host", 1), Process("host", 1, boot_id="b")])
def test_process_of_unknown_start_cannot_be_judged(unknown: Process) -> None:
    """Where there was no `/proc` nobody knows."""
    assert is_alive(unknown, unknown) is None


@needs_proc
def test_name_with_spaces_and_brackets_does_not_confuse(children: Children) -> None:
    """The command name is free text in the middle of the numbers."""
    code = """
        from immutable_logs.process import this_process
        before = this_process().start_ticks
        with open("/proc/self/comm", "w") as file:
            file.write("a) Z 1 (b")
        report(before=before, after=this_process().start_ticks)
    """
    found = children.start(code).report()

    assert found["before"] == found["after"] is not None


@needs_proc
def test_age_of_the_process_is_its_age(children: Children) -> None:
    """It counts from the start of the process, which is before the first import, and grows."""
    before = time.time()
    child = children.start("from immutable_logs.process import process_age\nreport(age=process_age())")
    age = child.report()["age"]

    assert 0.0 <= age <= time.time() - before + 0.1
    first = process_age()
    time.sleep(0.05)
    assert first < process_age()
