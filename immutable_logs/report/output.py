"""Write the page in one step, and never over a file that is somebody's own."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from immutable_logs import durable_files
from immutable_logs.errors import ConfigurationError
from immutable_logs.report.page import GENERATOR

if TYPE_CHECKING:
    from pathlib import Path

_BEGINNING: Final = 2048
_SIGNATURE: Final = f'<meta name="generator" content="{GENERATOR}">'.encode()
_DOCTYPE: Final = b"<!doctype html>"


def check_output(path: Path, *, is_forced: bool) -> None:
    """See that a file may be written.

    Args:
        path: The file.
        is_forced: A regular file that is no report may be replaced too.

    Raises:
        ConfigurationError: If something has the name that is not to be replaced.
        OSError: If it cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        # The directory must be there, though.
        os.stat(path.parent)
        return
    if stat.S_ISDIR(mode):
        raise ConfigurationError(
            "--output",
            path,
            f"expected --output to be a file, found a directory: {path}\nHINT: --output {path}/report.html",
        )
    if stat.S_ISREG(mode) and not is_forced and not _is_report(path):
        raise ConfigurationError(
            "--output",
            path,
            f"expected --output to be a new file or an older report, found another file: {path}\n"
            "HINT: --force overwrites it",
        )


def write_output(path: Path, page: bytes, *, is_forced: bool) -> None:
    """Write a page: a reader finds the old file or the new one, whole.

    After a kill in the middle a hidden file is left beside it. A link is followed, since its owner wants it to stay
    one; a device or a pipe is written to.

    Args:
        path: The file.
        page: The whole content.
        is_forced: As for `check_output`, which is asked again: making the page can have taken minutes.

    Raises:
        ConfigurationError: If something has the name that is not to be replaced.
        OSError: If it cannot be written.
    """
    check_output(path, is_forced=is_forced)
    target = type(path)(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            stream.write(page)
        return
    private = target.with_name(f".{target.name[:100]}.{os.urandom(6).hex()}")
    try:
        durable_files.create_exclusive(private, page)
        durable_files.replace(private, target)
    except BaseException as error:
        with suppress(OSError):
            os.remove(private)
        if isinstance(error, OSError):
            # Under the name that was asked for; nobody knows the private one.
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        raise


def _is_report(path: Path) -> bool:
    with path.open("rb") as stream:
        beginning = stream.read(_BEGINNING)
    # An empty file holds nothing that could be lost: `mktemp` has made it.
    return not beginning or (beginning.startswith(_DOCTYPE) and _SIGNATURE in beginning)
