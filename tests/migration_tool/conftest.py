"""What the tests of the migration share: real old trees, old trees made to order, and a look at everything in one."""

from __future__ import annotations

import calendar
import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(__file__).parent / "corpus"

Contents = dict[bytes, str]


def corpus_names() -> list[str]:
    """Return the names of the real old trees."""
    return sorted(path.name.removesuffix(".tar.gz") for path in CORPUS.glob("*.tar.gz"))


def truth_of(name: str) -> dict[str, Any]:
    """Return how a real old tree was made."""
    truth: dict[str, Any] = json.loads((CORPUS / f"{name}.truth.json").read_text(encoding="utf-8"))
    return truth


@pytest.fixture
def truth() -> Callable[[str], dict[str, Any]]:
    """The function that tells how a real old tree was made."""
    return truth_of


@pytest.fixture(params=corpus_names())
def corpus_name(request: pytest.FixtureRequest) -> str:
    """The name of each real old tree in turn."""
    return str(request.param)


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[[str], Path]:
    """The function that unpacks a real old tree, times included."""

    def run(name: str) -> Path:
        target = tmp_path / name
        target.mkdir()
        subprocess.run(["tar", "-xzf", str(CORPUS / f"{name}.tar.gz"), "-C", str(target)], check=True)
        return target / "tiny"

    return run


def contents_of(directory: Path) -> Contents:
    """Return every name below a directory, as bytes, and what is behind it; links are not followed."""
    found = {}
    root = os.fsencode(directory)
    for parent, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = os.path.join(parent, name)
            if os.path.islink(path):
                what = f"link {os.readlink(path)!r}"
            elif os.path.isdir(path):
                what = "directory"
            else:
                what = hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).hexdigest()
            found[os.path.relpath(path, root)] = what
    return found


@pytest.fixture
def contents() -> Callable[[Path], Contents]:
    """The function that tells names and contents, to see that nothing has changed."""
    return contents_of


def event_head(seconds: float) -> bytes:
    """Return the bytes with which an event file made at a time begins."""
    record = b"\x09" + struct.pack("<d", seconds) + b"\x1a\x0dbrain.Event:2"
    return struct.pack("<Q", len(record)) + b"\0\0\0\0" + record + b"\0\0\0\0"


@dataclass
class OldTree:
    """A log directory that is treated as stock NeMo treats one, with times of one's own choice.

    Attributes:
        path: The log directory.
        zone: Hours by which the training's local time is ahead of UTC.
        archives: How many archives stock NeMo has made.
    """

    path: Path
    zone: float = 0.0
    archives: int = field(default=0)

    def write(self, name: str, text: str | bytes, when: float) -> Path:
        """Write a file whose last write was at a time."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        os.utime(path, (when, when))
        return path

    def stamp(self, seconds: float) -> str:
        """Return a time as NeMo writes it into its logs."""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds + self.zone * 3600))

    def log(self, times: Iterable[float], *, has_header: bool = True) -> str:
        """Return a NeMo log with a line at each of some times, the first of them the heading."""
        lines = []
        for number, when in enumerate(times):
            words = "Experiments will be logged at /data/tiny" if has_header and number == 0 else "a line"
            lines.append(f"[NeMo I {self.stamp(when)} exp_manager:1] {words}\n")
        return "".join(lines)

    def move(self, when: float) -> Path | None:
        """Move the files at the top into the next archive, as a launch at a time does."""
        files = [path for path in self.path.iterdir() if path.is_file() and not path.name.startswith("events.out")]
        if not files:
            return None
        archive = self.path / f"run_{self.archives}"
        self.archives += 1
        archive.mkdir()
        for path in files:
            path.rename(archive / path.name)
        os.utime(archive, (when, when))
        return archive

    def launch(
        self, start: float, *, end: float | None = None, pid: int = 100, ranks: Iterable[int] = (0,), fit: float = 2.0
    ) -> None:
        """Do what a launch of stock NeMo does from a start to an end, its files moved by the next launch only.

        Args:
            start: When rank zero writes its first file.
            end: Its last line.
            pid: The process id of rank zero.
            ranks: Ranks that write a log.
            fit: Seconds until the event file is made.
        """
        last = start + 30 if end is None else end
        self.path.mkdir(parents=True, exist_ok=True)
        self.move(start - 0.01)
        self.write("cmd-args.log", "train.py --steps 10", start)
        self.write("git-info.log", "commit hash: 0123456789abcdef0123456789abcdef01234567", start + 0.01)
        self.write("nemo_error_log.txt", self.log([start - 3, start], has_header=False), start)
        self.write("lightning_logs.txt", f"pid {pid}\n", last)
        for rank in ranks:
            self.write(f"nemo_log_globalrank-{rank}_localrank-{rank}.txt", self.log([start, last]), last)
        if start + fit <= last:
            self.events(start + fit, last, pid=pid)

    def events(self, born: float, last: float, *, pid: int, directory: str | None = None) -> Path:
        """Write an event file and its ``hparams.yaml`` into the next ``version_N``."""
        if directory is None:
            directory = f"version_{len(list(self.path.glob('version_*')))}"
        self.write(f"{directory}/hparams.yaml", "{}\n", born + 0.1)
        return self.write(f"{directory}/events.out.tfevents.{int(born)}.node.{pid}.0", event_head(born), last)


DAY = 24 * 3600.0
T0 = float(calendar.timegm((2025, 3, 1, 12, 0, 0)))


@pytest.fixture
def old_tree(tmp_path: Path) -> OldTree:
    """An empty log directory."""
    return OldTree(tmp_path / "nemo experiments" / "tiny")


@pytest.fixture
def make_tree() -> Callable[..., OldTree]:
    """The function that begins a log directory at a path."""
    return OldTree


@pytest.fixture
def start() -> float:
    """A time long ago, at a full second."""
    return T0


@pytest.fixture
def migrate() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The function that runs the installed program."""

    def run(*arguments: object, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["migrate-nemo-logs", *(os.fspath(each) if isinstance(each, Path) else str(each) for each in arguments)],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=100,
            check=False,
            env={**os.environ, "COLUMNS": "200", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        assert status is None or done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
