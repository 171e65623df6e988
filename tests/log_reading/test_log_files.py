from __future__ import annotations

import os
from pathlib import Path

import pytest

from immutable_logs.log_reading.log_files import find_log_files


def found(directory: Path) -> list[tuple[int | None, str]]:
    """Return rank and name of the logs in a directory."""
    return [(log.rank, log.path.name) for log in find_log_files(directory)]


def test_the_logs_of_a_nemo_run_are_found_in_the_order_of_the_ranks(real_logs: Path) -> None:
    """Lightning's log is rank zero's; the error log repeats rank zero's own, so it is left out."""
    assert found(real_logs / "raised") == [
        (0, "lightning_logs.txt"),
        *((rank, f"nemo_log_globalrank-{rank}_localrank-{rank}.txt") for rank in range(4)),
    ]


def test_ranks_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    """Rank 10 comes after rank 9."""
    for rank in (10, 9, 100):
        (tmp_path / f"nemo_log_globalrank-{rank}_localrank-{rank % 8}.txt").touch()

    assert [rank for rank, _ in found(tmp_path)] == [9, 10, 100]


def test_the_error_log_counts_where_rank_zero_has_no_log(tmp_path: Path) -> None:
    """NeMo 3 writes by default nothing but this log and Lightning's."""
    for name in ("nemo_error_log.txt", "lightning_logs.txt", "nemo_log_globalrank-1_localrank-1.txt"):
        (tmp_path / name).touch()

    assert found(tmp_path)[:2] == [(0, "lightning_logs.txt"), (0, "nemo_error_log.txt")]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.log", 3),
        ("train.Rank-12.out", 12),
        ("log_rank_0007.txt", 7),
        ("franklin.log", None),
        ("stderr.err", None),
    ],
)
def test_a_log_of_another_program_has_its_rank_in_its_name(tmp_path: Path, name: str, rank: int | None) -> None:
    """Users of the library name their logs as they like."""
    (tmp_path / name).touch()

    assert found(tmp_path) == [(rank, name)]


def test_what_is_no_log_is_left_alone(tmp_path: Path) -> None:
    """Records, event files, directories and pipes are no logs, nor what NeMo notes of the command and of git."""
    for name in ("run.json", "events.out.tfevents.1.host.1.0", "cmd-args.log", "git-info.log", "hparams.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "old.log").mkdir()
    os.mkfifo(tmp_path / "pipe.log")

    assert found(tmp_path) == []


def test_a_link_to_a_log_counts(tmp_path: Path) -> None:
    """A run that a migration adopted has links to files elsewhere; one that leads nowhere does not count."""
    (tmp_path / "elsewhere").write_text("x")
    (tmp_path / "rank1.log").symlink_to("elsewhere")
    (tmp_path / "rank2.log").symlink_to("gone")

    assert found(tmp_path) == [(1, "rank1.log")]
