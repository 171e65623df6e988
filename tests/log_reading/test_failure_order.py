from __future__ import annotations

from pathlib import Path

import pytest

from immutable_logs.log_reading.error_scan import LogError
from immutable_logs.log_reading.failure_order import RankError, Verdict, judge, shorten_traceback, summarize
from immutable_logs.log_reading.log_files import find_log_files
from immutable_logs.log_reading.many_scans import scan_logs


def trace(message: str, *, at: int = 1) -> str:
    """Return a traceback."""
    return f'Traceback (most recent call last):\n  File "x.py", line {at}, in f\n    f()\n{message}'


OWN = trace("ValueError: the loss is not a number")


def echo(port: int = 4000) -> str:
    """Return what a rank writes that lost its connection."""
    return trace(f"RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:{port}. Check the remote worker")


def error(rank: int | None, time: str, text: str, kind: str = "exception") -> RankError:
    """Return an error of a rank at a time of the day."""
    return RankError(rank, f"{rank}.txt", LogError(kind, f"2026-12-01 {time}" if time else "", text))


def judged(*errors: RankError, last_times: dict[int, str] | None = None, joined: int = 0) -> Verdict:
    """Return the verdict on errors."""
    return judge(errors, last_times or {}, range(joined))


def test_the_earliest_is_first() -> None:
    """Failures come in the order of their times."""
    verdict = judged(error(0, "12:00:02", trace("KeyError: 1")), error(1, "12:00:01", OWN))

    assert [failure.ranks for failure in verdict.failures] == [(1,), (0,)]
    assert verdict.first is verdict.failures[0]
    assert verdict.first.summary == "ValueError: the loss is not a number"


def test_within_a_second_a_rank_that_failed_by_itself_comes_first() -> None:
    """NeMo's times have seconds alone, and all ranks of a launch fail in the same one."""
    verdict = judged(error(0, "12:00:01", echo()), error(7, "12:00:01.700", OWN), error(8, "12:00:01.001", echo()))

    assert verdict.first is not None
    assert verdict.first.ranks == (7,)
    assert [failure.ranks for failure in verdict.failures] == [(7,), (0, 8)]


def test_milliseconds_tell_the_order_where_there_are_some() -> None:
    """Of two ranks that failed by themselves within a second."""
    verdict = judged(error(0, "12:00:01.900", OWN), error(1, "12:00:01.100", trace("KeyError: 1")))

    assert [failure.ranks for failure in verdict.failures] == [(1,), (0,)]


def test_an_echo_from_a_node_whose_clock_is_behind_does_not_win() -> None:
    """It is the first in the list, as written, but not what failed first."""
    verdict = judged(error(0, "12:00:01", echo()), error(1, "12:00:31", OWN))

    assert [failure.ranks for failure in verdict.failures] == [(0,), (1,)]
    assert verdict.first is verdict.failures[1]


def test_an_error_long_after_the_echoes_did_not_cause_them() -> None:
    """Then no rank tells what went wrong first."""
    assert judged(error(0, "12:00:01", echo()), error(1, "12:30:00", OWN)).first is None


def test_the_same_error_of_many_ranks_is_one() -> None:
    """Ports, addresses and times may differ, which is said; the lines of the code may not."""
    verdict = judged(*(error(rank, "12:00:01", echo(4000 + rank)) for rank in range(100)), error(100, "12:00:02", OWN))

    assert [(len(failure.ranks), failure.is_exact) for failure in verdict.failures] == [(100, False), (1, True)]
    two = judged(error(0, "12:00:01", trace("KeyError: 1", at=1)), error(1, "12:00:01", trace("KeyError: 1", at=2)))
    assert len(two.failures) == 2


def test_of_several_errors_of_a_rank_the_strongest_counts() -> None:
    """The end record repeats what the log of rank zero says better."""
    verdict = judged(
        error(0, "12:00:09", OWN),
        error(0, "12:00:10", f"[NeMo E 2026-12-01 12:00:10 x:1] it\n{OWN}", "end"),
        error(0, "12:00:01", "[NeMo E 2026-12-01 12:00:01 x:1] something", "error"),
    )

    assert [(failure.kind, failure.time[-2:]) for failure in verdict.failures] == [("end", "10")]


def test_a_line_of_the_level_error_does_not_precede_an_exception() -> None:
    """It stands in the list, but what failed first is an exception where there is one."""
    verdict = judged(error(0, "12:00:01", "[NeMo E 2026-12-01 12:00:01 x:1] odd", "error"), error(1, "12:00:05", OWN))

    assert [failure.ranks for failure in verdict.failures] == [(0,), (1,)]
    assert verdict.first is verdict.failures[1]
    assert verdict.failures[0].summary == "odd"


def test_ranks_without_an_error_are_named_in_the_order_of_their_silence() -> None:
    """Those without a log last."""
    verdict = judged(error(1, "12:00:09", echo()), last_times={0: "12:00:08", 1: "12:00:09", 2: "12:00:03"}, joined=4)

    assert [(each.rank, each.has_log) for each in verdict.silent] == [(2, True), (0, True), (3, False)]
    assert verdict.first is None


def test_a_log_of_no_rank_has_a_failure_without_ranks() -> None:
    """Its file is named instead."""
    (failure,) = judged(error(None, "", OWN)).failures

    assert (failure.ranks, failure.files, failure.time) == ((), ("None.txt",), "")


@pytest.mark.parametrize(
    ("message", "is_echo"),
    [
        ("RuntimeError: [pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer", True),
        ("torch.distributed.DistNetworkError: the client socket has timed out", True),
        ("SIGTERM", True),
        ("KeyboardInterrupt", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", False),
        ("FileNotFoundError: [Errno 2] No such file: 'a.wav'", False),
    ],
)
def test_echoes_are_known_by_what_they_say(message: str, is_echo: bool) -> None:
    """Words in the frames of a traceback, or an exception that was followed by another, make none."""
    frames = (
        'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    except ConnectionResetError: # sigterm\n'
    )

    assert [failure.is_echo for failure in judged(error(0, "12:00:01", frames + message)).failures] == [is_echo]


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (OWN, "ValueError: the loss is not a number"),
        (
            f"[NeMo E 2026-12-01 12:00:01 x:1] it\n{OWN}".replace("\n", "\n    "),
            "ValueError: the loss is not a number",
        ),
        (trace("ncclError: one\nLast error:\nsocket"), "ncclError: one"),
        (
            f"{OWN}\n\nDuring handling of the above exception, another exception occurred:\n\n{trace('KeyError: 1')}",
            "KeyError: 1",
        ),
        ("Traceback (most recent call last):\n", ""),
        ("[NeMo C 2026-12-01 12:00:01 x:1] no space left\n    on the disk", "no space left"),
        ("SIGTERM", "SIGTERM"),
    ],
)
def test_the_line_that_says_most_is_the_summary(text: str, summary: str) -> None:
    """That of the last exception, or the message of the first line."""
    assert summarize(text) == summary


def test_frames_of_installed_packages_are_counted_only() -> None:
    """Those of the user's code stay, and the last one, where it happened; what follows the frames stays too."""

    def frame(path: str) -> str:
        return f'      File "{path}", line 1, in f\n        f()\n        ^^^\n'

    library = frame("/venv/lib/python3.11/site-packages/torch/x.py")
    own = frame("/home/user/train.py")
    frames = f"{library * 3}{own}{library * 2}"
    text = f"[NeMo E x] it\n    Traceback (most recent call last):\n{frames}    KeyError: 1\n    more"

    assert shorten_traceback(text).split("\n") == [
        "[NeMo E x] it",
        "    Traceback (most recent call last):",
        "      ... 3 frames of installed packages",
        '      File "/home/user/train.py", line 1, in f',
        "        f()",
        "      ... 1 frame of installed packages",
        '      File "/venv/lib/python3.11/site-packages/torch/x.py", line 1, in f',
        "        f()",
        "    KeyError: 1",
        "    more",
    ]
    assert shorten_traceback("no traceback\n  here") == "no traceback\n  here"


def test_the_real_logs_are_judged_right(real_logs: Path) -> None:
    """Rank 2 raised in one run, and was killed in the other; all others only lost their connection."""
    verdicts = []
    for name in ("raised", "killed"):
        scanned = scan_logs(find_log_files(real_logs / name))
        errors = [RankError(each.log.rank, each.log.path.name, each.error) for each in scanned if each.error]
        verdicts.append(judge(errors, dict.fromkeys(range(4), ""), range(4)))
    raised, killed = verdicts

    assert raised.first is not None
    assert (raised.first.ranks, raised.first.summary) == ((2,), "ValueError: the loss is not a number")
    assert [(failure.ranks, failure.is_echo) for failure in raised.failures] == [((2,), False), ((0, 1, 3), True)]
    assert raised.silent == ()
    assert killed.first is None
    assert [failure.is_echo for failure in killed.failures] == [True] * len(killed.failures)
    assert [each.rank for each in killed.silent] == [2]
