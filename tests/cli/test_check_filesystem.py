from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import keeps_links_back

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
StartProgram = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_program(program: str, plain_environ: dict[str, str]) -> Iterator[StartProgram]:
    """Starts the command and does not wait for its end."""
    started = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [program, *map(str, arguments)],
            env=plain_environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for_entry(directory: Path) -> Path:
    """Return what appears first in a directory."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := list(directory.iterdir()):
            return found[0]
        time.sleep(0.002)
    raise AssertionError("nothing appeared")


def wait_for_meeting(directory: Path, message: str = "first") -> Path:
    """Return the directory in which two calls meet, as soon as a message is there."""
    meeting = wait_for_entry(directory)
    deadline = time.monotonic() + 30
    while not (meeting / message).exists():
        assert time.monotonic() < deadline, message
        time.sleep(0.01)
    return meeting


def test_the_table(run_program: RunProgram, tmp_path: Path) -> None:
    """A line for each guarantee with what was found and what it means; what it is about goes to stderr."""
    completed = run_program("check-filesystem", tmp_path)

    assert completed.returncode == 0
    heading, *lines = (re.split(r"  +", line) for line in completed.stdout.splitlines())
    assert heading == ["GUARANTEE", "VERDICT", "FOUND", "MEANS"]
    assert len(lines) == 13
    assert {len(line) for line in lines} == {4}
    assert {line[1] for line in lines} == {"holds"}
    assert completed.stderr.startswith("13 holds, 0 degraded, 0 missing: ")
    assert f"tried on {socket.gethostname()} alone" in completed.stderr
    assert list(tmp_path.iterdir()) == []


def test_json(run_program: RunProgram, tmp_path: Path) -> None:
    """The same for programs, with the figures."""
    document = json.loads(run_program("check-filesystem", ".", "--json", cwd=tmp_path).stdout)

    assert document["format"] == 1
    assert document["directory"] == str(tmp_path)
    assert document["hosts"] == [socket.gethostname()]
    assert document["is_fit"] is True
    assert document["leftovers"] == []
    switch = next(each for each in document["findings"] if each["name"] == "switch in one step")
    assert set(switch) == {"name", "verdict", "found", "consequence", "figures"}
    assert switch["figures"]["reads"] == 1000
    assert switch["figures"]["switches"] > 0


@pytest.mark.parametrize("found", ["nothing", "a file"])
def test_no_directory(run_program: RunProgram, tmp_path: Path, found: str) -> None:
    """Wrong use, told in a sentence."""
    path = tmp_path / "there"
    if found == "a file":
        path.touch()

    completed = run_program("check-filesystem", path)

    assert completed.returncode == 2
    assert f"found {found}: {path}" in completed.stderr
    assert "HINT: " in completed.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_a_signal_that_ends_it_leaves_nothing(
    program: str, plain_environ: dict[str, str], tmp_path: Path, number: int, code: int
) -> None:
    """The private directory is removed and no process stays, whatever was going on; as a terminal signals, to all."""
    for pause in (0.0, 0.02, 0.06, 0.15):
        with subprocess.Popen(
            [program, "check-filesystem", tmp_path],
            env=plain_environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        ) as process:
            wait_for_entry(tmp_path)
            time.sleep(pause)
            os.killpg(process.pid, number)
            # Ends only when no process has the pipes any more.
            _, said = process.communicate(timeout=30)

        assert process.returncode == code
        assert "Traceback" not in said
        assert list(tmp_path.iterdir()) == []


def test_what_a_kill_leaves_is_named(start_program: StartProgram, run_program: RunProgram, tmp_path: Path) -> None:
    """The next check tells of it and leaves it alone."""
    process = start_program("check-filesystem", tmp_path)
    left = wait_for_entry(tmp_path)
    process.kill()
    process.wait()

    completed = run_program("check-filesystem", tmp_path)

    assert completed.returncode == 0
    assert f"Beside it, of other checks that go on or were killed: {left.name}" in completed.stderr
    assert list(tmp_path.iterdir()) == [left]


def test_two_calls_try_it_together(start_program: StartProgram, tmp_path: Path) -> None:
    """The first prints everything, the second only a word; the guarantees between two come last."""
    first = start_program("check-filesystem", tmp_path, "--peer", "try-1", "--json")
    meeting = wait_for_meeting(tmp_path)
    assert meeting.name == ".immutable-logs-check-peer-try-1"
    second = start_program("check-filesystem", tmp_path, "--peer", "try-1", "--json")
    told, said = first.communicate(timeout=60)

    assert second.communicate(timeout=60) == ("", "The other call prints what is found\n")
    assert (first.returncode, second.returncode) == (0, 0)
    assert "with --peer try-1" in said
    document = json.loads(told)
    assert document["hosts"] == [socket.gethostname()] * 2
    findings = {each["name"]: each for each in document["findings"]}
    assert {each["verdict"] for each in findings.values()} == {"holds"}
    assert list(findings)[-6:] == [
        "new names on two hosts",
        "switch on two hosts",
        "exclusive names on two hosts",
        "locks on two hosts",
        "appends on two hosts",
        "clocks of two hosts",
    ]
    assert findings["new names on two hosts"]["figures"]["listed_seconds"] < 5
    assert abs(findings["clocks of two hosts"]["figures"]["ahead_seconds"]) < 5
    assert list(tmp_path.iterdir()) == []


def test_a_third_call_is_refused(start_program: StartProgram, run_program: RunProgram, tmp_path: Path) -> None:
    """It would mix up the two that try it."""
    start_program("check-filesystem", tmp_path, "--peer", "try")
    meeting = wait_for_meeting(tmp_path)
    (meeting / "second").write_text("of somebody", encoding="utf-8")

    completed = run_program("check-filesystem", tmp_path, "--peer", "try")

    assert completed.returncode == 2
    assert "expected at most one other call with this name, found two" in completed.stderr
    assert "HINT: choose another name" in completed.stderr


def test_nobody_comes(run_program: RunProgram, tmp_path: Path) -> None:
    """Given up after the time that was asked for, and nothing left."""
    completed = run_program("check-filesystem", tmp_path, "--peer", "try", "--wait", "1")

    assert completed.returncode == 3
    assert "expected the other call's part (host) within 1 s" in completed.stderr
    assert "HINT: run the same command on the other host" in completed.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_first_goes_away(start_program: StartProgram, tmp_path: Path) -> None:
    """The second does not wait out its time."""
    first = start_program("check-filesystem", tmp_path, "--peer", "try")
    wait_for_meeting(tmp_path, "host.first")
    first.send_signal(signal.SIGSTOP)
    second = start_program("check-filesystem", tmp_path, "--peer", "try")
    wait_for_meeting(tmp_path, "host.second")
    first.send_signal(signal.SIGINT)
    first.send_signal(signal.SIGCONT)
    _, said = second.communicate(timeout=30)

    assert first.wait(30) == 130
    assert second.returncode == 3
    assert "the other call has ended before its time" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_goes_away(start_program: StartProgram, tmp_path: Path, number: int) -> None:
    """The first is told by what the second leaves, and does not wait out its time either."""
    first = start_program("check-filesystem", tmp_path, "--peer", "try")
    meeting = wait_for_meeting(tmp_path)
    first.send_signal(signal.SIGSTOP)
    second = start_program("check-filesystem", tmp_path, "--peer", "try")
    while not (meeting / "second").exists():
        time.sleep(0.01)
    wait_for_meeting(tmp_path, "host.second")
    second.send_signal(number)
    second.communicate(timeout=30)
    first.send_signal(signal.SIGCONT)
    _, said = first.communicate(timeout=30)

    assert first.returncode == 3
    assert "the other call has ended before its time" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 65, "a\nb"])
def test_names_of_a_meeting(run_program: RunProgram, tmp_path: Path, name: str) -> None:
    """They become a name on disk, so not everything can be one."""
    completed = run_program("check-filesystem", tmp_path, "--peer", name)

    assert completed.returncode == 2
    assert "expected up to 64 letters, digits" in completed.stderr
    assert list(tmp_path.iterdir()) == []


# What follows mounts real file systems.


@pytest.fixture
def check_on(run_on_mount: RunProgram, program: str, tmp_path: Path) -> RunProgram:
    """Runs the check on a mount of a kind, and then lists on stderr what is there."""

    def check(kind: str) -> subprocess.CompletedProcess[str]:
        place = tmp_path / "mounted"
        script = '"$0" check-filesystem "$1" --json; status=$?; ls -A "$1" >&2; exit $status'
        return run_on_mount(kind, place, "bash", "-c", script, program, place, timeout=120)

    return check


def verdicts(text: str) -> dict[str, str]:
    """Return what is not as needed."""
    return {each["name"]: each["verdict"] for each in json.loads(text)["findings"] if each["verdict"] != "holds"}


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay"])
def test_file_systems_that_give_everything(check_on: RunProgram, kind: str) -> None:
    """As docs/reference/file-systems.md says."""
    completed = check_on(kind)

    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    assert document["file_system"] == kind
    assert verdicts(completed.stdout) == {}


@pytest.mark.proof
def test_a_file_system_without_links(check_on: RunProgram) -> None:
    """FUSE and exFAT: no links of either kind, no rename in one step, no permissions, no case; runs are kept apart."""
    completed = check_on("exfat")

    assert completed.returncode == 0, completed.stderr
    assert verdicts(completed.stdout) == {
        "symbolic links": "degraded",
        "hard links": "degraded",
        "switch in one step": "degraded",
        "group access": "degraded",
        "names": "degraded",
    }


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "reason"), [("read-only", "Read-only file system"), ("full", "No space left on device")]
)
def test_where_nothing_can_be_written(check_on: RunProgram, kind: str, reason: str) -> None:
    """The operating system's reason, no traceback, and nothing left."""
    completed = check_on(kind)

    assert completed.returncode == 3
    assert completed.stdout == ""
    assert completed.stderr.startswith(f"Error: {reason}: ")
    assert "Traceback" not in completed.stderr
    assert ".immutable-logs-check" not in completed.stderr.partition("\n")[2]


@pytest.mark.proof
@pytest.mark.timeout(240)
def test_two_clients_with_caches(
    start_program: StartProgram, run_on_mount: RunProgram, program: str, tmp_path: Path
) -> None:
    """One call on the disk, one through SSHFS: new names are seen late by listing, and locks are each client's own."""
    mount, disk = tmp_path / "mount", tmp_path / "mount.source"
    script = '"$0" check-filesystem "$1" --peer try && "$0" check-filesystem "$1" --json'
    disk.mkdir()
    first = start_program("check-filesystem", disk, "--peer", "try", "--json")
    wait_for_meeting(disk)
    alone = run_on_mount("sshfs", mount, "bash", "-c", script, program, mount, timeout=200)
    told, said = first.communicate(timeout=60)

    assert (first.returncode, alone.returncode) == (0, 0), (said, alone.stderr)
    findings: dict[str, Any] = {each["name"]: each for each in json.loads(told)["findings"]}
    between = verdicts(told)
    between.pop("appends on two hosts", None)  # SSHFS writes at the end that it knew of: lost if both append at once
    assert between == {"locks on two hosts": "degraded"}
    assert findings["locks on two hosts"]["found"] == "each host has locks of its own"
    assert findings["new names on two hosts"]["figures"]["listed_seconds"] > 1
    assert findings["new names on two hosts"]["figures"]["asked_seconds"] < 1
    assert abs(findings["clocks of two hosts"]["figures"]["ahead_seconds"]) < 1
    degraded = verdicts(alone.stdout)
    degraded.pop("switch in one step", None)  # depends on whether a read meets a rename
    assert degraded.pop("symbolic links", "holds") == ("degraded" if keeps_links_back() else "holds")
    assert degraded == {"hard links": "degraded"}
    assert json.loads(alone.stdout)["file_system"] == "fuse.sshfs"
