"""Read from one old file what it tells about its launch: times inside it, in its name, and of its last write.

NeMo stamps its lines in the local time of the training's host, which is not written down. The last line of a log was
written when the file was last modified, so that the difference of the two is the time zone, in quarters of an hour;
a difference that is none says that modification times were lost, as in a copy made without ``-p``.
"""

from __future__ import annotations

import calendar
import os
import re
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from migration.legacy_layout import Kind, Source, classify, rank_in

if TYPE_CHECKING:
    from pathlib import Path

_STAMP: Final = re.compile(rb"^\[NeMo [A-Z] ([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}) ", re.MULTILINE)
_HEADER: Final = b" Experiments will be logged at "
"""Every NeMo says so once a launch and rank, when `exp_manager` has chosen the directory."""

_EVENTS_NAME: Final = re.compile(r"events\.out\.tfevents\.([0-9]+)\.(.*)\.([0-9]+)\.[0-9]+(?:\..*)?\Z", re.DOTALL)
_FIT_STOPPED: Final = b"`Trainer.fit` stopped:"
_RESTORING: Final = b"Restoring states from the checkpoint path at "
_STEP: Final = re.compile(rb"(?:global step |Checkpoint save for step |`max_steps=)([0-9]+)")
_COMMIT: Final = re.compile(rb"commit hash: ([0-9a-f]{7,64})")

_BLOCK: Final = 1 << 20
_EDGE: Final = 1 << 16
_MAX_TEXT: Final = 4096
_ZONE_STEP: Final = 900.0
_ZONE_TOLERANCE: Final = 10.0
_MAX_ZONE: Final = 15 * 3600.0
_EVENT_HEAD: Final = struct.Struct("<8x4xBd")
"""A record of an event file: its length, a checksum, then the tag of field 1 and the wall time."""

_WALL_TIME_TAG: Final = 0x09


@dataclass(frozen=True, slots=True)
class FileEvidence:
    """What one old file tells.

    Attributes:
        source: The directory it lies in, relative to the experiment.
        name: Its name there.
        kind: What it is.
        size: Bytes.
        mtime: Last write; Unix time.
        device: Number of its file system.
        inode: Its number there.
        rank: The global rank in the name of a rank log.
        first: The first stamp inside, as if it were UTC.
        last: The last stamp inside, as if it were UTC.
        headers: The stamps of the lines that begin a launch, as if they were UTC.
        born: When it was made, where the file itself tells exactly; Unix time.
        writer: Host and process id of an event file's writer.
        text: What else matters of its content: the command line, the commit, the checkpoint restored.
        step: The highest global step mentioned towards its end.
        has_ended: Whether it tells that the training reached its end.
        problem: Why its content could not be read.
    """

    source: str
    name: str
    kind: Kind
    size: int
    mtime: float
    device: int
    inode: int
    rank: int | None = None
    first: float | None = None
    last: float | None = None
    headers: tuple[float, ...] = ()
    born: float | None = None
    writer: tuple[str, int] | None = None
    text: str | None = None
    step: int | None = None
    has_ended: bool = False
    problem: str | None = None

    @property
    def path(self) -> str:
        """The path, relative to the experiment."""
        return f"{self.source}/{self.name}" if self.source else self.name

    @property
    def zone(self) -> float | None:
        """Seconds to add to this file's stamps to have Unix time; None if its last write does not tell."""
        if self.last is None:
            return None
        difference = self.mtime - self.last
        zone = round(difference / _ZONE_STEP) * _ZONE_STEP
        return zone if abs(difference - zone) <= _ZONE_TOLERANCE and abs(zone) <= _MAX_ZONE else None


def read_evidence(experiment: Path, source: Source, name: str) -> FileEvidence:
    """Return what a file tells. Only rank logs are read to their end, in blocks; of others only their edges.

    Args:
        experiment: The experiment.
        source: The directory that the file lies in.
        name: The file's name there.

    Raises:
        OSError: If the file is gone.
    """
    kind = classify(name)
    # Texts: building a `Path` takes longer than the system call.
    path = os.path.join(experiment, source.path, name)
    status = os.lstat(path)
    facts: dict[str, Any] = {
        "source": source.path,
        "name": name,
        "kind": kind,
        "size": status.st_size,
        "mtime": status.st_mtime,
        "device": status.st_dev,
        "inode": status.st_ino,
    }
    read = _READERS.get(kind)
    if read is None:
        return FileEvidence(**facts)
    try:
        content = read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        content = {"problem": f"its content cannot be read ({error.strerror})"}
    return FileEvidence(**{**_in_name(name, kind), **facts, **content})


def _in_name(name: str, kind: Kind) -> dict[str, Any]:
    if kind is Kind.RANK_LOG:
        return {"rank": rank_in(name)}
    match = _EVENTS_NAME.match(name) if kind is Kind.EVENTS else None
    if match is None:
        return {}
    return {"born": float(match.group(1)), "writer": (match.group(2), int(match.group(3)))}


def _read_stamped(path: str) -> dict[str, Any]:
    """Read the stamps of a rank log or error log, all of it, a block at a time."""
    first = last = None
    headers = []
    step = None
    with open(path, "rb", buffering=0) as file:
        rest = b""
        while block := file.read(_BLOCK):
            block = rest + block
            cut = block.rfind(b"\n") + 1
            if cut == 0 and len(block) < _BLOCK:
                cut = len(block)
            rest = block[cut:][-_EDGE:]
            block = block[:cut]
            first = _first_stamp(block) if first is None else first
            last = _last_stamp(block) or last
            step = _last_step(block) or step
            headers += _headers(block)
        first = _first_stamp(rest) if first is None else first
        last = _last_stamp(rest) or last
        headers += _headers(rest)
    return {"first": first, "last": last, "headers": tuple(headers), "step": step}


def _read_lightning(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_EDGE)
        file.seek(max(0, size - _EDGE))
        tail = file.read(_EDGE)
    restored = head.partition(_RESTORING)[2].partition(b"\n")[0].strip()
    return {
        "text": _text(restored) or None,
        "step": _last_step(tail),
        "has_ended": _FIT_STOPPED in tail,
    }


def _read_arguments(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"text": _text(file.read(_MAX_TEXT))}


def _read_commit(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        match = _COMMIT.search(file.read(_MAX_TEXT))
    return {"text": match.group(1).decode("ascii") if match else None}


def _read_events(path: str) -> dict[str, Any]:
    """Read when an event file was made: its first record says so to the microsecond, its name to the second."""
    with open(path, "rb") as file:
        head = file.read(_EVENT_HEAD.size)
    if len(head) == _EVENT_HEAD.size:
        tag, wall_time = _EVENT_HEAD.unpack(head)
        named = _EVENTS_NAME.match(os.path.basename(path))
        # A clock does not run a day between naming a file and writing its first record: else this is something else.
        if tag == _WALL_TIME_TAG and named and abs(wall_time - int(named.group(1))) < 24 * 3600:
            return {"born": wall_time}
    return {}


_READERS: Final = {
    Kind.RANK_LOG: _read_stamped,
    Kind.ERRORS: _read_stamped,
    Kind.LIGHTNING: _read_lightning,
    Kind.ARGUMENTS: _read_arguments,
    Kind.GIT: _read_commit,
    Kind.EVENTS: _read_events,
}


def _first_stamp(block: bytes) -> float | None:
    match = _STAMP.search(block)
    return _parse(match.group(1)) if match else None


def _last_stamp(block: bytes) -> float | None:
    """Return the last stamp of a block, looking at its end first."""
    start = len(block)
    while start > 0:
        start = max(0, start - _EDGE)
        cut = block.find(b"\n", start) + 1 if start else 0
        matches = _STAMP.findall(block[cut:])
        if matches:
            return _parse(matches[-1])
    return None


def _last_step(block: bytes) -> int | None:
    return max(map(int, _STEP.findall(block[-_EDGE:])), default=None)


def _headers(block: bytes) -> list[float]:
    found = []
    position = block.find(_HEADER)
    while position >= 0:
        line = block.rfind(b"\n", 0, position) + 1
        match = _STAMP.match(block[line : position + 1])
        stamp = _parse(match.group(1)) if match else None
        if stamp is not None:
            found.append(stamp)
        position = block.find(_HEADER, position + 1)
    return found


@lru_cache(maxsize=4096)
def _parse(stamp: bytes) -> float | None:
    """Return the seconds of a stamp as if it were UTC; the logs of the ranks of a launch have the same ones."""
    with suppress(ValueError):
        return float(calendar.timegm(time.strptime(stamp.decode("ascii"), "%Y-%m-%d %H:%M:%S")))
    return None


def _text(data: bytes) -> str:
    return data[:_MAX_TEXT].decode("utf-8", "replace")
