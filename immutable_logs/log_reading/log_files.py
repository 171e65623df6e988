"""Which files of a run directory are logs, and of which rank each is."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_RANK_LOG: Final = re.compile(r"nemo_log_globalrank-(\d+)_localrank-\d+\.txt")
_OF_RANK_ZERO: Final = ("lightning_logs.txt", "nemo_error_log.txt")
_COPY_OF_RANK_ZERO: Final = "nemo_error_log.txt"
_NO_LOGS: Final = frozenset({"cmd-args.log", "git-info.log"})
_LOG_ENDINGS: Final = (".txt", ".log", ".out", ".err")
_RANK_IN_NAME: Final = re.compile(r"rank[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file of a run.

    Attributes:
        path: Where it is.
        rank: The global rank that writes it; None where the name does not tell.
    """

    path: Path
    rank: int | None

    @property
    def order(self) -> tuple[float, str]:
        """Put ranks in order, and files of no rank after them."""
        return (float("inf") if self.rank is None else self.rank, self.path.name)


def find_log_files(directory: Path) -> list[LogFile]:
    """Return the log files in a run directory, in the order of the ranks.

    NeMo's own files are known by their names. Beside them stands whatever ends as logs do, as a program has that uses
    this package without NeMo; ``rank`` and a number in the name tell the rank. ``nemo_error_log.txt`` repeats lines of
    rank zero, so it counts only where rank zero has no log of its own.

    Raises:
        OSError: If the directory cannot be listed.
    """
    with os.scandir(directory) as entries:
        # An adopted run has links to files elsewhere, so links count; pipes and the like do not.
        found = [
            LogFile(Path(entry.path), _rank_of(entry.name))
            for entry in entries
            if entry.name.endswith(_LOG_ENDINGS) and entry.name not in _NO_LOGS and _may_be_read(entry)
        ]
    if any(_RANK_LOG.fullmatch(each.path.name) and each.rank == 0 for each in found):
        found = [each for each in found if each.path.name != _COPY_OF_RANK_ZERO]
    return sorted(found, key=lambda each: each.order)


def _may_be_read(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a file; where that cannot be seen, reading it will tell why."""
    try:
        return entry.is_file()
    except OSError:
        return True


def _rank_of(name: str) -> int | None:
    if name in _OF_RANK_ZERO:
        return 0
    match = _RANK_LOG.fullmatch(name) or _RANK_IN_NAME.search(name)
    return int(match[1]) if match else None
