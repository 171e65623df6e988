from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import (
    Manifest,
    append_record,
    manifest_lock,
    parse_manifest,
    read_manifest,
    recent_started_runs,
)
from immutable_logs.records import FINISHED, STARTED, ManifestRecord
from immutable_logs.run_id import format_run_id

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Children


def run_id(number: int) -> str:
    """Return a run id by its seconds after the first."""
    return format_run_id(1796092095.0 + number, bytes(8))


def started(number: int, **details: Any) -> ManifestRecord:
    """Return a `started` record."""
    return ManifestRecord(STARTED, run_id(number), "2026-12-01T02:28:15.000000Z", details)


@pytest.fixture
def layout(experiment: Path) -> ExperimentLayout:
    """An experiment with an empty `runs/`."""
    layout = ExperimentLayout.of(experiment)
    layout.runs.mkdir(parents=True)
    return layout


@pytest.mark.parametrize("is_locked", [True, False])
def test_appended_records_are_read_back_in_order(layout: ExperimentLayout, is_locked: bool) -> None:
    """With and without the lock the order is that of the appends."""
    records = [started(3, host="a"), started(1), ManifestRecord(FINISHED, run_id(3), "t", {"outcome": "failed"})]
    for record in records:
        append_record(layout, record, is_locked=is_locked)

    assert read_manifest(layout) == Manifest(tuple(records), damaged=0)


def test_no_manifest_is_an_empty_one(layout: ExperimentLayout) -> None:
    """A lost manifest is no error: readers take the union with the directories."""
    assert read_manifest(layout) == Manifest()
    assert recent_started_runs(layout) == []


def test_unreadable_manifest_is_an_error(layout: ExperimentLayout) -> None:
    """What is there and cannot be read is not taken for nothing."""
    layout.manifest.mkdir()

    with pytest.raises(IsADirectoryError):
        read_manifest(layout)


def test_damaged_lines_are_counted_and_the_others_read() -> None:
    """Blank lines are skipped; torn, foreign and binary lines cost only themselves."""
    good = started(1).encode()
    data = b"\n\n  \n" + good + good[:20] + b"\n" + b"\xff\x00\n" + b'{"format": 9}\n' + started(2).encode() + b"\n"

    manifest = parse_manifest(data)
    assert [record.run for record in manifest.records] == [run_id(1), run_id(2)]
    assert manifest.damaged == 3


def test_missing_final_newline_loses_nothing(layout: ExperimentLayout) -> None:
    """The last line counts without its newline, and the next writer ends it."""
    layout.manifest.write_bytes(started(1).encode().rstrip(b"\n"))
    assert [record.run for record in read_manifest(layout).records] == [run_id(1)]

    append_record(layout, started(2), is_locked=True)
    assert [record.run for record in read_manifest(layout).records] == [run_id(1), run_id(2)]
    assert read_manifest(layout).damaged == 0


@pytest.mark.parametrize("is_locked", [True, False])
def test_line_after_a_torn_one_is_whole(layout: ExperimentLayout, is_locked: bool) -> None:
    """A writer that died in the middle spoils its own line only."""
    layout.manifest.write_bytes(started(1).encode() + started(2).encode()[:25])
    append_record(layout, started(3), is_locked=is_locked)

    manifest = read_manifest(layout)
    assert [record.run for record in manifest.records] == [run_id(1), run_id(3)]
    assert manifest.damaged == 1


def test_interleaved_writes_without_a_lock_lose_at_most_the_lines_that_are_mixed_up(layout: ExperimentLayout) -> None:
    """On NFS two clients can write at one offset: the lines before and after stay readable."""
    append_record(layout, started(1), is_locked=False)
    one, other = started(2).encode(), started(3, host="x" * 40).encode()
    with layout.manifest.open("ab") as file:
        file.write(b"\n" + other[:30] + one[30:] + other[len(one) :])
    append_record(layout, started(4), is_locked=False)

    manifest = read_manifest(layout)
    assert {run_id(1), run_id(4)} <= {record.run for record in manifest.records}
    assert recent_started_runs(layout)[0] == run_id(4)


def test_recent_runs_are_the_started_ones_newest_first(layout: ExperimentLayout) -> None:
    """The order is that of the lines, whatever the clock said."""
    for record in (started(5), started(1), ManifestRecord(FINISHED, run_id(5), "t"), started(3)):
        append_record(layout, record, is_locked=True)

    assert recent_started_runs(layout) == [run_id(3), run_id(1), run_id(5)]


def test_line_that_names_no_run_is_never_the_newest(layout: ExperimentLayout) -> None:
    """In a shared directory anyone can append a line; `latest` is not led elsewhere by it."""
    append_record(layout, started(1), is_locked=True)
    append_record(layout, ManifestRecord(STARTED, "../../elsewhere", "t"), is_locked=True)

    assert recent_started_runs(layout) == [run_id(1)]


def test_newest_run_is_found_before_any_number_of_other_lines(layout: ExperimentLayout) -> None:
    """The end that is read grows until it holds a started run."""
    append_record(layout, started(1), is_locked=True)
    other = ManifestRecord(FINISHED, run_id(1), "t", {"error": "x" * 1000}).encode()
    with layout.manifest.open("ab") as file:
        file.write(other * 2000)

    assert recent_started_runs(layout) == [run_id(1)]


def test_cost_of_the_newest_run_does_not_grow(layout: ExperimentLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the end of a long manifest is read."""
    with layout.manifest.open("ab") as file:
        file.writelines(started(number).encode() for number in range(20_000))
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        read.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counted)

    assert recent_started_runs(layout)[0] == run_id(19_999)
    assert sum(read) < 100_000 < layout.manifest.stat().st_size


def test_manifest_is_only_ever_added_to(layout: ExperimentLayout) -> None:
    """What stands in it stays, byte for byte, under the same inode."""
    append_record(layout, started(1), is_locked=True)
    before, inode = layout.manifest.read_bytes(), layout.manifest.stat().st_ino
    for number in range(5):
        append_record(layout, started(number), is_locked=number % 2 == 0)

    assert layout.manifest.read_bytes().startswith(before)
    assert layout.manifest.stat().st_ino == inode


def test_lock_tells_whether_it_is_held(layout: ExperimentLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a mount without locks the caller is told, and goes on."""
    with manifest_lock(layout) as is_held:
        assert is_held

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with manifest_lock(layout) as is_held:
        assert not is_held


@pytest.mark.parametrize("is_locked", [True, False])
def test_processes_appending_at_once_lose_no_line(
    layout: ExperimentLayout, children: Children, is_locked: bool
) -> None:
    """One write with O_APPEND is enough on one machine; the lock adds that no blank line is needed."""
    code = """
        from contextlib import nullcontext
        from immutable_logs.layout import ExperimentLayout
        from immutable_logs.manifest import append_record, manifest_lock
        from immutable_logs.records import ManifestRecord
        layout, number, is_locked = ExperimentLayout.of(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
        gate()
        for turn in range(50):
            with manifest_lock(layout) if is_locked else nullcontext(False) as is_held:
                append_record(layout, ManifestRecord("test", str(number), "t", {"turn": turn}), is_locked=is_held)
    """
    writers = [children.start(code, layout.path, number, is_locked, is_gated=True) for number in range(4)]
    children.open_gate()
    for writer in writers:
        writer.reports()

    manifest = read_manifest(layout)
    assert manifest.damaged == 0
    for number in range(4):
        assert [record.details["turn"] for record in manifest.records if record.run == str(number)] == list(range(50))
