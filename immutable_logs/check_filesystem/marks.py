"""The two ways in which the layout puts a text at a name: as a symbolic link, and where there are none as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from immutable_logs import durable_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Marks(NamedTuple):
    """One of the two ways.

    Attributes:
        put: Puts a text at a name, unless the name is taken, and tells whether it did.
        read: Returns the text at a name.
    """

    put: Callable[[Path, str], bool]
    read: Callable[[Path], str]


LINKS: Final = Marks(
    put=lambda path, text: durable_files.create_link(text, path),
    read=durable_files.read_link,
)
FILES: Final = Marks(
    put=lambda path, text: durable_files.create_exclusive(path, text.encode()),
    read=lambda path: durable_files.read_bytes(path).decode(),
)
