from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pathlib2
import pytest

from immutable_logs import Experiment, start_run
from immutable_logs.catalog import format_seconds
from immutable_logs.errors import NotAnExperimentError, UnknownRunError
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import append_record
from immutable_logs.process import Process, this_process
from immutable_logs.records import (
    ADOPTED,
    FINISHED,
    PRUNED,
    STARTED,
    FinishRecord,
    ManifestRecord,
    RankRecord,
    RunRecord,
    format_time,
)
from immutable_logs.run_id import format_run_id

if TYPE_CHECKING:
    from tests.conftest import Children

START = 1796092095.0


def run_id(number: float) -> str:
    """Return a run id by its seconds after the first."""
    return format_run_id(START + number, bytes(8))


class Builder:
    """Writes what launches leave, in any state, so that a reader has something to read."""

    def __init__(self, path: Path) -> None:
        self.layout = ExperimentLayout.of(path)
        self.layout.runs.mkdir(parents=True)

    def line(self, event: str, run: str, at: float = 0.0, **details: Any) -> None:
        """Append a line to the manifest."""
        append_record(self.layout, ManifestRecord(event, run, format_time(START + at), details), is_locked=True)

    def directory(self, run: str) -> None:
        """Make a run directory."""
        self.layout.run(run).path.mkdir(exist_ok=True)

    def record(self, run: str, **values: Any) -> None:
        """Write `run.json`."""
        self.directory(run)
        values = {"started": format_time(START), **values}
        self.layout.run(run).run_record.write_bytes(RunRecord(run=run, **values).encode())

    def finish(self, run: str, outcome: str, **values: Any) -> None:
        """Write `finished.json`."""
        end = FinishRecord(run=run, ended=format_time(START + 60.0), outcome=outcome, **values)
        self.layout.run(run).finish_record.write_bytes(end.encode())

    def rank(self, run: str, process: Process, rank: int = 0) -> None:
        """Enter a process as a rank."""
        entry = self.layout.run(run).rank_entry(rank)
        entry.parent.mkdir(parents=True, exist_ok=True)
        record = RankRecord(
            joined="t",
            nonce="n",
            global_rank=rank,
            local_rank=0,
            node_rank=0,
            host=process.host,
            pid=process.pid,
            boot_id=process.boot_id,
            pid_namespace=process.pid_namespace,
            start_ticks=process.start_ticks,
        )
        entry.write_bytes(record.encode())

    def latest(self, run: str) -> None:
        """Let `latest` show a run."""
        self.layout.latest.symlink_to(self.layout.latest_target(run))

    def runs(self, **options: Any) -> list[tuple[str, str]]:
        """Return ids and statuses as a reader sees them."""
        return [(run.id, run.status) for run in Experiment(self.layout.path, **options).runs()]


@pytest.fixture
def build(experiment: Path) -> Builder:
    """An experiment without runs, and what writes some."""
    return Builder(experiment)


def test_finished_run_is_told_with_everything_that_is_recorded(build: Builder) -> None:
    """From the manifest alone, without opening a record."""
    run = run_id(0)
    build.directory(run)
    build.line(STARTED, run, host="h", source="Slurm step", job="7", world_size=4, lineage="l", resumed_from="r")
    build.line(FINISHED, run, 60.0, outcome="failed", step=9, ranks_joined=3)
    (summary,) = Experiment(build.layout.path).runs()

    assert summary.path == build.layout.run(run).path
    assert (summary.status, summary.evidence) == ("failed", "end record")
    assert (summary.started, summary.ended) == (START, START + 60.0)
    assert (summary.ranks_joined, summary.world_size, summary.step) == (3, 4, 9)
    assert (summary.host, summary.source, summary.job) == ("h", "Slurm step", "7")
    assert (summary.lineage, summary.resumed_from) == ("l", "r")


def test_lost_manifest_loses_no_run(build: Builder) -> None:
    """The records of the runs are the proof; their order is then that of the ids."""
    for number, outcome in ((1, "finished"), (0, "interrupted")):
        build.record(run_id(number), world_size=2, process={"host": "h"}, launch_source="torchrun", job="9")
        build.finish(run_id(number), outcome, step=5, ranks_joined=2)

    assert build.runs() == [(run_id(0), "interrupted"), (run_id(1), "finished")]
    summary = Experiment(build.layout.path).runs()[0]
    assert (summary.host, summary.source, summary.job, summary.world_size) == ("h", "torchrun", "9", 2)
    assert (summary.step, summary.ranks_joined, summary.ended) == (5, 2, START + 60.0)


def test_run_without_any_record_is_listed(build: Builder) -> None:
    """Rank zero may have died first: the directory is enough."""
    build.directory(run_id(5))
    build.rank(run_id(5), Process("elsewhere", 1), rank=3)
    (summary,) = Experiment(build.layout.path).runs()

    assert summary.id == run_id(5)
    assert summary.started == START + 5
    assert summary.ranks_joined == 1


def test_run_removed_by_hand_is_missing(build: Builder) -> None:
    """The manifest remembers it, and its end."""
    build.line(STARTED, run_id(0))
    build.line(FINISHED, run_id(0), outcome="finished", step=3)
    (summary,) = Experiment(build.layout.path).runs()

    assert summary.status == "missing"
    assert "its directory is gone" in summary.evidence
    assert summary.step == 3


def test_pruned_run_is_told_as_such(build: Builder) -> None:
    """Also while its directory is still being taken away."""
    for number in (0, 1):
        build.line(STARTED, run_id(number))
        build.line(PRUNED, run_id(number))
    build.directory(run_id(1))

    assert [status for _, status in build.runs()] == ["pruned", "pruned"]


def test_runs_are_in_the_order_of_their_started_lines(build: Builder) -> None:
    """A clock that jumped back reorders nothing; a doubled line counts where it stood first."""
    for number in (5, 1, 9, 5, 3):
        build.directory(run_id(number))
        build.line(STARTED, run_id(number))

    assert [run for run, _ in build.runs()] == [run_id(5), run_id(1), run_id(9), run_id(3)]


def test_adopted_runs_come_first_by_their_time(build: Builder) -> None:
    """A migration appends its lines last, and its runs are the oldest."""
    build.line(STARTED, run_id(10))
    for number, at in ((3, 300.0), (1, 100.0), (2, 200.0)):
        build.line(ADOPTED, run_id(number), at)
    for number in (1, 2, 3, 10):
        build.directory(run_id(number))

    assert build.runs()[:3] == [(run_id(1), "adopted"), (run_id(2), "adopted"), (run_id(3), "adopted")]
    assert build.runs()[3][0] == run_id(10)


def test_run_without_a_line_stands_before_the_first_started_run_with_a_later_id(build: Builder) -> None:
    """Its launch failed or died first, so only its name tells when."""
    for number in (5, 2, 8):
        build.directory(run_id(number))
        build.line(STARTED, run_id(number))
    for number in (1, 6, 9):
        build.directory(run_id(number))
    build.line(ADOPTED, run_id(20))

    assert [run for run, _ in build.runs()] == [run_id(number) for number in (20, 1, 5, 2, 6, 8, 9)]


def test_run_of_which_only_the_end_is_in_the_manifest_counts_as_unstarted(build: Builder) -> None:
    """A launch that failed before it was published has an end and no start."""
    build.directory(run_id(3))
    build.line(FINISHED, run_id(3), outcome="failed")
    build.directory(run_id(5))
    build.line(STARTED, run_id(5))

    assert [run for run, _ in build.runs()] == [run_id(3), run_id(5)]
    assert build.runs()[0][1] == "failed"


def test_unknown_events_and_keys_do_not_disturb(build: Builder) -> None:
    """A newer version may have written them."""
    build.directory(run_id(0))
    build.line("archived", run_id(0), where="tape")
    build.line(STARTED, run_id(0), colour="red")
    build.line("archived", run_id(7))

    assert [run for run, _ in build.runs()] == [run_id(0), run_id(7)]


def test_foreign_names_under_runs_are_no_runs(build: Builder) -> None:
    """Files, links, hidden directories and directories of other names are left out."""
    for name in ("run_0", "notes", ".launches", ".latest"):
        (build.layout.runs / name).mkdir()
    (build.layout.runs / run_id(1)).touch()
    (build.layout.runs / run_id(2)).symlink_to("notes")
    build.line(STARTED, "../../elsewhere")

    assert build.runs() == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"format": 2}',
        b'{"format": 1, "run": 3, "started": []}',
        b'{"format": 1, "run": "x", "started": "t", "process": "h"}',
    ],
)
def test_damaged_records_are_problems_and_no_failure(build: Builder, content: bytes) -> None:
    """The run is listed, and `describe` says what could not be read and why."""
    run = run_id(0)
    build.directory(run)
    build.layout.run(run).run_record.write_bytes(content)
    build.layout.run(run).finish_record.write_bytes(content)
    experiment = Experiment(build.layout.path)
    (summary,) = experiment.runs()
    details = experiment.describe(summary)

    assert summary.status == "running"
    assert (details.run_record, details.finish_record) == (None, None)
    assert len(details.problems) == 2
    assert str(build.layout.run(run).run_record) in details.problems[0]


def test_nothing_that_stands_in_a_file_makes_a_listing_fail(build: Builder) -> None:
    """Whatever a crash, a disk or a colleague did to the files, every run directory is listed."""
    choice = random.Random(7)
    for number in range(6):
        build.record(run_id(number), process={"host": "h"})
        build.finish(run_id(number), "finished")
        build.rank(run_id(number), this_process())
        build.line(STARTED, run_id(number), host="h", world_size=2)
        build.line(FINISHED, run_id(number), outcome="finished", ranks_joined=1)
    files = [path for path in build.layout.path.rglob("*") if path.is_file()]
    whole = {path: path.read_bytes() for path in files}
    for _ in range(300):
        path = choice.choice(files)
        data = bytearray(whole[path])
        for _ in range(choice.randrange(1, 6)):
            at = choice.randrange(len(data))
            data[at : at + choice.randrange(0, 9)] = choice.choice([b"", b"\0" * 5, b"null", b"\n", b'"', b"[]", b"7"])
        path.write_bytes(data)
        assert {run for run, _ in build.runs()} >= {run_id(number) for number in range(6)}
        path.write_bytes(whole[path])


def test_records_are_described(build: Builder) -> None:
    """Everything that was written comes back."""
    build.record(run_id(0), user="me", configuration={"a": [1]})
    build.finish(run_id(0), "failed", error="boom")
    experiment = Experiment(build.layout.path)
    details = experiment.describe(experiment.runs()[0])

    assert details.run_record is not None
    assert details.finish_record is not None
    assert (details.run_record.user, details.run_record.configuration) == ("me", {"a": [1]})
    assert details.finish_record.error == "boom"
    assert details.problems == ()


def test_living_process_is_the_sign_of_life(build: Builder) -> None:
    """Where rank zero's process can be seen, it alone decides, however long ago the last write was."""
    process = this_process()
    build.record(run_id(0))
    build.rank(run_id(0), process)
    os.utime(build.layout.run(run_id(0)).path, (0, 0))
    (summary,) = Experiment(build.layout.path).runs()
    assert summary.status == "running"
    assert f"process {process.pid} of rank 0 on this host is alive" in summary.evidence

    assert process.start_ticks is not None
    build.rank(run_id(0), replace(process, start_ticks=process.start_ticks - 5))
    (summary,) = Experiment(build.layout.path).runs()
    assert summary.status == "unknown"
    assert "is gone, and left no end record" in summary.evidence


def test_process_elsewhere_is_judged_by_its_last_write(build: Builder) -> None:
    """On another host the age of the newest file tells, and the evidence says so."""
    run = build.layout.run(run_id(0))
    build.record(run_id(0))
    build.rank(run_id(0), Process("node7", 1, boot_id="b", start_ticks=1))
    now = run.path.stat().st_mtime
    (summary,) = Experiment(build.layout.path, now=lambda: now + 120.0).runs()
    assert (summary.status, summary.evidence) == ("running", "last write 2 min ago on node7, no end record")

    (summary,) = Experiment(build.layout.path, now=lambda: now + 7200.0).runs()
    assert (summary.status, summary.evidence) == ("unknown", "last write 2 h 00 min ago on node7, no end record")

    (run.path / "nemo_log_globalrank-0_localrank-0.txt").touch()
    os.utime(run.path / "nemo_log_globalrank-0_localrank-0.txt", (now + 7100.0, now + 7100.0))
    assert build.runs(now=lambda: now + 7200.0)[0][1] == "running"


def test_reference_means_a_run_by_id_prefix_or_distance(build: Builder) -> None:
    """A full id, a unique beginning, `latest` and `latest~N`."""
    for number in (0, 1, 60):
        build.record(run_id(number))
        build.line(STARTED, run_id(number))
    build.latest(run_id(60))
    experiment = Experiment(build.layout.path)

    assert experiment.find(run_id(1)).id == run_id(1)
    assert experiment.find(run_id(1)[:19]).id == run_id(1)
    assert experiment.find("latest").id == run_id(60)
    assert experiment.find("latest~0").id == run_id(60)
    assert experiment.find("latest~1").id == run_id(1)
    assert experiment.find("latest~2").id == run_id(0)
    latest = experiment.latest
    assert latest is not None
    assert latest.id == run_id(60)


def test_distance_is_counted_over_runs_that_are_there(build: Builder) -> None:
    """Pruned and removed runs are no steps."""
    for number in range(4):
        build.line(STARTED, run_id(number))
    build.line(PRUNED, run_id(2))
    for number in (0, 3):
        build.record(run_id(number))
    build.latest(run_id(3))

    assert Experiment(build.layout.path).find("latest~1").id == run_id(0)


def test_latest_is_what_the_link_shows_and_not_the_newest(build: Builder) -> None:
    """A launch that failed before it was published is newer and not it."""
    for number in (0, 1):
        build.record(run_id(number))
        build.line(STARTED, run_id(number))
    build.latest(run_id(0))
    experiment = Experiment(build.layout.path)

    assert experiment.find("latest").id == run_id(0)
    with pytest.raises(UnknownRunError, match="there are only 0 runs before the latest one"):
        experiment.find("latest~1")


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("", "'' means several runs|no run is called ''"),
        ("2026-12", "'2026-12' means several runs: it could be 2026"),
        ("1999", "no run is called '1999'"),
        ("latest~", "expected a number after 'latest~', found ''"),
        ("latest~-1", "found '-1'"),
        ("latest~x", "found 'x'"),
        ("latest~9", "there are only 1 runs before"),
        ("lates", "no run is called"),
        ("../..", "no run is called"),
    ],
)
def test_reference_that_means_no_single_run_is_an_error(build: Builder, reference: str, reason: str) -> None:
    """It says why, where, and how references are written."""
    for number in (0, 1):
        build.record(run_id(number))
        build.line(STARTED, run_id(number))
    build.latest(run_id(1))

    with pytest.raises(UnknownRunError, match=reason) as caught:
        Experiment(build.layout.path).find(reference)
    assert caught.value.reference == reference
    assert str(build.layout.path) in str(caught.value)
    assert "HINT" in str(caught.value)


@pytest.mark.parametrize("kind", ["none", "dangling", "directory", "foreign"])
def test_latest_that_shows_no_run_is_none(build: Builder, kind: str) -> None:
    """The reader does not guess."""
    build.record(run_id(0))
    build.line(STARTED, run_id(0))
    if kind == "dangling":
        build.latest(run_id(9))
    elif kind == "directory":
        build.layout.latest.mkdir()
    elif kind == "foreign":
        build.layout.latest.symlink_to("elsewhere")
    experiment = Experiment(build.layout.path)

    assert experiment.latest is None
    with pytest.raises(UnknownRunError, match="there is no link 'latest' that shows a run"):
        experiment.find("latest")


def test_reading_writes_nothing(build: Builder) -> None:
    """Neither files nor times change, so that a read-only mount can be read."""
    build.record(run_id(0))
    build.line(STARTED, run_id(0))
    build.layout.manifest.write_bytes(build.layout.manifest.read_bytes() + b"torn")
    build.latest(run_id(9))

    def state() -> dict[str, tuple[int, int]]:
        paths = [build.layout.path, *build.layout.path.rglob("*")]
        return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths}

    before = state()
    experiment = Experiment(build.layout.path)
    for run in experiment.runs():
        experiment.describe(run)
    assert state() == before


@pytest.mark.parametrize(("name", "reason"), [("gone", "there is no such directory"), ("plain", "holds no runs")])
def test_other_directory_is_no_experiment(tmp_path: Path, name: str, reason: str) -> None:
    """The error says what makes one."""
    (tmp_path / "plain").mkdir()

    with pytest.raises(
        NotAnExperimentError, match=f"{reason}.*\nHINT: name the directory that holds `runs/`"
    ) as caught:
        Experiment(tmp_path / name)
    assert caught.value.path == tmp_path / name


@pytest.mark.parametrize("make", [str, Path, pathlib2.Path])
def test_any_kind_of_path_is_accepted(build: Builder, make: type) -> None:
    """The answer holds `pathlib` paths."""
    build.record(run_id(0))
    (summary,) = Experiment(make(str(build.layout.path))).runs()

    assert isinstance(summary.path, Path)


def test_two_machines_that_wrote_apart_are_read_together(experiment: Path, tmp_path: Path) -> None:
    """A tree that was copied, written to in both places and merged file by file loses no run."""
    common = start_run(experiment)
    common.finish()
    shutil.copytree(experiment, tmp_path / "copy", symlinks=True)
    here, there = start_run(experiment), start_run(tmp_path / "copy")
    here.finish()
    there.finish("failed")
    for path in sorted((tmp_path / "copy").rglob("*")):
        target = experiment / path.relative_to(tmp_path / "copy")
        if path.is_symlink() or path.is_file():
            target.unlink(missing_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)
        else:
            target.mkdir(exist_ok=True)
    found = {run.id: run.status for run in Experiment(experiment).runs()}

    assert found == {common.id: "finished", here.id: "finished", there.id: "failed"}


def test_listing_while_runs_start_and_end_never_fails(experiment: Path, children: Children) -> None:
    """A reader in a loop sees each run from its first moment, and never loses one."""
    code = """
        from immutable_logs import start_run
        report()
        for _ in range(60):
            start_run(sys.argv[1]).finish()
    """
    child = children.start(code, experiment)
    assert child.popen.stdout is not None
    child.popen.stdout.readline()
    seen: set[str] = set()
    while child.popen.poll() is None:
        if (experiment / "runs").is_dir():
            runs = {run.id for run in Experiment(experiment).runs()}
            assert seen <= runs
            seen = runs
    child.reports()

    assert len(Experiment(experiment).runs()) == 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5.0, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3599.0, "59 min"),
        (3600.0, "1 h 00 min"),
        (11_100.0, "3 h 05 min"),
        (86_400.0 * 2 + 3600.0 * 4, "2 d 4 h"),
    ],
)
def test_lengths_of_time_are_written_for_people(seconds: float, text: str) -> None:
    """Two units at the most."""
    assert format_seconds(seconds) == text


def test_summary_without_a_manifest_line_keeps_the_recorded_start(build: Builder) -> None:
    """`run.json` is more exact than the name."""
    build.record(run_id(0), started=format_time(START + 0.25))

    assert Experiment(build.layout.path).runs()[0].started == START + 0.25
    assert json.loads(build.layout.run(run_id(0)).run_record.read_text())["run"] == run_id(0)


def test_ranks_that_join_after_the_end_record_are_counted(tmp_path: Path) -> None:
    """Rank zero counted one rank and ended; the second joined a moment later, and the summary knows both."""
    builder = Builder(tmp_path)
    run = run_id(0)
    builder.record(run, world_size=2)
    builder.line(STARTED, run, world_size=2)
    builder.line(FINISHED, run, outcome="finished", ranks_joined=1)
    for rank in (0, 1):
        builder.rank(run, this_process(), rank)
    (summary,) = Experiment(tmp_path).runs()
    assert (summary.ranks_joined, summary.world_size) == (2, 2)
