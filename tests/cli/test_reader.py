from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs.demo.reader import DANGLING, INCOMPLETE, REPLACED, VANISHED, Reader
from immutable_logs.run import Run

FinishRuns = Callable[[Path, int], list[Run]]


def go_over(reader: Reader) -> list[tuple[str, str]]:
    """Let a reader do one pass, and return all that it has lost so far."""
    reader.list_names()
    reader.read_names()
    return [(failure["path"], failure["problem"]) for failure in reader.findings.failures]


def test_everything_in_an_experiment_is_read(finish_runs: FinishRuns, experiment: Path) -> None:
    """Every file is read at every pass, through links too, and none is lost while new runs start."""
    reader = Reader(experiment)
    assert go_over(reader) == []
    assert reader.findings.names == 0

    for count in (1, 2, 3):
        (run,) = finish_runs(experiment, 1)
        (run.path / "log.txt").write_text("a line\n", encoding="utf-8")
        names = sum(len(directories) + len(files) for _, directories, files in os.walk(experiment))
        assert go_over(reader) == []
        # The experiment itself is a name too.
        assert reader.findings.names == names + 1
        assert reader.findings.passes == count + 1

    before = reader.findings.reads
    go_over(reader)
    files = sum(len(files) for _, _, files in os.walk(experiment))
    # Claims lead to files; `latest` leads to a directory, of which run.json is read.
    assert reader.findings.reads - before == files + 1
    assert reader.findings.bytes_read > 0


def test_a_file_moved_between_listing_and_opening_has_vanished(experiment: Path) -> None:
    """What moving files at a start does to a reader is found: it opens a name that it was just told."""
    experiment.mkdir()
    (experiment / "log.txt").write_text("a line\n", encoding="utf-8")
    reader = Reader(experiment)
    reader.list_names()
    (experiment / "run_0").mkdir()
    (experiment / "log.txt").rename(experiment / "run_0" / "log.txt")

    reader.read_names()

    assert reader.findings.failure_count == 1
    assert reader.findings.failures == [{"path": "log.txt", "problem": VANISHED}]
    assert reader.findings.reads == 0


def test_a_file_moved_between_two_passes_has_vanished_once(experiment: Path) -> None:
    """A name that was ever seen must stay, and its loss is counted once."""
    experiment.mkdir()
    (experiment / "log.txt").write_text("a line\n", encoding="utf-8")
    reader = Reader(experiment)
    assert go_over(reader) == []
    (experiment / "log.txt").rename(experiment / "old.txt")

    assert go_over(reader) == [("log.txt", VANISHED)]
    assert go_over(reader) == [("log.txt", VANISHED)]
    assert reader.findings.failure_count == 1


def test_a_directory_that_goes_away_is_lost_with_all_that_was_in_it(experiment: Path) -> None:
    """Directories are names too."""
    (experiment / "run").mkdir(parents=True)
    (experiment / "run" / "log.txt").touch()
    reader = Reader(experiment)
    go_over(reader)
    (experiment / "run").rename(experiment.parent / "elsewhere")

    assert sorted(go_over(reader)) == [("run", VANISHED), ("run/log.txt", VANISHED)]


def test_a_file_that_makes_room_for_another_of_its_name_is_found(experiment: Path) -> None:
    """A move that is over before the next pass leaves a new file under the old name; who follows it has lost it."""
    experiment.mkdir()
    (experiment / "log.txt").write_text("old\n", encoding="utf-8")
    reader = Reader(experiment)
    go_over(reader)
    (experiment / "log.txt").rename(experiment / "old.txt")
    (experiment / "log.txt").write_text("new\n", encoding="utf-8")

    assert go_over(reader) == [("log.txt", REPLACED)]


def test_a_file_that_grows_is_the_same_file(experiment: Path) -> None:
    """Writers append all the time."""
    experiment.mkdir()
    log = experiment / "log.txt"
    log.write_text("one\n", encoding="utf-8")
    reader = Reader(experiment)
    go_over(reader)
    with log.open("a", encoding="utf-8") as file:
        file.write("two\n")

    assert go_over(reader) == []


def test_a_link_that_leads_nowhere_is_found(experiment: Path) -> None:
    """A dangling link is a failure for who follows it."""
    experiment.mkdir()
    (experiment / "link").symlink_to("nothing")

    assert go_over(Reader(experiment)) == [("link", DANGLING)]


def test_latest_must_show_a_run_with_a_complete_record(finish_runs: FinishRuns, experiment: Path) -> None:
    """A reader that follows `latest` finds a whole `run.json` there, or it is a failure."""
    (run,) = finish_runs(experiment, 1)
    assert go_over(Reader(experiment)) == []
    (run.path / "run.json").write_bytes((run.path / "run.json").read_bytes()[:50])

    assert go_over(Reader(experiment)) == [("latest", INCOMPLETE)]


def test_checkpoints_come_and_go_without_being_failures(experiment: Path) -> None:
    """Lightning keeps the best few checkpoints; its rotation is counted apart."""
    checkpoints = experiment / "checkpoints"
    checkpoints.mkdir(parents=True)
    for name in ("a.ckpt", "b.ckpt"):
        (checkpoints / name).write_bytes(b"weights")
    reader = Reader(experiment)
    go_over(reader)
    (checkpoints / "a.ckpt").unlink()
    (checkpoints / "new").write_bytes(b"more weights")
    (checkpoints / "new").replace(checkpoints / "b.ckpt")

    assert go_over(reader) == []
    assert reader.findings.rotated == 2
    assert reader.findings.failure_count == 0


def test_the_directory_of_checkpoints_itself_must_stay(experiment: Path) -> None:
    """Only what is in it is Lightning's to rotate."""
    (experiment / "checkpoints").mkdir(parents=True)
    reader = Reader(experiment)
    go_over(reader)
    (experiment / "checkpoints").rmdir()

    assert go_over(reader) == [("checkpoints", VANISHED)]


def test_the_private_name_of_the_next_latest_may_go(finish_runs: FinishRuns, experiment: Path) -> None:
    """The link in the workshop is renamed to `latest`, the one name in the layout that ever goes away."""
    finish_runs(experiment, 2)
    workshop = experiment / "runs" / ".latest"
    (workshop / "host-1-abc.link").symlink_to(os.readlink(experiment / "latest"))
    reader = Reader(experiment)
    assert go_over(reader) == []
    (workshop / "host-1-abc.link").rename(experiment / "latest")

    assert go_over(reader) == []


class TestProcess:
    def test_it_reads_until_its_input_ends_and_reports(self, finish_runs: FinishRuns, experiment: Path) -> None:
        """The process goes over everything once more after its input has ended: nothing done before is missed."""
        with subprocess.Popen(
            [sys.executable, "-m", "immutable_logs.demo.reader", str(experiment)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            runs = finish_runs(experiment, 3)
            output, _ = process.communicate(timeout=60)

        findings = json.loads(output)
        assert process.returncode == 0
        assert findings["failures"] == []
        assert findings["failure_count"] == 0
        assert findings["reads"] >= 3 * len(runs)

    @pytest.mark.slow
    def test_it_loses_files_where_files_are_moved(self, experiment: Path) -> None:
        """The same process beside a writer that moves its files at each start, as stock NeMo does, reports losses."""
        experiment.mkdir()
        is_over = threading.Event()

        def start_again_and_again() -> None:
            for number in range(10_000):
                (experiment / "log.txt").write_text("a line\n", encoding="utf-8")
                if is_over.wait(0.005):
                    return
                (experiment / f"run_{number}").mkdir()
                (experiment / "log.txt").rename(experiment / f"run_{number}" / "log.txt")

        writer = threading.Thread(target=start_again_and_again)
        with subprocess.Popen(
            [sys.executable, "-m", "immutable_logs.demo.reader", str(experiment)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            writer.start()
            try:
                is_over.wait(3)
            finally:
                is_over.set()
                writer.join()
            output, _ = process.communicate(timeout=60)

        findings = json.loads(output)
        assert findings["failure_count"] > 0
        assert {failure["path"] for failure in findings["failures"]} == {"log.txt"}
