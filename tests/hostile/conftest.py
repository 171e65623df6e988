"""Other users, and the launches and looks that are tried in every hostile place."""

from __future__ import annotations

import codecs
import functools
import io
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from immutable_logs import start_run
from immutable_logs.cli import main as run_command

LOOKS = (
    ("ls",),
    ("ls", "--json"),
    ("show",),
    ("show", "--json", "--graph"),
    ("path",),
    ("logs",),
    ("logs", "--errors"),
    ("diff",),
    ("verify",),
    ("verify", "--json"),
    ("tensorboard",),
    ("prune", "--keep-last", "1"),
    ("report", "-o", "-"),
)
"""Every command that looks at an experiment; the experiment and its option are added by `look_arguments`."""

_TAKES_OPTION = frozenset(("show", "path", "logs", "diff"))


def look_arguments(look: tuple[str, ...], experiment: Path) -> list[str]:
    """Return a command line that looks at an experiment."""
    return [*look, *(["-e"] if look[0] in _TAKES_OPTION else []), str(experiment)]


@dataclass(frozen=True)
class Told:
    """How a command ended, and what it said.

    Attributes:
        args: Its command line.
        returncode: Its exit code.
        stdout: The data.
        stderr: The talk.
    """

    args: list[str]
    returncode: int
    stdout: str
    stderr: str


def assert_told_well(finished: Told | subprocess.CompletedProcess[str], *codes: int) -> None:
    """See that a command ended with one of these exit codes, and never with a traceback."""
    said = f"{finished.args}\n{finished.stdout[-2000:]}\n{finished.stderr[-4000:]}"
    assert "Traceback" not in finished.stderr, said
    assert "fault of the program" not in finished.stderr, said
    assert finished.returncode in codes, said
    if finished.returncode > 1:
        assert "Error: " in finished.stderr, said


def run_in_this_process(arguments: list[str]) -> Told:
    """Run the entry of `immutable-logs`, with streams as those of a process."""
    output, errors = io.BytesIO(), io.BytesIO()
    code: object = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["immutable-logs", *arguments])
        patch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="utf-8", write_through=True))
        patch.setattr(sys, "stderr", io.TextIOWrapper(errors, encoding="utf-8", write_through=True))
        try:
            run_command()
        except SystemExit as ended:
            code = ended.code
        said = [stream.getvalue().decode("utf-8", "backslashreplace") for stream in (output, errors)]
    return Told(arguments, int(str(code or 0)), *said)


def take_name(path: Path, kind: str, elsewhere: Path) -> None:
    """Put something of a user's at a path, before anything of ours is there.

    Args:
        path: The name.
        kind: What to put there; a key of the branches below.
        elsewhere: A directory outside of the experiment, for links to lead to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        path.write_text("mine\n")
    elif kind == "directory":
        (path / "mine").mkdir(parents=True)
    elif kind == "dangling link":
        path.symlink_to(elsewhere / "nothing")
    elif kind == "link to a directory":
        elsewhere.mkdir(exist_ok=True)
        path.symlink_to(elsewhere)
    elif kind == "link to a file":
        (elsewhere.parent / "theirs.txt").write_text("theirs\n")
        path.symlink_to(elsewhere.parent / "theirs.txt")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener, _short_name(path) as name:
            listener.bind(name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        raise AssertionError(kind)


class _short_name:  # noqa: N801 - read as a verb in a `with` statement
    """A socket's name has 108 bytes at the most, so it is bound from within its directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> str:
        self._before = os.getcwd()
        os.chdir(self._path.parent)
        return self._path.name

    def __exit__(self, *_: object) -> None:
        os.chdir(self._before)


@dataclass(frozen=True)
class User:
    """Somebody without any privilege.

    Attributes:
        uid: The number.
        gid: The group.
    """

    uid: int
    gid: int

    def does(self, act: Callable[[], str | None], *, umask: int = 0o022) -> str:
        """Do something as this user in a process of its own, and return what it says.

        The process is forked, since the Python of the tests may be in a home directory that others cannot enter.
        """
        _load_what_is_loaded_late()
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # The threads of pytest's workers hold nothing that the child needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._become_and_do(act, umask, writing)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8", errors="backslashreplace") as stream:
            said = stream.read()
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, said
        return said

    def _become_and_do(self, act: Callable[[], str | None], umask: int, writing: int) -> NoReturn:
        code = 1
        try:
            signal.alarm(60)
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            logging.basicConfig(stream=os.fdopen(os.dup(2), "w"), force=True)
            os.setgroups([])
            os.setgid(self.gid)
            os.setuid(self.uid)
            os.umask(umask)
            os.write(1, (act() or "").encode("utf-8", "backslashreplace"))
            code = 0
        except BaseException:  # noqa: BLE001 - a forked child must not go on with the tests
            os.write(1, traceback.format_exc().encode("utf-8", "backslashreplace"))
        finally:
            os._exit(code)

    def runs_command(self, *arguments: object) -> tuple[int, str]:
        """Run `immutable-logs` as this user; return its exit code and all that it prints."""

        def act() -> str:
            sys.argv = ["immutable-logs", *map(str, arguments)]
            sys.stdout, sys.stderr = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(2), "w")
            try:
                run_command()
            except SystemExit as ended:
                sys.stdout.flush()
                sys.stderr.flush()
                return f"\nexit {ended.code or 0}"
            return "\nexit 0"

        text, _, code = self.does(act).rpartition("\nexit ")
        return int(code), text


@functools.cache
def _load_what_is_loaded_late() -> None:
    """Do once what users will do, while this process may read the modules that are loaded only then."""
    for encoding in ("ascii", "idna", "latin-1"):
        codecs.lookup(encoding)
    with tempfile.TemporaryDirectory() as directory:
        start_run(directory).finish()
        for look in LOOKS:
            run_in_this_process(look_arguments(look, Path(directory)))


@pytest.fixture
def as_root() -> None:
    """Skip where the tests cannot become other users."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become other users")


@pytest.fixture
def alice(as_root: None) -> User:
    """Somebody of the group 31337."""
    return User(uid=31001, gid=31337)


@pytest.fixture
def bob(as_root: None) -> User:
    """Somebody else of the same group."""
    return User(uid=31002, gid=31337)


@pytest.fixture
def mallory(as_root: None) -> User:
    """Somebody of another group."""
    return User(uid=31003, gid=31338)


@pytest.fixture
def common_place(as_root: None) -> Iterator[Path]:
    """A directory that every user can enter, which those of pytest are not; each test gives it its mode."""
    directory = Path(tempfile.mkdtemp(prefix="immutable-logs-tests-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def make_for() -> Callable[..., Path]:
    """Makes a directory with an owner, a group and a mode: ``make_for(path, user, 0o2775)``."""

    def make(path: Path, user: User, mode: int) -> Path:
        path.mkdir()
        os.chown(path, user.uid, user.gid)
        path.chmod(mode)
        return path

    return make


@pytest.fixture
def long_directory(tmp_path: Path) -> Callable[[int], Path]:
    """Makes a directory whose path has a given length; of one that no call takes, the path alone."""

    def make(length: int) -> Path:
        path = tmp_path
        while len(str(path)) < length:
            name = "d" * min(200, length - len(str(path)) - 1)
            if not name:
                break
            path = path / name
        if length < os.pathconf(tmp_path, "PC_PATH_MAX"):
            path.mkdir(parents=True)
        return path

    return make


@pytest.fixture
def command() -> Callable[..., Told]:
    """Runs the entry of `immutable-logs` in this process, since a thousand processes of its own would take minutes."""
    return lambda *arguments: run_in_this_process([str(each) for each in arguments])


@pytest.fixture
def start_and_finish() -> Callable[[Path], str]:
    """Starts a run, finishes it, and returns its id."""

    def run(experiment: Path) -> str:
        with start_run(experiment) as started:
            return started.id

    return run
