"""Say which rank failed first and why, from what the logs of all ranks tell; pure.

Most ranks of a training that dies do not fail by themselves: one goes, and the others lose their connection to it.
Their errors are called echoes here. The order is that of the times as they are written, in which the clocks of nodes
can differ; of two errors in the same second that of a rank that failed by itself comes first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from immutable_logs.log_reading.error_scan import EXCEPTION, LogError
from immutable_logs.log_reading.log_lines import TRACEBACK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CLOCK_DIFFERENCE: Final = 60.0
"""Seconds that an error of a rank's own may be written after an echo and still be its cause: clocks differ."""

TRACEBACK_TEXT: Final = TRACEBACK.decode("ascii")

_SECOND: Final = len("2026-12-01 12:22:28")

_ECHO: Final = re.compile(
    r"connection (closed|reset) by peer|connection reset|connection refused|broken pipe|remote (worker|process|peer)"
    r"|socket timeout|timed out waiting|recvvalue failed|collective operation timeout|communicator (was )?aborted"
    r"|ncclRemoteError|DistNetworkError|DistStoreError|sigterm|signal 15|KeyboardInterrupt",
    re.IGNORECASE,
)
_NUMBERS: Final = re.compile(r"0x[0-9a-fA-F]+|\d+")
_FRAME: Final = re.compile(r' *File "')
_INSTALLED: Final = re.compile(r' *File "[^"]*/(site|dist)-packages/')
_POINTER: Final = re.compile(r" *[~^]+ *")
_HEADING: Final = re.compile(r"^\[NeMo [^\]]*\] ?")
_MAX_SUMMARY: Final = 300


@dataclass(frozen=True, slots=True)
class Failure:
    """The same error of one rank or of many.

    Attributes:
        ranks: The ranks, in order; empty for a log of no rank.
        files: The names of their logs.
        time: When the first of them wrote it; empty if nothing tells.
        kind: As in `error_scan`.
        summary: The line of the exception, or the message.
        text: The whole error of the first of them.
        is_echo: Whether it tells only that another rank was gone, or that the rank was ended from outside.
        is_exact: Whether the texts are the same, rather than much the same.
    """

    ranks: tuple[int, ...]
    files: tuple[str, ...]
    time: str
    kind: str
    summary: str
    text: str
    is_echo: bool
    is_exact: bool


@dataclass(frozen=True, slots=True)
class SilentRank:
    """A rank that left no error.

    Attributes:
        rank: The global rank.
        last_time: When it wrote last; empty if nothing tells.
        has_log: Whether it has a log at all.
    """

    rank: int
    last_time: str
    has_log: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What went wrong in a run.

    Attributes:
        first: The failure that came first, of those that are no echo; None if there is none.
        failures: All failures, in order.
        silent: The ranks that left no error, the one that fell silent first at the top, those without a log last.
    """

    first: Failure | None
    failures: tuple[Failure, ...]
    silent: tuple[SilentRank, ...]


@dataclass(frozen=True, slots=True)
class RankError:
    """An error in a log.

    Attributes:
        rank: The rank; None where the log does not tell.
        file: The name of the log.
        error: The error.
    """

    rank: int | None
    file: str
    error: LogError


def judge(errors: Iterable[RankError], last_times: Mapping[int, str], joined: Iterable[int]) -> Verdict:
    """Return what went wrong.

    Args:
        errors: What the logs and the end record tell; several of one rank are reduced to the strongest.
        last_times: When each rank that has a log wrote last.
        joined: The ranks that joined the run.
    """
    strongest: dict[object, RankError] = {}
    for each in errors:
        key = each.file if each.rank is None else each.rank
        known = strongest.get(key)
        if known is None or _precedes(each.error, known.error):
            strongest[key] = each
    failures = sorted(_fold(strongest.values()), key=_order)
    failed = {rank for failure in failures for rank in failure.ranks}
    silent = [
        SilentRank(rank, last_times.get(rank, ""), rank in last_times) for rank in {*joined, *last_times} - failed
    ]
    silent.sort(key=lambda each: (not each.has_log, each.last_time, each.rank))
    return Verdict(_first(failures), tuple(failures), tuple(silent))


def summarize(text: str) -> str:
    """Return the line of an error that says most: that of the last exception, or the message."""
    lines = text.split("\n")
    trace = next((number for number in range(len(lines) - 1, -1, -1) if TRACEBACK_TEXT in lines[number]), None)
    if trace is None:
        return _HEADING.sub("", lines[0]).strip()[:_MAX_SUMMARY]
    margin = lines[trace].index(TRACEBACK_TEXT) if not _HEADING.match(lines[trace]) else 0
    last_frame = max((number for number in range(trace, len(lines)) if _FRAME.match(lines[number])), default=trace)
    for line in lines[last_frame + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= margin:
            return line.strip()[:_MAX_SUMMARY]
    return lines[-1].strip()[:_MAX_SUMMARY]


def _precedes(one: LogError, other: LogError) -> bool:
    return (-one.strength, not one.time, one.time) < (-other.strength, not other.time, other.time)


def _fold(errors: Iterable[RankError]) -> list[Failure]:
    """Put errors together whose texts are the same but for times, addresses, ports and ranks.

    Of echoes only what they say must be the same: the frames tell where each rank happened to wait.
    """
    folded: dict[tuple[bool, str], list[RankError]] = {}
    for each in errors:
        summary = summarize(each.error.text)
        is_echo = _is_echo(each.error.text, summary)
        key = is_echo, _without_numbers(summary if is_echo else each.error.text)
        folded.setdefault(key, []).append(each)
    return [_failure(same, is_echo=is_echo) for (is_echo, _), same in folded.items()]


def _failure(same: Sequence[RankError], *, is_echo: bool) -> Failure:
    first = min(same, key=lambda each: (not each.error.time, each.error.time, each.rank is None, each.rank or 0))
    return Failure(
        ranks=tuple(sorted({each.rank for each in same if each.rank is not None})),
        files=tuple(dict.fromkeys(each.file for each in sorted(same, key=lambda each: each.rank or 0))),
        time=first.error.time,
        kind=first.error.kind,
        summary=summarize(first.error.text),
        text=first.error.text,
        is_echo=is_echo,
        is_exact=len({_HEADING.sub("", each.error.text) for each in same}) == 1,
    )


def _is_echo(text: str, summary: str) -> bool:
    """Tell whether an error is an echo, by what it says: in the code that a traceback shows any word can stand."""
    return _ECHO.search(text[max(0, text.rfind(summary)) :]) is not None


def _without_numbers(text: str) -> str:
    """Return a text that is the same for errors that differ by their ports; the lines of the code must be the same."""
    return "\n".join(
        line if _FRAME.match(line) else _NUMBERS.sub("#", _HEADING.sub("", line)) for line in text.split("\n")
    )


def _order(failure: Failure) -> tuple[bool, str, bool, str, tuple[int, ...]]:
    return (not failure.time, failure.time[:_SECOND], failure.is_echo, failure.time, failure.ranks)


def _first(failures: Sequence[Failure]) -> Failure | None:
    """Return the first failure that is no echo, unless echoes were written long before it: then it caused none."""
    exceptions = [each for each in failures if each.kind not in ("critical", "error")] or list(failures)
    own = next((each for each in exceptions if not each.is_echo), None)
    echo = next((each for each in exceptions if each.is_echo and each.time), None)
    if own is None or echo is None or not own.time:
        return own
    return own if _seconds(own.time) - _seconds(echo.time) <= CLOCK_DIFFERENCE else None


def _seconds(time: str) -> float:
    try:
        return datetime.strptime(time[:_SECOND], "%Y-%m-%d %H:%M:%S").timestamp()  # noqa: DTZ007 - only differences
    except ValueError:
        return 0.0


def shorten_traceback(text: str) -> str:
    """Return an error without the frames of installed packages, which are most, but for the last of a traceback.

    Lines that only point at a place in the one above go too.
    """
    blocks: list[list[str]] = []
    for line in text.split("\n"):
        if _POINTER.fullmatch(line):
            continue
        if blocks and _FRAME.match(blocks[-1][0]) and _margin(line) > _margin(blocks[-1][0]):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    lines: list[str] = []
    skipped = 0
    for block, following in zip(blocks, [*blocks[1:], [""]], strict=True):
        if _INSTALLED.match(block[0]) and _FRAME.match(following[0]):
            skipped += 1
            continue
        if skipped:
            lines.append(f"{' ' * _margin(block[0])}... {skipped} frame{'s' * (skipped > 1)} of installed packages")
            skipped = 0
        lines += block
    return "\n".join(lines)


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())


def end_record_error(text: str, time: str) -> LogError:
    """Return the error of an end record as if it stood in the log of rank zero."""
    return LogError(EXCEPTION, time, text)
