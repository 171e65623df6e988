"""Recognise what stock NeMo left in one directory, by names alone; read-only.

A *log directory* is one that `exp_manager` wrote into. Its files lie in up to three kinds of places: at its top, in
the archives ``run_N`` into which a later launch moved them, and in ``version_N``, where Lightning put the event files
of a resumed experiment. What does not look exactly so is not ours: it is left alone and named.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from immutable_logs.layout import CHECKPOINTS, LATEST, RUNS, ExperimentLayout
from migration.file_kinds import CHECKPOINT_ENDINGS, SIGNS, Kind, classify

if TYPE_CHECKING:
    from pathlib import Path

_ARCHIVE: Final = re.compile(r"run_[0-9]+\Z")
_VERSION: Final = re.compile(r"version_[0-9]+\Z")
_DATETIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2}\Z")

_OTHERS: Final = {
    CHECKPOINTS: "checkpoints stay where they are",
    "wandb": "belongs to Weights & Biases, which finds its runs by their place",
    "mlruns": "belongs to MLflow, which finds its runs by their place",
}


class Place(Enum):
    """Where in a log directory a file lies."""

    TOP = "top"
    ARCHIVE = "archive"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class Source:
    """One directory with files of a log directory.

    Attributes:
        path: Relative to the experiment; empty for the experiment itself.
        place: Where that is in the log directory.
        mtime: When a name was last added or removed there; Unix time.
        files: How many files were seen there.
    """

    path: str
    place: Place
    mtime: float
    files: int = 0


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One directory that `exp_manager` wrote into; launches in it never share a file with another's.

    Attributes:
        path: Relative to the experiment; empty for the experiment itself.
        sources: Where its files lie: the top first, then archives and event directories by number.
    """

    path: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Something in or beside a log directory that the migration does not touch.

    Attributes:
        path: Relative to the experiment.
        reason: Why, for people.
        is_conflict: Whether somebody should look at it.
    """

    path: str
    reason: str
    is_conflict: bool = False


@dataclass(frozen=True, slots=True)
class LegacyExperiment:
    """An experiment whose log directories stock NeMo wrote.

    Attributes:
        path: The directory that will hold ``runs/``; absolute.
        log_directories: What was found in it.
        left_alone: Directories and links in it that are not ours; single files are judged by the plan.
    """

    path: Path
    log_directories: tuple[LogDirectory, ...]
    left_alone: tuple[LeftAlone, ...] = ()

    @property
    def files(self) -> int:
        """How many files were seen in its log directories."""
        return sum(source.files for log in self.log_directories for source in log.sources)


@dataclass(slots=True)
class Glance:
    """What the names in one directory say."""

    mtime: float
    has_signs: bool = False
    has_events: bool = False
    files: int = 0
    directories: list[str] = field(default_factory=list)
    odd: list[LeftAlone] = field(default_factory=list)


def experiment_in(
    directory: Path,
    glance: Glance,
    children: dict[str, Glance | None],
    archives: list[str] | None,
    versions: list[str],
) -> LegacyExperiment:
    """Return what was found in a directory.

    Args:
        directory: The directory.
        glance: What is in it.
        children: What is in its numbered directories.
        archives: Those of them that are archives; None if the directory itself is no log directory.
        versions: Those of them that are log directories of their own.
    """
    logs = []
    left = list(glance.odd)
    used = set(versions)
    if archives is not None:
        sources, used_here, odd = _sources("", glance, children, archives)
        logs.append(LogDirectory("", sources))
        used |= used_here
        left += odd
    for name in sorted(versions, key=_number):
        child = children[name]
        if child is None:
            continue
        inner: dict[str, Glance | None] = {
            each: try_glance(directory / name / each, []) for each in child.directories if is_numbered(each)
        }
        sources, used_here, odd = _sources(name, child, inner, [])
        logs.append(LogDirectory(name, sources))
        left += [LeftAlone(f"{name}/{item.path}", item.reason, item.is_conflict) for item in (*child.odd, *odd)]
        left += [
            LeftAlone(f"{name}/{each}", _why_left(each, inner.get(each)))
            for each in sorted(child.directories)
            if each not in used_here
        ]
    left += _conflicts(directory)
    ours = {RUNS, LATEST, "tensorboard", "requeue"}
    left += [
        LeftAlone(name, _why_left(name, children.get(name)))
        for name in sorted(glance.directories)
        if name not in used and name not in ours
    ]
    return LegacyExperiment(directory, tuple(logs), tuple(left))


def _conflicts(directory: Path) -> list[LeftAlone]:
    """Return what has a name that the immutable layout needs."""
    layout = ExperimentLayout(directory)
    found = [
        LeftAlone(path.name, "a file has the name of a directory of the immutable layout: rename it", is_conflict=True)
        for path in (layout.runs, layout.tensorboard)
        if os.path.lexists(path) and not path.is_dir()
    ]
    if os.path.lexists(layout.latest) and not layout.latest.is_symlink():
        found.append(LeftAlone(LATEST, "not a link to a run, so it does not show the newest one", is_conflict=True))
    return found


def single_version(directory: Path, glance: Glance, children: dict[str, Glance | None]) -> LegacyExperiment:
    """Return the experiment of a version directory that was named by itself: the directory above, and nothing else."""
    name = directory.name
    sources, used, odd = _sources(name, glance, children, [])
    left = [LeftAlone(f"{name}/{item.path}", item.reason, item.is_conflict) for item in (*glance.odd, *odd)]
    left += [
        LeftAlone(f"{name}/{each}", _why_left(each, children.get(each)))
        for each in sorted(glance.directories)
        if each not in used
    ]
    return LegacyExperiment(directory.parent, (LogDirectory(name, sources),), tuple(left))


def _sources(
    path: str, glance: Glance, children: dict[str, Glance | None], archives: list[str]
) -> tuple[tuple[Source, ...], set[str], list[LeftAlone]]:
    prefix = f"{path}/" if path else ""
    sources = [Source(path, Place.TOP, glance.mtime, glance.files)]
    used = set()
    odd: list[LeftAlone] = []
    for name in sorted(children, key=_number):
        child = children[name]
        if child is None:
            continue
        if name in archives:
            sources.append(Source(prefix + name, Place.ARCHIVE, child.mtime, child.files))
        elif holds_events(name, child):
            sources.append(Source(prefix + name, Place.EVENTS, child.mtime, child.files))
        else:
            continue
        used.add(name)
        odd += [LeftAlone(f"{name}/{item.path}", item.reason, item.is_conflict) for item in child.odd]
        odd += [LeftAlone(f"{name}/{each}", _why_left(each, None)) for each in sorted(child.directories)]
    return tuple(sources), used, odd


def glance_at(directory: Path) -> Glance:
    """Look at the names in a directory."""
    found = Glance(os.stat(directory).st_mtime)
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                kind = classify(entry.name)
                found.has_signs = found.has_signs or kind in SIGNS
                found.has_events = found.has_events or kind is Kind.EVENTS
                found.files += 1
                if kind is Kind.OTHER and _ARCHIVE.match(entry.name):
                    found.odd.append(LeftAlone(entry.name, "a file, not an archive of NeMo"))
            elif entry.is_dir(follow_symlinks=False):
                found.directories.append(entry.name)
            elif entry.is_symlink():
                if entry.name != LATEST:
                    found.odd.append(LeftAlone(entry.name, "a link; what it leads to is not NeMo's doing"))
            else:
                found.odd.append(LeftAlone(entry.name, _special(entry.stat(follow_symlinks=False).st_mode)))
    return found


def try_glance(directory: Path, problems: list[str]) -> Glance | None:
    """Look at the names in a directory; where that fails, `problems` receives why."""
    try:
        return glance_at(directory)
    except OSError as error:
        problems.append(f"cannot look into a directory ({error.strerror}): {directory}")
        return None


def is_archive_name(name: str) -> bool:
    """Tell whether NeMo could have given a name to an archive."""
    return bool(_ARCHIVE.match(name))


def is_numbered(name: str) -> bool:
    """Tell whether a name is one of an archive or of a version."""
    return is_archive_name(name) or is_version(name)


def is_version(name: str) -> bool:
    """Tell whether a name is one that `exp_manager` or Lightning gives to a version."""
    return bool(_VERSION.match(name) or _DATETIME.match(name))


def is_archive(name: str, glance: Glance) -> bool:
    """Tell whether a directory can be NeMo's archive: NeMo moves plain files only, so that a directory inside is not.

    With logs of NeMo in it, it is one all the same, to which somebody has added a directory.
    """
    return bool(_ARCHIVE.match(name) and glance.files and (glance.has_signs or not glance.directories))


def holds_events(name: str, glance: Glance) -> bool:
    """Tell whether a directory is Lightning's place for the event file of one launch of a resumed experiment."""
    return bool(_VERSION.match(name)) and glance.has_events and not glance.has_signs


def has_signs(glance: Glance | None) -> bool:
    """Tell whether there is a file that only NeMo writes."""
    return glance is not None and glance.has_signs


def has_archives(directory: Path) -> bool:
    """Tell whether a directory holds archives with logs of NeMo."""
    glance = try_glance(directory, [])
    if glance is None:
        return False
    return any(_ARCHIVE.match(name) and has_signs(try_glance(directory / name, [])) for name in glance.directories)


def _number(name: str) -> tuple[str, int, str]:
    """Order ``run_2`` before ``run_10``."""
    head, _, tail = name.rpartition("_")
    return (head, int(tail), name) if tail.isdecimal() and not _DATETIME.match(name) else (name, 0, name)


def _why_left(name: str, glance: Glance | None) -> str:
    if name in _OTHERS:
        return _OTHERS[name]
    if name.endswith(CHECKPOINT_ENDINGS):
        return _OTHERS[CHECKPOINTS]
    if _ARCHIVE.match(name):
        if glance is not None and not glance.files and not glance.directories:
            return "holds no file"
        return "holds directories and no log of NeMo, so it is not an archive of NeMo"
    if name.startswith("run_"):
        return "NeMo numbers its archives run_0, run_1, …; this one is somebody else's"
    return "not a directory that NeMo's exp_manager makes"


def _special(mode: int) -> str:
    for check, word in ((stat.S_ISSOCK, "socket"), (stat.S_ISFIFO, "named pipe")):
        if check(mode):
            return f"a {word}, not a file"
    return "a device, not a file"
