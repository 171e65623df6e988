from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from immutable_logs.errors import RecordError
from immutable_logs.records import (
    FORMAT,
    MAX_ERROR_CHARACTERS,
    STARTED,
    FinishRecord,
    ManifestRecord,
    RankRecord,
    RunRecord,
    cap_error,
    format_time,
    parse_time,
)

RUN = "2026-12-01_02-28-15Z_k3v9q"
TIME = "2026-12-01T02:28:15.000000Z"
RECORDS = [
    RunRecord(run=RUN, started=TIME, world_size=4, arguments=["python", "train.py"], configuration={"a": [1, None]}),
    FinishRecord(run=RUN, ended=TIME, outcome="failed", error="boom", step=7, ranks_joined=4),
    RankRecord(joined=TIME, nonce="00ff", global_rank=3, local_rank=1, node_rank=1, host="node1", pid=17),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_record_comes_back_as_it_was_written(record: Any) -> None:
    """Encoding and decoding lose nothing."""
    assert type(record).decode(record.encode(), "x") == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_document_begins_with_its_format_and_ends_with_a_newline(record: Any) -> None:
    """A reader of any later version can tell the format from the first key, and `cat` leaves a clean prompt."""
    data = record.encode()

    assert next(iter(json.loads(data).items())) == ("format", FORMAT)
    assert data.endswith(b"}\n")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_keys_of_a_newer_writer_are_kept(record: Any) -> None:
    """An older reader ignores keys that it does not know, and writes them back."""
    document = json.loads(record.encode())
    document["colour"] = {"of": "the bike shed"}
    document["unknown"] = "a key with this name"
    decoded = type(record).decode(json.dumps(document).encode(), "x")

    assert decoded.unknown == {"colour": {"of": "the bike shed"}, "unknown": "a key with this name"}
    assert json.loads(decoded.encode()) == document


@pytest.mark.parametrize("cut", [0, 1, 10, -2])
def test_torn_document_is_refused_with_its_path(cut: int) -> None:
    """A file that a crash cut short is reported as incomplete."""
    with pytest.raises(RecordError, match=r"incomplete or damaged: /exp/run\.json") as caught:
        RunRecord.decode(RECORDS[0].encode()[:cut], Path("/exp/run.json"))
    assert caught.value.path == "/exp/run.json"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"7",
        b'"text"',
        b"\xff\xfe\x00",
        b"\0" * 200,
        b"[" * 200_000,
        b"{}",
        b'{"format": 2}',
        b'{"format": 1}',
    ],
)
def test_what_is_no_record_of_this_format_is_refused(data: bytes) -> None:
    """Other JSON, other formats, zeroes after a power loss and objects without the needed keys are no records."""
    with pytest.raises(RecordError):
        RunRecord.decode(data, "x")


def test_known_key_with_a_value_of_another_type_is_refused() -> None:
    """A damaged value is found when the file is read, and not where the value is used."""
    document = {**json.loads(RECORDS[0].encode()), "process": "host1"}

    with pytest.raises(RecordError, match="process"):
        RunRecord.decode(json.dumps(document).encode(), "x")


def test_unknown_format_says_what_to_do() -> None:
    """A document of a newer format is refused with advice."""
    with pytest.raises(RecordError, match="expected format 1, found 2; a newer immutable-logs may be needed"):
        RunRecord.decode(b'{"format": 2, "run": "x", "started": "y"}', "x")


def test_text_that_is_no_unicode_survives() -> None:
    """A file name with bytes that are no UTF-8 does not make the record unwritable."""
    record = RunRecord(run=RUN, started=TIME, arguments=["caf\udce9.yaml", "日本", "a\nb"])

    assert RunRecord.decode(record.encode(), "x") == record


def test_value_without_a_json_form_is_recorded_as_text() -> None:
    """A configuration with an object in it is recorded all the same."""
    record = RunRecord(run=RUN, started=TIME, configuration={"path": Path("/data")})

    assert json.loads(record.encode())["configuration"] == {"path": "/data"}


def test_manifest_line_is_one_line_of_ascii() -> None:
    """Nothing in a record can break the line or the encoding of the manifest."""
    record = ManifestRecord(STARTED, RUN, TIME, {"host": "line\nbreak\r\u2028", "job": "日本 caf\udce9"})
    line = record.encode()

    assert line.isascii()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert ManifestRecord.decode(line) == record


def test_line_with_an_unknown_event_and_keys_is_kept() -> None:
    """An older reader keeps what a newer writer recorded."""
    line = b'{"format": 1, "event": "archived", "run": "r", "time": "t", "where": "tape"}'

    assert ManifestRecord.decode(line) == ManifestRecord("archived", "r", "t", {"where": "tape"})


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 200_000,
        b'{"event": "started", "run": "r", "time": "t"}',
        b'{"format": 2, "event": "started", "run": "r", "time": "t"}',
        b'{"format": 1, "event": "started", "run": "r"}',
        b'{"format": 1, "event": 3, "run": "r", "time": "t"}',
        b'{"format": 1, "event": "started", "run": ["r"], "time": "t"}',
    ],
)
def test_line_that_is_no_record_gives_none(line: bytes) -> None:
    """Readers skip and count what they cannot parse."""
    assert ManifestRecord.decode(line) is None


def test_times_come_back_to_the_microsecond() -> None:
    """A time is recorded in UTC, whatever the time zone."""
    assert format_time(1796092095.0) == TIME
    assert parse_time(format_time(1796092095.123456)) == pytest.approx(1796092095.123456, abs=1e-6)


def test_fewer_decimals_are_a_time_too() -> None:
    """Another writer may count in milliseconds."""
    assert parse_time("2026-12-01T02:28:15.5Z") == parse_time("2026-12-01T02:28:15.500000Z") == 1796092095.5


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "yesterday",
        "2026-12-01",
        "2026-13-01T00:00:00.000000Z",
        "2026-12-01T02:28:15Z",
        "2026-12-01T02:28:15.0000000Z",
        "2026-1-1T2:28:15.5Z",
        "2026-12-01T02:28:15.123+01Z",
        "2026-12-01T02:28:15.123456",
    ],
)
def test_what_is_no_time_gives_none(text: object) -> None:
    """A damaged time does not stop a reader."""
    assert parse_time(text) is None


def test_long_error_keeps_its_beginning_and_its_end() -> None:
    """An exception that carries a whole tensor does not fill the record, and the last line is kept."""
    text = cap_error("first" + "x" * 100_000 + "last")

    assert text.startswith("first")
    assert text.endswith("last")
    assert "96009 characters left out" in text
    assert len(text) < MAX_ERROR_CHARACTERS + 100


def test_short_error_is_kept_as_it_is() -> None:
    """Up to the limit nothing is cut."""
    assert cap_error("x" * MAX_ERROR_CHARACTERS) == "x" * MAX_ERROR_CHARACTERS
