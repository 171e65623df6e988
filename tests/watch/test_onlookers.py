"""What looks on in the tests of this folder sees each way in which a name can be lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import start_run

ROOT = Path(__file__).parents[2]
Watched = Callable[..., AbstractContextManager[list[Any]]]


def unlink_and_link(experiment: Path) -> None:
    """Switch `latest` in two steps, between which there is none."""
    text = os.readlink(experiment / "latest")
    (experiment / "latest").unlink()
    (experiment / "latest").symlink_to(text)


def move_into_archive(experiment: Path) -> None:
    """Move a log into a new directory and another one to its name, as a start that archives does."""
    (experiment / "run_0").mkdir()
    (experiment / "latest" / "log.txt").rename(experiment / "run_0" / "log.txt")


def replace_a_file(experiment: Path) -> None:
    """Rename a new file over a known one."""
    (experiment / "new").write_text("new")
    (experiment / "new").replace(experiment / "runs" / "manifest.jsonl")


def remove_deep_inside(experiment: Path) -> None:
    """Remove a file of a directory that was made while the watch went on."""
    with start_run(experiment) as run:
        pass
    next(run.path.glob("ranks/*/*")).unlink()


def do_nothing(experiment: Path) -> None:
    """Start a run, and no more."""
    start_run(experiment).finish()


@pytest.mark.parametrize(
    ("act", "deleted", "moved_away", "replaced", "missing"),
    [
        (unlink_and_link, ["latest"], [], [], []),
        (move_into_archive, [], ["log.txt"], [], [".txt"]),
        (replace_a_file, [], ["new"], ["manifest.jsonl"], ["new"]),
        (remove_deep_inside, ["rank-000000.json"], [".link"], ["latest"], [".json", ".link"]),
        (do_nothing, [], [".link"], ["latest"], [".link"]),
    ],
)
def test_the_watch_names_what_was_removed_moved_or_replaced(
    experiment: Path,
    watched: Watched,
    act: Callable[[Path], None],
    deleted: list[str],
    moved_away: list[str],
    replaced: list[str],
    missing: list[str],
) -> None:
    """However short the moment is; the last case is what the layout does."""
    for _ in range(2):  # the directory in which `latest` is made comes with the second run
        with start_run(experiment) as run:
            (run.path / "log.txt").write_text("hello")
    with watched(("tests.watch.name_watch", experiment)) as reports:
        act(experiment)
    (seen,) = reports

    assert seen["overflows"] == 0
    for expected, found in (
        (deleted, seen["deleted"]),
        (moved_away, seen["moved_away"]),
        (replaced, seen["replaced"]),
    ):
        assert [path.endswith(end) for path, end in zip(found, expected, strict=True)] == [True] * len(expected), found
    assert sorted(Path(path).suffix or path for path in seen["missing"]) == sorted(missing)


def test_a_lost_event_is_told(tmp_path: Path) -> None:
    """More events at once than the kernel keeps: the watch says so, since what it has seen proves nothing then."""
    code = """
import sys
from pathlib import Path
from tests.watch.name_watch import NameWatch
one, other = Path(sys.argv[1], "one"), Path(sys.argv[1], "other")
one.touch()
watch = NameWatch(Path(sys.argv[1]))
for number in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) // 4 + 1):
    one.rename(other)
    other.rename(one)
print(watch.end().overflows)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize("how", ["files", "fsspec"])
def test_a_reader_fails_where_files_come_and_go(tmp_path: Path, watched: Watched, how: str) -> None:
    """A file that is moved to and fro is not where it was listed."""
    if how == "fsspec":
        pytest.importorskip("fsspec")
    for number in range(50):
        (tmp_path / f"{number}").write_text("hello")
    failures = None
    for _ in range(5):  # on a busy machine the reader can miss all of it, since it is nicer than who moves
        with watched(("tests.watch.reader", tmp_path, how)) as reports:
            for _ in range(100):
                for old, new in ("{}", "_{}"), ("_{}", "{}"):
                    for number in range(50):
                        (tmp_path / old.format(number)).rename(tmp_path / new.format(number))
                    time.sleep(0.005)
        failures = reports[0]["failures"]
        if failures:
            break

    assert failures
