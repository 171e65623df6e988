"""What a check of a mount says when a guarantee is missing: each is broken once, in the verb that the layout uses."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs import durable_files
from immutable_logs.check_filesystem import DEGRADED, HOLDS, MISSING, Finding, check_filesystem, names
from immutable_logs.check_filesystem.processes import in_processes
from immutable_logs.errors import ConfigurationError

Patch = pytest.MonkeyPatch

GUARANTEES = [
    "writing",
    "exclusive files",
    "symbolic links",
    "exclusive links",
    "hard links",
    "switch in one step",
    "rename over open files",
    "appends",
    "locks",
    "flushing to storage",
    "file times",
    "group access",
    "names",
]


def check(directory: Path) -> dict[str, Finding]:
    """Return the findings by name; nothing may be left of them."""
    report = check_filesystem(directory)
    assert os.listdir(directory) == []
    return {finding.name: finding for finding in report.findings}


def not_as_needed(findings: dict[str, Finding]) -> dict[str, str]:
    """Return the verdicts that are no `holds`."""
    return {name: finding.verdict for name, finding in findings.items() if finding.verdict != HOLDS}


def refuse(number: int) -> Callable[..., None]:
    """Return a system call that answers with an error."""

    def call(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number), "somewhere")

    return call


def test_a_local_file_system_holds_everything(tmp_path: Path) -> None:
    """Every guarantee is tried, in this order."""
    findings = check(tmp_path)

    assert list(findings) == GUARANTEES
    assert not_as_needed(findings) == {}


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, 524])
def test_without_symbolic_links(tmp_path: Path, monkeypatch: Patch, number: int) -> None:
    """The layout then uses files; what depends on links is not tried, and the switch with files."""
    monkeypatch.setattr(os, "symlink", refuse(number))

    findings = check(tmp_path)

    assert not_as_needed(findings) == {"symbolic links": DEGRADED}
    assert list(findings) == [name for name in GUARANTEES if name != "exclusive links"]
    assert "runs/latest.txt" in findings["symbolic links"].consequence


def test_links_that_read_otherwise(tmp_path: Path, monkeypatch: Patch) -> None:
    """Claims would be lost."""
    monkeypatch.setattr(os, "readlink", lambda _: "/absolute/target")

    findings = check(tmp_path)

    assert findings["symbolic links"].verdict == MISSING
    assert "exclusive links" not in findings


def test_without_hard_links(tmp_path: Path, monkeypatch: Patch) -> None:
    """A migration does without."""
    monkeypatch.setattr(os, "link", refuse(errno.EPERM))

    assert not_as_needed(check(tmp_path)) == {"hard links": DEGRADED}


def test_hard_links_that_are_copies(tmp_path: Path, monkeypatch: Patch) -> None:
    """As some mounts make them: two files, which cost twice the space."""
    monkeypatch.setattr(os, "link", lambda source, path, **_: path.write_bytes(source.read_bytes()))

    findings = check(tmp_path)

    assert not_as_needed(findings) == {"hard links": DEGRADED}
    assert "as a copy" in findings["hard links"].found


@pytest.mark.parametrize("kind", ["files", "links"])
def test_names_that_two_can_make(tmp_path: Path, monkeypatch: Patch, kind: str) -> None:
    """The one thing without which two launches get one run."""
    real_open = os.open
    if kind == "files":
        monkeypatch.setattr(
            os, "open", lambda path, flags, *rest, **more: real_open(path, flags & ~os.O_EXCL, *rest, **more)
        )
    else:
        real_symlink = os.symlink

        def symlink(text: str, path: Path) -> None:
            path.unlink(missing_ok=True)
            real_symlink(text, path)

        monkeypatch.setattr(os, "symlink", symlink)

    findings = check(tmp_path)

    finding = findings[f"exclusive {kind}"]
    assert finding.verdict == MISSING
    assert finding.figures["wrong"] > 0
    assert "do not use the immutable layout here" in finding.consequence


def test_a_winner_that_is_told_it_lost_is_allowed_for(tmp_path: Path, monkeypatch: Patch) -> None:
    """As by an NFS server that answers a repeated request."""
    real_symlink = os.symlink

    def symlink(text: str, path: Path) -> None:
        real_symlink(text, path)
        if path.parent.name == "links" and path.name == "7":
            raise FileExistsError(errno.EEXIST, "it is there", str(path))

    monkeypatch.setattr(os, "symlink", symlink)

    findings = check(tmp_path)

    assert not_as_needed(findings) == {}
    assert "1 winners were told that they had lost" in findings["exclusive links"].found


def test_a_rename_that_is_not_one_step(tmp_path: Path, monkeypatch: Patch) -> None:
    """Readers miss the name in between."""

    def replace(source: Path, target: Path) -> None:
        content = os.readlink(source) if source.is_symlink() else None
        target.unlink()
        if content is None:
            target.write_bytes(source.read_bytes())
        else:
            os.symlink(content, target)
        source.unlink()

    monkeypatch.setattr(os, "replace", replace)

    finding = check(tmp_path)["switch in one step"]

    assert finding.verdict == DEGRADED
    assert finding.figures["misses"] > 0


def test_a_rename_that_writes_over_what_is_open(tmp_path: Path, monkeypatch: Patch) -> None:
    """An open file must keep its content."""
    real_replace = os.replace

    def replace(source: Path, target: Path) -> None:
        if target.is_symlink():
            real_replace(source, target)
        else:
            target.write_bytes(source.read_bytes())
            source.unlink()

    monkeypatch.setattr(os, "replace", replace)

    assert not_as_needed(check(tmp_path)) == {"rename over open files": DEGRADED}


def test_appends_that_are_lost(tmp_path: Path, monkeypatch: Patch) -> None:
    """As on NFS, where a client writes at the end that it last knew of."""
    real_open = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, *rest, **more: real_open(path, flags & ~os.O_APPEND, *rest, **more)
    )

    findings = check(tmp_path)

    assert not_as_needed(findings) == {"appends": DEGRADED}
    assert findings["appends"].figures["lost"] > 0


def test_without_locks(tmp_path: Path, monkeypatch: Patch) -> None:
    """As on Lustre without the mount option."""
    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOSYS))

    findings = check(tmp_path)

    assert not_as_needed(findings) == {"locks": DEGRADED}
    assert findings["locks"].found == "there are none"


def test_locks_that_exclude_nobody(tmp_path: Path, monkeypatch: Patch) -> None:
    """As on a mount that says yes to everything."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    findings = check(tmp_path)

    assert not_as_needed(findings) == {"locks": DEGRADED}
    assert findings["locks"].found == "two processes held it at once"


def test_directories_that_cannot_be_flushed(tmp_path: Path, monkeypatch: Patch) -> None:
    """As on some FUSE mounts."""
    real_sync = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "no")
        real_sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)

    assert not_as_needed(check(tmp_path)) == {"flushing to storage": DEGRADED}


@pytest.mark.parametrize(("ahead", "verdict"), [(-60.0, HOLDS), (100_000.0, DEGRADED)])
def test_a_server_whose_clock_is_off(tmp_path: Path, monkeypatch: Patch, ahead: float, verdict: str) -> None:
    """A minute is borne; a day is not, where launches are told apart by their time."""
    real_time = durable_files.server_time
    monkeypatch.setattr(durable_files, "server_time", lambda directory: real_time(directory) + ahead)

    finding = check(tmp_path)["file times"]

    assert finding.verdict == verdict
    assert abs(finding.figures["server_ahead_seconds"] - ahead) < 1
    assert f"{abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}" in finding.found


def test_permissions_that_do_not_stick(tmp_path: Path, monkeypatch: Patch) -> None:
    """As on mounts that have one owner and one mode for everything."""
    monkeypatch.setattr(Path, "chmod", lambda _path, _mode: None)

    assert not_as_needed(check(tmp_path)) == {"group access": DEGRADED}


def test_names_without_case(tmp_path: Path, monkeypatch: Patch) -> None:
    """As on the disks of some laptops."""
    real_create = durable_files.create_exclusive

    def create(path: Path, data: bytes, **options: bool) -> bool:
        return path.name != "CASE" and real_create(path, data, **options)

    monkeypatch.setattr(durable_files, "create_exclusive", create)

    findings = check(tmp_path)

    assert not_as_needed(findings) == {"names": DEGRADED}
    assert findings["names"].found == "names that differ in case only are the same"


@pytest.mark.parametrize("kind", ["nothing", "a file"])
def test_what_is_no_directory(tmp_path: Path, kind: str) -> None:
    """Neither is made into one."""
    path = tmp_path / "there"
    if kind == "a file":
        path.write_text("content", encoding="utf-8")

    with pytest.raises(ConfigurationError, match=f"expected a directory .* found {kind}"):
        check_filesystem(path)


def test_leftovers_are_named_and_left(tmp_path: Path) -> None:
    """They can be in use by somebody else."""
    (tmp_path / ".immutable-logs-check-0123").mkdir()

    assert check_filesystem(tmp_path).leftovers == (".immutable-logs-check-0123",)
    assert os.listdir(tmp_path) == [".immutable-logs-check-0123"]


def test_an_error_in_a_process_is_the_error(tmp_path: Path) -> None:
    """With its number and its file, so that the message is the one that the operating system has for it."""
    with pytest.raises(FileNotFoundError) as caught:
        in_processes(3, lambda number: os.stat(tmp_path / "nothing" if number == 1 else tmp_path).st_mode)

    assert caught.value.filename == str(tmp_path / "nothing")


def test_a_process_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    """Whoever waits for it would wait for ever."""

    def act(number: int) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)

    with pytest.raises(ChildProcessError, match="ended without an answer"):
        in_processes(2, act)


def test_processes_run_at_once(tmp_path: Path) -> None:
    """Each waits for what another does, so that one after the other would never end."""

    def act(number: int) -> int:
        (tmp_path / str(number)).touch()
        while len(os.listdir(tmp_path)) < 3:
            pass
        return number

    assert in_processes(3, act) == [0, 1, 2]


def test_races_are_real(tmp_path: Path) -> None:
    """More than one process wins some of them, or the check could not find what it looks for."""
    (tmp_path / "races").mkdir()

    def act(number: int) -> list[bool]:
        return [
            durable_files.create_exclusive(tmp_path / "races" / str(turn), str(number).encode())
            for turn in range(10 * names.RACES)
        ]

    answers = in_processes(names.RACERS, act)

    assert sum(any(won) for won in answers) > 1
