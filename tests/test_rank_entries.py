from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from immutable_logs.layout import RunLayout
from immutable_logs.process import Process
from immutable_logs.rank_entries import count_joined_ranks, read_rank_entries, read_rank_process
from immutable_logs.records import RankRecord

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run that ranks 0, 1, 64 and 130 have joined."""
    run = RunLayout(tmp_path / "run")
    for rank in (130, 0, 64, 1):
        record = RankRecord(
            joined="t", nonce="n", global_rank=rank, local_rank=0, node_rank=0, host="h", pid=rank, start_ticks=9
        )
        run.rank_entry(rank).parent.mkdir(parents=True, exist_ok=True)
        run.rank_entry(rank).write_bytes(record.encode())
    return run


def test_ranks_are_counted_over_all_shards(run: RunLayout) -> None:
    """An entry counts whether it is complete or not: the rank has joined."""
    run.rank_entry(2).touch()
    (run.ranks / "0000" / "notes.txt").touch()

    assert count_joined_ranks(run) == 5


def test_entries_are_read_in_the_order_of_the_ranks(run: RunLayout) -> None:
    """Torn entries are left out, and the others are read."""
    run.rank_entry(2).write_bytes(b"{")

    assert [record.global_rank for record in read_rank_entries(run)] == [0, 1, 64, 130]


def test_process_of_a_rank_is_told(run: RunLayout) -> None:
    """As it was when the rank joined."""
    assert read_rank_process(run, 64) == Process("h", 64, start_ticks=9)


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"format": 1}'])
def test_missing_or_damaged_entry_has_no_process(run: RunLayout, content: bytes | None) -> None:
    """It is no error: nobody knows then."""
    if content is not None:
        run.rank_entry(5).write_bytes(content)

    assert read_rank_process(run, 5) is None


def test_run_without_any_entry_has_no_ranks(tmp_path: Path) -> None:
    """So has a directory that is not there."""
    run = RunLayout(tmp_path / "gone")

    assert count_joined_ranks(run) == 0
    assert read_rank_entries(run) == []
