"""How two calls of a check, on two hosts, talk: by files in a directory that both see."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from immutable_logs import durable_files
from immutable_logs.check_filesystem.workshop import PREFIX, remove
from immutable_logs.errors import ConfigurationError, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PAUSE: Final = 0.001
"""Seconds between two looks; what is measured is no finer."""

HOST: Final = "host"
"""The topic of the first exchange."""

_LEFT: Final = "left"
_HINT_BEFORE: Final = (
    "HINT: run the same command on the other host, for the same directory and with the same --peer; if it ran, the "
    "two hosts do not see the same directory, or see it later than --wait allows"
)
_HINT_AFTER: Final = "HINT: the other call was there and has fallen silent: it was killed, or --wait is too short"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FIRST: Final = "first"
SECOND: Final = "second"


@dataclass(frozen=True, slots=True)
class Meeting:
    """One of the two ends.

    Attributes:
        directory: Where the messages are.
        is_first: Whether this call came first; it judges and removes the directory.
        wait: Seconds to wait for the other at any point.
    """

    directory: Path
    is_first: bool
    wait: float

    @property
    def me(self) -> str:
        """The name of this end."""
        return FIRST if self.is_first else SECOND

    @property
    def other(self) -> str:
        """The name of the other end."""
        return SECOND if self.is_first else FIRST

    def say(self, topic: str, content: object = None) -> None:
        """Write a message, once for each topic; the content is written as JSON.

        Raises:
            PeerError: If the directory is gone.
        """
        text = json.dumps(content).encode() + b"\n"
        try:
            durable_files.create_exclusive(self.directory / f"{topic}.{self.me}", text)
        except FileNotFoundError:
            raise self.left_alone() from None

    def hear(self, topic: str) -> Any:  # noqa: ANN401 - JSON
        """Return the content of the other's message, looking for its name by listing the directory.

        Raises:
            PeerError: If there is none in time.
        """
        self.wait_for(lambda: f"{topic}.{self.other}" in os.listdir(self.directory), topic)
        return self.hear_by_asking(topic)

    def hear_by_asking(self, topic: str) -> Any:  # noqa: ANN401 - JSON
        """Do the same, but ask for the name alone, as a program does that knows it."""
        text = b""

        def is_complete() -> bool:
            nonlocal text
            text = durable_files.read_bytes(self.directory / f"{topic}.{self.other}")
            return text.endswith(b"\n")

        self.wait_for(is_complete, topic)
        return json.loads(text)

    def exchange(self, topic: str, content: object) -> Any:  # noqa: ANN401 - JSON
        """Say something, and return what the other says on the same topic: neither goes on alone."""
        self.say(topic, content)
        return self.hear(topic)

    def wait_for(self, is_there: Callable[[], bool], topic: str) -> None:
        """Wait until something of the other's doing is seen; a file that is not found is not there yet.

        Raises:
            PeerError: If it is not seen in time, or if the directory is gone.
        """
        deadline = time.monotonic() + self.wait
        while True:
            with suppress(FileNotFoundError):
                if is_there():
                    return
            if not self.directory.exists() or (self.directory / f"{_LEFT}.{self.other}").exists():
                raise self.left_alone()
            if time.monotonic() >= deadline:
                raise PeerError(
                    f"expected the other call's part ({topic}) within {self.wait:.0f} s, found nothing in "
                    f"{self.directory}\n{_HINT_BEFORE if topic == HOST else _HINT_AFTER}"
                )
            time.sleep(_PAUSE)

    def left_alone(self) -> PeerError:
        """Return the error for the other's early end."""
        return PeerError(f"the other call has ended before its time, in {self.directory}")


@contextmanager
def open_meeting(directory: Path, name: str, *, wait: float) -> Iterator[Meeting]:
    """Enter the directory of a meeting as the first or the second; the first removes it at the end.

    Raises:
        ConfigurationError: If the name cannot be one, or two have come before.
        OSError: If nothing can be written there.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            "--peer", name, f"expected up to 64 letters, digits, '.', '_' or '-', found {name[:80]!r}"
        )
    place = directory / f"{PREFIX}peer-{name}"
    durable_files.create_directory(place, like=directory)
    is_first = _take(place / FIRST)
    if not is_first and not _take(place / SECOND):
        raise ConfigurationError(
            "--peer",
            name,
            f"expected at most one other call with this name, found two: {place}\n"
            "HINT: choose another name; if no check is going on, a killed one has left the directory, and it can be "
            "removed",
        )
    meeting = Meeting(place, is_first, wait)
    try:
        yield meeting
    except BaseException as error:
        if not is_first:
            if isinstance(error, FileNotFoundError) and not place.exists():
                raise meeting.left_alone() from None
            with suppress(PeerError, OSError):
                meeting.say(_LEFT)
        raise
    finally:
        if is_first:
            remove(place)


def _take(path: Path) -> bool:
    """Tell whether a place is ours; the file is read back, since a server's answer can be lost."""
    token = os.urandom(8).hex().encode()
    return durable_files.create_exclusive(path, token) or durable_files.read_bytes(path) == token
