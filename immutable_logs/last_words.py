"""Leave in the log of a rank what ended it.

The interpreter writes an uncaught exception to stderr alone, which ends up mixed with that of all other ranks or
nowhere. Under a launcher the ranks that lose their connection say so at the same moment, so that the one rank that
failed by itself is hard to find. Its own log is where `immutable-logs logs --errors`, and people, look for it.
"""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Final

from immutable_logs import durable_files
from immutable_logs.log_reading.log_lines import ENDED_BY
from immutable_logs.redaction import redact_text

if TYPE_CHECKING:
    from pathlib import Path

    from immutable_logs.launch import Ranks
    from immutable_logs.layout import RunLayout

_MAX_TEXT: Final = 20_000
"""Characters: an exception can carry a whole tensor, and readers look for the line at the end of the log."""


def leave_last_words(run: RunLayout, ranks: Ranks, error: BaseException | str, *, now: float) -> None:
    """Write into the log of a rank what ended it; rank zero has the end record, so it makes no log for it.

    Raises:
        OSError: If it cannot be written.
    """
    log = run.rank_log(ranks.global_rank, ranks.local_rank)
    if ranks.global_rank != 0 or log.exists():
        text = error if isinstance(error, str) else "".join(traceback.format_exception(error)).rstrip()
        append_last_words(log, redact_text(text), rank=ranks.global_rank, now=now)


def append_last_words(log: Path, text: str, *, rank: int, now: float) -> None:
    """Append what ended a rank to its log, in the form of NeMo's lines but to the millisecond.

    NeMo's own lines have seconds alone, within which all ranks of a launch fail.

    Args:
        log: The log; made if the rank has none.
        text: The traceback, or what else tells it.
        rank: The global rank.
        now: Unix time.

    Raises:
        OSError: If it cannot be written.
    """
    if len(text) > _MAX_TEXT:
        text = (
            f"{text[: _MAX_TEXT // 2]}\n... {len(text) - _MAX_TEXT} characters left out ...\n{text[-_MAX_TEXT // 2 :]}"
        )
    moment = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d}"
    lines = [f"[NeMo E {moment} {ENDED_BY.decode('ascii')} rank:{rank}] This ended the training on this rank:"]
    data = "\n    ".join([*lines, *text.split("\n")]).encode("utf-8", "backslashreplace") + b"\n"
    durable_files.append(log, data, after_newline=True)
