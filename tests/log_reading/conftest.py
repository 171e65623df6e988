"""Logs to read: a few that a real training of four ranks has left, and made ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs.layout import RunLayout
from immutable_logs.log_reading.log_files import LogFile


@pytest.fixture
def real_logs() -> Path:
    """Two run directories: in ``raised`` rank 2 raised an exception, in ``killed`` it was killed with SIGKILL."""
    return Path(__file__).parent / "real_logs"


@pytest.fixture
def write_log(tmp_path: Path) -> Callable[..., LogFile]:
    """Writes the log of a rank, or appends to it: ``write_log(3, "text")``."""

    def write(rank: int, text: str | bytes) -> LogFile:
        path = RunLayout(tmp_path).rank_log(rank, rank)
        with path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        return LogFile(path, rank)

    return write
