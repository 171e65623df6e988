"""Run the commands of a page one after the other, each where the one before it has left the directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TIME_LIMIT = 100.0
"""Seconds until a command is given up."""


class PageShell:
    """A shell in which the programs beside this Python come first; nothing that it starts outlives its call."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        """Begin in a directory."""
        self._cwd = directory
        self._left = directory / ".where"
        self._environ = {**environ, "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}

    def run(self, command: str) -> tuple[int, str]:
        """Run a command, or several up to the first that fails, and return the status and what was printed."""
        with self.started(command) as popen:
            said = popen.communicate(timeout=TIME_LIMIT)[0].decode(errors="replace")
        self._cwd = Path(self._left.read_text(encoding="utf-8"))
        self._left.unlink()
        return popen.returncode, said

    @contextmanager
    def started(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command, and end it and its children when the `with` block ends."""
        popen = subprocess.Popen(
            ["bash", "-ec", f"trap 'printf %s \"$PWD\" > {self._left}' EXIT\n{command}"],
            cwd=self._cwd,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield popen
        finally:
            with suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)
            popen.communicate()
