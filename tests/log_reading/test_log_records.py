from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs.log_reading.log_bytes import find_time, last_records, last_time, piece_size, read_records
from immutable_logs.log_reading.log_files import LogFile
from immutable_logs.log_reading.log_records import MAX_LINE_BYTES, MAX_LINES, Record, RecordParser

WriteLog = Callable[..., LogFile]

LOG = LogFile(Path("rank0.log"), 0)


def fail(error: OSError) -> None:
    """Be told of a problem where there must be none."""
    raise error


def parse(*pieces: bytes) -> list[tuple[str, str, str]]:
    """Return time, level and text of the records in pieces of a log."""
    parser = RecordParser(LOG)
    records = [record for piece in pieces for record in parser.feed(piece)]
    records += parser.flush()
    return [(record.time, record.level, record.text) for record in records]


TEXT = (
    b"[NeMo I 2026-12-01 12:00:00 a:1] first\n"
    b"    continued\n"
    b"[NeMo W 2026-12-01 12:00:01 a:1] Traceback (most recent call last):\n"
    b"      dealt with\n"
    b"Traceback (most recent call last):\n"
    b'  File "x.py", line 1\n'
    b"ValueError: no\n"
    b"[NeMo E 2026-12-01 12:00:02 a:1] last, without an end"
)
RECORDS = [
    ("2026-12-01 12:00:00", "info", "[NeMo I 2026-12-01 12:00:00 a:1] first\n    continued"),
    (
        "2026-12-01 12:00:01",
        "warning",
        "[NeMo W 2026-12-01 12:00:01 a:1] Traceback (most recent call last):\n      dealt with",
    ),
    (
        "2026-12-01 12:00:01",
        "error",
        'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no',
    ),
    ("2026-12-01 12:00:02", "error", "[NeMo E 2026-12-01 12:00:02 a:1] last, without an end"),
]


def test_lines_without_a_time_belong_to_the_record_above() -> None:
    """A traceback at the margin is a record of its own, with the time above it."""
    assert parse(TEXT) == RECORDS


@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_pieces_that_are_read_make_no_difference(size: int) -> None:
    """Lines and records are put together whatever a read has cut."""
    assert parse(*(TEXT[start : start + size] for start in range(0, len(TEXT), size))) == RECORDS


def test_an_exception_that_the_logger_wrote_is_one_record() -> None:
    """`logging.exception` writes the traceback at the margin, below a line of the level error."""
    (only,) = parse(
        b"2026-12-01 12:00:00,000 - x - ERROR - it failed\nTraceback (most recent call last):\nKeyError: 1\n"
    )

    assert only[1:] == (
        "error",
        "2026-12-01 12:00:00,000 - x - ERROR - it failed\nTraceback (most recent call last):\nKeyError: 1",
    )


def test_lines_above_the_first_time_have_none() -> None:
    """They come first in a merge."""
    assert parse(b"hello\n[NeMo I 2026-12-01 12:00:00 a:1] x\n")[0] == ("", "", "hello")


def test_a_log_without_times_comes_in_records_of_bounded_size() -> None:
    """A file of any size is never one record."""
    records = parse(b"x\n" * (3 * MAX_LINES))

    assert [text.count("x") for _, _, text in records] == [MAX_LINES] * 3


def test_a_line_that_never_ends_takes_bounded_memory() -> None:
    """Of a progress bar of any length its last state is kept."""
    parser = RecordParser(LOG)
    for number in range(200_000):
        assert not list(parser.feed(b"\r%6d of 200000" % number))
    (record,) = parser.flush()

    assert record.text == "199999 of 200000"
    assert sum(map(len, record.lines)) <= MAX_LINE_BYTES + 20


def test_reading_in_turns_loses_nothing_of_a_log_that_grows() -> None:
    """What follows a look belongs to the record that was shown, with its time and level."""
    parser = RecordParser(LOG)
    first = [*parser.feed(b"[NeMo E 2026-12-01 12:00:00 a:1] it\n  tr"), *parser.flush(is_ended=False)]
    second = [*parser.feed(b"ace\n"), *parser.flush(is_ended=False)]

    assert [record.text for record in first] == ["[NeMo E 2026-12-01 12:00:00 a:1] it"]
    assert [(record.time, record.level, record.text) for record in second] == [
        ("2026-12-01 12:00:00", "error", "  trace")
    ]


@pytest.fixture
def long_log(write_log: WriteLog) -> LogFile:
    """A log of some megabytes, ten lines a second, each record of two lines."""
    return write_log(
        0,
        "".join(
            f"[NeMo I 2026-12-01 {time.strftime('%H:%M:%S', time.gmtime(second))} a:1] {number}\n    more\n"
            for second in range(5000)
            for number in range(10)
        ),
    )


def test_a_moment_is_found_without_reading_the_log(long_log: LogFile) -> None:
    """The place is before the first record of the moment, and close to it."""
    size = long_log.path.stat().st_size
    for moment in ("2026-12-01 00:00:00", "2026-12-01 00:41:40", "2026-12-01 01:23:19"):
        place = find_time(long_log, moment, size)
        exact = long_log.path.read_bytes().find(moment.encode()) - len("[NeMo I ")

        assert 0 <= exact - place <= 20_000
        assert place == 0 or long_log.path.read_bytes()[place - 1 : place + 5] == b"\n[NeMo"


def test_a_moment_after_the_end_leads_near_the_end(long_log: LogFile) -> None:
    """So that nothing is shown, quickly."""
    size = long_log.path.stat().st_size

    assert size - find_time(long_log, "2027", size) <= 20_000


@pytest.mark.parametrize("count", [1, 10, 3000])
def test_the_last_records_are_whole(long_log: LogFile, count: int) -> None:
    """They are the same as those of the whole log."""
    size = long_log.path.stat().st_size
    whole: list[Record] = list(read_records(long_log, on_problem=fail))

    assert last_records(long_log, count, size, on_problem=fail) == whole[-count:]


def test_more_records_than_there_are_give_all(write_log: WriteLog) -> None:
    """A short log is shown whole."""
    log = write_log(0, TEXT)

    records = last_records(log, 50, len(TEXT), on_problem=fail)

    assert [(record.time, record.level, record.text) for record in records] == RECORDS


def test_the_last_time_is_that_above_the_last_lines(write_log: WriteLog) -> None:
    """The lines of a traceback at the end have the time of the record above."""
    assert last_time(write_log(0, TEXT + b"\n  no time\n")) == "2026-12-01 12:00:02"
    assert last_time(write_log(1, "no time at all\n")) == ""
    assert last_time(write_log(2, "")) == ""


def test_the_pieces_get_smaller_with_the_number_of_logs() -> None:
    """So that thousands of logs take little memory together."""
    assert piece_size(1) >= 1 << 16
    assert 1000 * piece_size(1000) <= 17 << 20
