from __future__ import annotations

import pytest

from immutable_logs.log_reading.log_lines import parse_heading, readable


@pytest.mark.parametrize(
    ("line", "time", "level"),
    [
        ("[NeMo I 2026-12-01 12:22:28 train:573] text", "2026-12-01 12:22:28", "info"),
        ("[NeMo W 2026-12-01 12:22:28 nemo_logging:364 rank:3] text", "2026-12-01 12:22:28", "warning"),
        ("\x1b[35m[NeMo E 2026-12-01 12:22:28 train:573]\x1b[0m text", "2026-12-01 12:22:28", "error"),
        ("[NeMo C 2026-12-01 12:22:28.512 train:573] text", "2026-12-01 12:22:28.512", "critical"),
        ("[2026-12-01 12:22:28,123][__main__][INFO] - Hydra's", "2026-12-01 12:22:28.123", "info"),
        ("2026-12-01 12:22:28,123 - name - WARNING - logging's", "2026-12-01 12:22:28.123", "warning"),
        ("2026-12-01T12:22:28.123456Z ERROR text", "2026-12-01 12:22:28.123456", "error"),
        ("2026-12-01T12:22:28+01:00 text", "2026-12-01 12:22:28", ""),
        ("E1201 13:21:34.871000 26440 torch/api.py:1002] text", "2026-12-01 13:21:34.871000", "error"),
        ("[rank2]:[W1201 13:21:34.871 Group.cpp:616] text", "2026-12-01 13:21:34.871", "warning"),
        ("2026-12-01 12:22:28 a long way " + "x" * 120 + " ERROR", "2026-12-01 12:22:28", ""),
    ],
)
def test_time_and_level_are_read_as_they_are_written(line: str, time: str, level: str) -> None:
    """All usual forms give times of one form, which sorts."""
    heading = parse_heading(line.encode(), "2026")

    assert heading is not None
    assert (heading.time, heading.level, heading.is_end) == (time, level, False)


@pytest.mark.parametrize(
    "line", ["", "    continued", "Traceback (most recent call last)", "[NeMo I yesterday x:1] y", "GPU available: no"]
)
def test_lines_without_a_time_begin_nothing(line: str) -> None:
    """They belong to the line above."""
    assert parse_heading(line.encode(), "2026") is None


def test_a_rank_says_what_ended_it() -> None:
    """The line is known by what stands in the place of module and line number."""
    heading = parse_heading(b"[NeMo E 2026-12-01 12:22:28.001 immutable_logs:ended rank:2] This ended it:", "")

    assert heading is not None
    assert heading.is_end


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"\r  1%|#  | 1/100\r  2%|## | 2/100", "  2%|## | 2/100"),
        (b"done\r\n"[:-1], "done"),
        (b"100%|###|\r", "100%|###|"),
        (b"\x1b[32mgreen\x1b[0m", "green"),
        (b"title \x1b]0;x\x07", "title \x1b]0;x\x07"),
        (b"caf\xe9", "caf�"),
    ],
)
def test_a_line_is_text_in_its_last_state(line: bytes, text: str) -> None:
    """Of a progress bar the last state is shown, colours go, what else acts on a terminal is left to the output."""
    assert readable(line) == text
