"""Every exception of this package, and what an error of the system is told as.

One root, `ImmutableLogsError`; each child names a situation and derives from the nearest built-in, so that callers
who do not know this package still catch what they expect. Attributes survive pickling.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class ImmutableLogsError(Exception):
    """Root of all errors that this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and the attributes, whatever the signature of `__init__`."""
        return _restore, (type(self), self.args), self.__dict__


def _restore(kind: type[ImmutableLogsError], args: tuple[Any, ...]) -> ImmutableLogsError:
    """Return an unpickled error; `args` is set by hand, since `OSError.__new__` drops it where `__init__` is ours."""
    error = kind.__new__(kind)
    error.args = args
    return error


class InvalidRunIdError(ImmutableLogsError, ValueError):
    """A text is not a run id.

    Attributes:
        text: What was found.
    """

    def __init__(self, text: str) -> None:
        """Say what a run id looks like and what was found instead."""
        super().__init__(f"expected a run id such as 2026-12-01_02-28-15Z_k3v9q, found {text[:80]!r}")
        self.text = text


class UnknownRunError(ImmutableLogsError, LookupError):
    """A run reference leads to no run, or to several.

    Attributes:
        reference: What was asked for.
        experiment: Where it was looked for.
        candidates: The run ids that the reference could mean; empty if none.
    """

    def __init__(self, reference: str, experiment: Path, reason: str, candidates: Iterable[str] = ()) -> None:
        """Name the reference, why it failed and how references are written."""
        self.candidates = tuple(candidates)
        found = f": it could be {', '.join(self.candidates[:5])}" if self.candidates else ""
        super().__init__(
            f"{reason}{found}, in {experiment}\n"
            "HINT: a reference is a run id, the unique beginning of one, 'latest', or 'latest~N'; "
            "`immutable-logs ls` lists the runs"
        )
        self.reference = reference
        self.experiment = experiment


class NotAnExperimentError(ImmutableLogsError, FileNotFoundError):
    """A directory holds no runs.

    Attributes:
        path: The directory that was looked at.
    """

    def __init__(self, path: Path, reason: str) -> None:
        """Say what makes a directory an experiment."""
        super().__init__(
            f"{reason}: {path}\n"
            "HINT: name the directory that holds `runs/` (for NeMo, exp_dir/name or explicit_log_dir); "
            "most commands take it as `-e DIRECTORY`"
        )
        self.path = path


class LaunchDetectionError(ImmutableLogsError, RuntimeError):
    """It cannot be known which launch, or which rank of it, this process is.

    Attributes:
        source: The launcher that was recognised.
    """

    def __init__(self, source: str, message: str) -> None:
        """Keep the launcher beside the message."""
        super().__init__(message)
        self.source = source


class AgreementError(ImmutableLogsError, RuntimeError):
    """A rank could not settle on a run directory.

    Attributes:
        rank: The global rank.
        key: The launch key.
        path: The file or directory that stood in the way.
    """

    def __init__(self, message: str, *, rank: int, key: str, path: Path, hint: str = "") -> None:
        """Name rank, path and key beside the message, and what to do after it."""
        advice = f"\nHINT: {hint}" if hint else ""
        super().__init__(f"rank {rank} could not settle on a run: {message}, at {path} (launch key {key}){advice}")
        self.rank = rank
        self.key = key
        self.path = path


class NotVisibleError(ImmutableLogsError, TimeoutError):
    """A name that must exist did not show up in time.

    Attributes:
        path: The name that was waited for.
        seconds: How long.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        """Name the file and the time, and where to look."""
        super().__init__(
            f"waited {seconds:.0f} s for a name that exists on the file server but cannot be seen here: {path}\n"
            "HINT: is this directory really shared between the nodes, and is its mount alive?"
        )
        self.path = path
        self.seconds = seconds


class PeerError(ImmutableLogsError, TimeoutError):
    """The other of two calls that try a mount together does not answer."""


class RecordError(ImmutableLogsError, ValueError):
    """A record on disk cannot be read, or is of a format that this version does not know.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path | str, reason: str) -> None:
        """Name the file and what is wrong with it."""
        super().__init__(f"{reason}: {path}")
        self.path = path


class ConfigurationError(ImmutableLogsError, ValueError):
    """A setting has a value that is not one of the allowed ones, or is used where it cannot work.

    Attributes:
        key: The setting.
        value: What was found.
    """

    def __init__(self, key: str, value: object, message: str) -> None:
        """Keep the setting and its value beside the message."""
        super().__init__(message)
        self.key = key
        self.value = value


class ManifestBusyError(ImmutableLogsError, TimeoutError):
    """Somebody else holds the manifest's lock.

    Attributes:
        path: The manifest.
        seconds: How long it was waited for.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        """Name the file and the time."""
        super().__init__(
            f"waited {seconds:.0f} s for the lock of another process on {path}\n"
            "HINT: call it again; nothing was done that has to be undone"
        )
        self.path = path
        self.seconds = seconds


class RemovalError(ImmutableLogsError, OSError):
    """A directory could not be removed to the end.

    Attributes:
        path: What stood in the way.
    """

    def __init__(self, path: Path, reason: str) -> None:
        """Name the path and the reason."""
        super().__init__(f"{reason}: {path}")
        self.path = path


def describe_os_error(error: OSError) -> str:
    """Return what the system said, and of which name; some errors have the number of an open directory instead."""
    if isinstance(error, ImmutableLogsError) or not error.strerror:
        return str(error)
    if error.filename is None or isinstance(error.filename, int):
        return error.strerror
    return f"{error.strerror}: {os.fsdecode(error.filename)}"
