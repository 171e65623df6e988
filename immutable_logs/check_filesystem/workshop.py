"""The private directory in which a mount is tried, and its removal."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from immutable_logs.check_filesystem.processes import hold_signals
from immutable_logs.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = ".immutable-logs-check-"


def require_directory(directory: Path) -> Path:
    """Return a directory as an absolute path.

    Raises:
        ConfigurationError: If there is none.
    """
    if not directory.is_dir():
        found = "a file" if os.path.lexists(directory) else "nothing"
        raise ConfigurationError(
            "DIR",
            str(directory),
            f"expected a directory to try the file system in, found {found}: {directory}\n"
            "HINT: name a directory on the mount that the experiments will be on",
        )
    return Path(os.path.abspath(directory))


@contextmanager
def open_workshop(directory: Path) -> Iterator[Path]:
    """Make a directory with a name of its own, and remove it with all that is in it, also if a signal ends the check.

    Raises:
        OSError: If nothing can be written there.
    """
    workshop = directory / f"{PREFIX}{os.urandom(6).hex()}"
    try:
        os.mkdir(workshop)
        yield workshop
    except OSError as error:
        if error.filename is None:  # as for what a write or a flush answers
            error.filename = str(workshop)
        raise
    finally:
        remove(workshop)


def remove(workshop: Path) -> None:
    """Remove a directory of `open_workshop`; on NFS a file that is open somewhere can keep it for a moment."""
    with hold_signals(), suppress(OSError):
        shutil.rmtree(workshop)


def find_leftovers(directory: Path) -> tuple[str, ...]:
    """Return the names of directories that a killed check has left."""
    return tuple(sorted(name for name in os.listdir(directory) if name.startswith(PREFIX)))
