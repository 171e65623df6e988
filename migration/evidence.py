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
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from immutable_logs.layout import CHECKPOINTS
from migration.file_kinds import Kind, classify, rank_in

if TYPE_CHECKING:
    from pathlib import Path

    from migration.legacy_layout import Source

_STAMP: Final = re.compile(rb"^\[NeMo [A-Z] ([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}) ", re.MULTILINE)
_STAMP_BEGIN: Final = b"[NeMo "
_HEADER: Final = b" Experiments will be logged at "
"""Every NeMo says so once a launch and rank, when `exp_manager` has chosen the directory."""

_EVENTS_NAME: Final = re.compile(r"events\.out\.tfevents\.([0-9]+)\.(.*)\.([0-9]+)\.[0-9]+(?:\..*)?\Z", re.DOTALL)
_FIT_STOPPED: Final = b"`Trainer.fit` stopped:"
_RESTORING: Final = b"Restoring states from the checkpoint path at "
_SAVING: Final = re.compile(rb"saving model to '([^'\n]+)/[^/'\n]+'")
_SEARCHING: Final = re.compile(rb"no checkpoint folder at checkpoint_dir :(.+)\. Training from scratch")
_STEP: Final = re.compile(rb"(?:global step |Checkpoint save for step |`max_steps=)([0-9]+)")
_COMMIT: Final = re.compile(rb"commit hash: ([0-9a-f]{7,64})")

KEPT: Final = 120.0
"""NeMo keeps messages in memory until it has a file: how many seconds before a start the first stamp can lie."""

_MAX_KEPT: Final = 1000
"""How many such messages there can be."""

_READING: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_BLOCK: Final = 1 << 20
_EDGE: Final = 1 << 16
_MAX_TEXT: Final = 4096
_ZONE_STEP: Final = 900.0
_ZONE_TOLERANCE: Final = 10.0
_MAX_ZONE: Final = 15 * 3600.0
_EVENT_HEAD: Final = struct.Struct("<8x4xBd")
"""A record of an event file: its length, a checksum, then the tag of field 1 and the wall time."""

_WALL_TIME_TAG: Final = 0x09


class FileEvidence(NamedTuple):
    """What one old file tells; a tuple, since a million are made, one after the other.

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
        ends: For each of these, the last stamp of what was written before that launch began, if it can be told.
        born: When it was made, where the file itself tells exactly; Unix time.
        writer: Host and process id of an event file's writer.
        text: What else matters of its content: the command line, the commit, the checkpoint restored.
        log_directory: Where the log directory was when this was written, as the file itself names it; not looked for
            in the logs of ranks but zero.
        step: The highest global step mentioned towards its end; not looked for in the logs of ranks but zero.
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
    ends: tuple[float | None, ...] = ()
    born: float | None = None
    writer: tuple[str, int] | None = None
    text: str | None = None
    log_directory: str | None = None
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


def read_evidence(experiment: Path | str, source: Source, name: str) -> FileEvidence:
    """Return what a file tells. Only rank logs are read to their end, in blocks; of others only their edges.

    What is read is the very file whose inode is told, also while a launch moves files.

    Args:
        experiment: The experiment.
        source: The directory that the file lies in.
        name: The file's name there.

    Raises:
        OSError: If the file is gone.
    """
    kind = classify(name)
    # Texts: building a `Path` takes longer than the system call.
    path = f"{experiment}/{source.path}/{name}" if source.path else f"{experiment}/{name}"
    read = _READERS.get(kind)
    if read is None:
        return _evidence(source, name, kind, os.lstat(path), {})
    try:
        descriptor = os.open(path, _READING)
    except FileNotFoundError:
        raise
    except OSError as error:
        return _evidence(source, name, kind, os.lstat(path), _unreadable(name, error))
    try:
        status = os.fstat(descriptor)
        try:
            content = read(descriptor, name, status.st_size)
        except OSError as error:
            content = _unreadable(name, error)
    finally:
        os.close(descriptor)
    return _evidence(source, name, kind, status, content)


def _evidence(source: Source, name: str, kind: Kind, status: os.stat_result, content: dict[str, Any]) -> FileEvidence:
    return FileEvidence(
        source.path, name, kind, status.st_size, status.st_mtime, status.st_dev, status.st_ino, **content
    )


def _unreadable(name: str, error: OSError) -> dict[str, Any]:
    return {
        **_in_events_name(name),
        "rank": rank_in(name),
        "problem": f"its content cannot be read ({error.strerror})",
    }


def _in_events_name(name: str) -> dict[str, Any]:
    match = _EVENTS_NAME.match(name)
    return {} if match is None else {"born": float(match.group(1)), "writer": (match.group(2), int(match.group(3)))}


def _read_rank_log(descriptor: int, name: str, size: int) -> dict[str, Any]:
    rank = rank_in(name)
    content = _read_stamped(descriptor, size, is_rank_zeros=rank == 0)
    content["rank"] = rank
    return content


def _read_error_log(descriptor: int, _: str, size: int) -> dict[str, Any]:
    return _read_stamped(descriptor, size, is_rank_zeros=True)


def _read_stamped(descriptor: int, size: int, *, is_rank_zeros: bool) -> dict[str, Any]:
    """Read the stamps of a rank log or error log, all of it: a small one in one go, another a block at a time."""
    if size < _EDGE:
        whole = os.read(descriptor, size + 1)
        if len(whole) == size:
            content = _told_by(_headings(whole))
            content["first"] = _first_stamp(whole)
            content["last"] = _last_stamp(whole)
            if is_rank_zeros:
                content["step"] = _last_step(whole)
                content["log_directory"] = _log_directory(whole)
            return content
        # It has grown meanwhile.
        os.lseek(descriptor, 0, os.SEEK_SET)
    first = last = step = log_directory = None
    headings: list[tuple[float, float | None]] = []
    rest = b""
    while piece := os.read(descriptor, _BLOCK):
        block = rest + piece
        cut = block.rfind(b"\n") + 1
        if cut == 0 and len(block) < _BLOCK:
            cut = len(block)
        rest = block[cut:][-_EDGE:]
        block = block[:cut]
        first = _first_stamp(block) if first is None else first
        last = _last_stamp(block) or last
        if is_rank_zeros:
            step = _last_step(block) or step
            log_directory = log_directory or _log_directory(block)
        headings += _headings(block)
    first = _first_stamp(rest) if first is None else first
    last = _last_stamp(rest) or last
    headings += _headings(rest)
    return {"first": first, "last": last, "log_directory": log_directory, "step": step, **_told_by(headings)}


def _told_by(headings: list[tuple[float, float | None]]) -> dict[str, Any]:
    if not headings:
        return {}
    headers, ends = zip(*headings, strict=True)
    return {"headers": headers, "ends": ends}


def _read_lightning(descriptor: int, _: str, size: int) -> dict[str, Any]:
    head = os.pread(descriptor, _EDGE, 0)
    tail = os.pread(descriptor, _EDGE, max(0, size - _EDGE))
    restored = head.partition(_RESTORING)[2].partition(b"\n")[0].strip()
    return {
        "text": _text(restored) or None,
        "log_directory": _log_directory(head) or _log_directory(tail),
        "step": _last_step(tail),
        "has_ended": _FIT_STOPPED in tail,
    }


def _read_arguments(descriptor: int, _name: str, _size: int) -> dict[str, Any]:
    return {"text": _text(os.read(descriptor, _MAX_TEXT))}


def _read_commit(descriptor: int, _name: str, _size: int) -> dict[str, Any]:
    match = _COMMIT.search(os.read(descriptor, _MAX_TEXT))
    return {"text": match.group(1).decode("ascii") if match else None}


def _read_events(descriptor: int, name: str, _: int) -> dict[str, Any]:
    """Read when an event file was made: its first record says so to the microsecond, its name to the second."""
    told = _in_events_name(name)
    head = os.read(descriptor, _EVENT_HEAD.size)
    if len(head) == _EVENT_HEAD.size:
        tag, wall_time = _EVENT_HEAD.unpack(head)
        # A clock does not run a day between naming a file and writing its first record: else this is something else.
        if tag == _WALL_TIME_TAG and told and abs(wall_time - told["born"]) < 24 * 3600:
            told["born"] = wall_time
    return told


_READERS: Final = {
    Kind.RANK_LOG: _read_rank_log,
    Kind.ERRORS: _read_error_log,
    Kind.LIGHTNING: _read_lightning,
    Kind.ARGUMENTS: _read_arguments,
    Kind.GIT: _read_commit,
    Kind.EVENTS: _read_events,
}


def _first_stamp(block: bytes) -> float | None:
    # The first line has one nearly always, and `search` is slow to begin.
    match = _STAMP.match(block) or _STAMP.search(block)
    return _parse(match.group(1)) if match else None


def _last_stamp(block: bytes) -> float | None:
    """Return the last stamp of a block, looking from its end."""
    end = len(block)
    while (position := block.rfind(_STAMP_BEGIN, 0, end)) >= 0:
        match = _STAMP.match(block, position)
        if match:
            return _parse(match.group(1))
        end = position
    return None


def _last_step(block: bytes) -> int | None:
    return max(map(int, _STEP.findall(block[-_EDGE:])), default=None)


def _log_directory(block: bytes) -> str | None:
    """Return the log directory of which a log speaks: in a heading, or as the one that has ``checkpoints/``."""
    position = block.find(_HEADER)
    if position >= 0:
        return _text(block[position + len(_HEADER) :].partition(b"\n")[0].strip()) or None
    match = _SEARCHING.search(block) or _SAVING.search(block)
    return _text(match.group(1)).removesuffix(f"/{CHECKPOINTS}") if match else None


def _headings(block: bytes) -> list[tuple[float, float | None]]:
    """Return the stamps of the lines that begin a launch, each with the last stamp of the launch before it."""
    found = []
    before = 0
    position = block.find(_HEADER)
    while position >= 0:
        line = block.rfind(b"\n", 0, position) + 1
        match = _STAMP.match(block, line, position + 1)
        stamp = _parse(match.group(1)) if match else None
        if stamp is not None:
            found.append((stamp, _end_before(block, before, line, stamp) if line > before else None))
            before = line
        position = block.find(_HEADER, position + 1)
    return found


def _end_before(block: bytes, begin: int, line: int, heading: float) -> float | None:
    """Return the last stamp before a launch's part of a log, which is not before the heading that begins there.

    NeMo keeps lines in memory until it has a file, so that some lines before the heading are that launch's own. They
    come after the longest pause in the last two minutes.
    """
    end = None
    longest = -1.0
    following = heading
    for _ in range(_MAX_KEPT):
        line = block.rfind(_STAMP_BEGIN, begin, line)
        if line < 0:
            break
        match = _STAMP.match(block, line)
        stamp = _parse(match.group(1)) if match else None
        if stamp is None:
            continue
        if following - stamp > longest:
            longest, end = following - stamp, stamp
        if heading - stamp > KEPT:
            break
        following = stamp
    return end


@lru_cache(maxsize=4096)
def _parse(stamp: bytes) -> float | None:
    """Return the seconds of a stamp as if it were UTC; the logs of the ranks of a launch have the same ones."""
    with suppress(ValueError):
        return float(calendar.timegm(time.strptime(stamp.decode("ascii"), "%Y-%m-%d %H:%M:%S")))
    return None


def _text(data: bytes) -> str:
    return data[:_MAX_TEXT].decode("utf-8", "replace")
