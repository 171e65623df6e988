from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pathlib2
import pytest

from immutable_logs import Experiment, durable_files, start_run
from immutable_logs import run as run_module
from immutable_logs.errors import AgreementError, ConfigurationError, LaunchDetectionError
from immutable_logs.launchers.detection import ProcessLaunch
from immutable_logs.layout import ExperimentLayout
from immutable_logs.lineage import Origin
from immutable_logs.manifest import append_record, read_manifest
from immutable_logs.records import STARTED, ManifestRecord
from immutable_logs.run import begin_run, finish_open_runs, open_run, outcome_of
from tests.conftest import shown_by_latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Children


def documents(experiment: Path, run_id: str) -> tuple[Any, Any]:
    """Return `run.json` and `finished.json` of a run, None where there is none."""
    run = experiment / "runs" / run_id
    record, end = (
        json.loads((run / name).read_text()) if (run / name).exists() else None
        for name in ("run.json", "finished.json")
    )
    return record, end


def events(experiment: Path) -> list[tuple[str, str]]:
    """Return event and run of every line of the manifest."""
    return [(record.event, record.run) for record in read_manifest(ExperimentLayout.of(experiment)).records]


def test_started_run_is_recorded_published_and_shown_by_latest(experiment: Path) -> None:
    """One call makes a fresh directory with a complete record, a manifest line and the link."""
    run = start_run(experiment, configuration={"lr": 0.1, "api_key": "secret"})
    document, end = documents(experiment, run.id)

    assert run.path == experiment / "runs" / run.id
    assert run.experiment == experiment
    assert os.fspath(run) == str(run.path)
    assert document["run"] == run.id
    assert document["lineage"] == run.id
    assert document["configuration"] == {"lr": 0.1, "api_key": "***"}
    assert document["process"]["pid"] == os.getpid()
    assert document["launch_source"] == "single process"
    assert document["generation"] == 1
    assert end is None
    assert events(experiment) == [("started", run.id)]
    assert shown_by_latest(experiment) == run.path.resolve()
    assert run.id in repr(run)


def test_end_of_the_block_is_recorded(experiment: Path) -> None:
    """With the last step and the number of ranks."""
    with start_run(experiment) as run:
        run.note_step(42)
    _, end = documents(experiment, run.id)

    assert (end["outcome"], end["step"], end["ranks_joined"], end["error"]) == ("finished", 42, 1, None)
    assert events(experiment) == [("started", run.id), ("finished", run.id)]
    assert run.is_finished


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("bad batch"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(0), "finished"),
        (SystemExit(), "finished"),
        (SystemExit(3), "failed"),
        (SystemExit("no data"), "failed"),
        (type("SignalExit", (SystemExit,), {})(143), "interrupted"),
    ],
    ids=repr,
)
def test_exception_out_of_the_block_is_recorded_and_goes_on(
    experiment: Path, error: BaseException, outcome: str
) -> None:
    """How the block ended decides the outcome; the exception is not swallowed."""
    with pytest.raises(type(error)) as caught, start_run(experiment) as run:
        raise error
    _, end = documents(experiment, run.id)

    assert caught.value is error
    assert outcome_of(error) == outcome
    assert end["outcome"] == outcome
    assert type(error).__name__ in end["error"]


def test_recorded_error_is_capped_and_redacted(experiment: Path) -> None:
    """An exception can carry a tensor, or a token in an address."""
    run = start_run(experiment)
    run.finish("failed", error="https://me:hunter2@host/ " + "x" * 100_000)
    _, end = documents(experiment, run.id)

    assert "hunter2" not in end["error"]
    assert len(end["error"]) < 5000


def test_first_end_counts(experiment: Path) -> None:
    """A later one changes nothing."""
    run = start_run(experiment)
    run.finish("failed", error="first")
    run.finish("finished")
    finish_open_runs("interrupted")
    _, end = documents(experiment, run.id)

    assert (end["outcome"], end["error"]) == ("failed", "first")
    assert events(experiment).count(("finished", run.id)) == 1


def test_other_outcome_is_refused(experiment: Path) -> None:
    """The words are a closed list, and a slip does not cost the record."""
    run = start_run(experiment)
    with pytest.raises(ConfigurationError, match="expected one of finished, failed, interrupted, found 'done'"):
        run.finish("done")
    assert not run.is_finished
    run.finish()
    assert documents(experiment, run.id)[1]["outcome"] == "finished"


def test_open_runs_are_known_until_they_end(experiment: Path) -> None:
    """A callback finds the run of its process by its id."""
    run = start_run(experiment)
    assert open_run(run.id) is run
    run.finish()
    assert open_run(run.id) is None


def test_two_runs_of_one_process_have_directories_of_their_own(experiment: Path) -> None:
    """The second trainer, a re-run notebook cell."""
    first, second = start_run(experiment), start_run(experiment)

    assert first.id != second.id
    assert [run.id for run in Experiment(experiment).runs()] == [first.id, second.id]
    assert shown_by_latest(experiment) == second.path.resolve()


def test_run_ids_do_not_depend_on_the_users_seed(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeded processes in one second do not think up the same name."""
    monkeypatch.setattr(time, "time", lambda: 1796092095.0)
    runs = []
    for _ in range(5):
        random.seed(1234)
        runs.append(start_run(experiment))

    assert len({run.id for run in runs}) == 5
    assert {run.generation for run in runs} == {1}, "a name was taken, and only the entries kept the runs apart"


def test_clock_that_jumps_back_reorders_nothing(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of runs and `latest` follow the manifest, not the clock."""
    now = [1796092095.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    first = start_run(experiment)
    now[0] -= 86_400.0
    second = start_run(experiment)

    assert second.id < first.id
    assert [run.id for run in Experiment(experiment).runs()] == [first.id, second.id]
    assert Experiment(experiment).find("latest").id == second.id
    assert Experiment(experiment).find("latest~1").id == first.id


@pytest.mark.parametrize("make", [str, Path, pathlib2.Path])
def test_any_kind_of_path_is_accepted(experiment: Path, make: type) -> None:
    """NeMo's configuration can hold `pathlib2` paths."""
    run = start_run(make(str(experiment)))

    assert run.experiment == experiment
    assert isinstance(run.path, Path)
    assert Experiment(make(str(experiment))).latest is not None


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "ünïcode-日本",
        "-rf",
        *(pytest.param(name, marks=pytest.mark.needs("names")) for name in ("line\nbreak", "a'b\"c", "caf\udce9")),
    ],
)
def test_odd_names_of_experiments_work(tmp_path: Path, name: str) -> None:
    """Users call directories what they like."""
    with start_run(tmp_path / name) as run:
        pass
    (summary,) = Experiment(tmp_path / name).runs()

    assert (summary.id, summary.status) == (run.id, "finished")
    assert shown_by_latest(tmp_path / name) == run.path


def test_relative_experiment_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that changes its directory later, as Hydra does, records the end in the same place."""
    monkeypatch.chdir(tmp_path)
    run = start_run("exp/name")
    monkeypatch.chdir("/")
    run.finish()

    assert run.path.parent == tmp_path / "exp" / "name" / "runs"
    assert documents(tmp_path / "exp" / "name", run.id)[1] is not None


@pytest.mark.needs("links")
def test_experiment_reached_through_a_link_is_the_same_one(tmp_path: Path) -> None:
    """Both names lead to one list of runs, and the caller sees the name that it gave."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    first, second = start_run(tmp_path / "link"), start_run(tmp_path / "real")

    assert first.path.parent == tmp_path / "link" / "runs"
    assert [run.id for run in Experiment(tmp_path / "real").runs()] == [first.id, second.id]
    assert len({first.id, second.id}) == 2


def test_nothing_that_is_there_is_touched(experiment: Path, snapshot: Callable[[Path], dict[str, int]]) -> None:
    """What stock NeMo left, and what the user put there, keep their names and their content."""
    for name in ("run_0/nemo_log.txt", "checkpoints/last.ckpt", "notes.txt", "runs/mine.txt", "tensorboard/x"):
        (experiment / name).parent.mkdir(parents=True, exist_ok=True)
        (experiment / name).write_text(name)
    before = snapshot(experiment)
    start_run(experiment).finish()
    after = snapshot(experiment)

    assert before.items() <= after.items()
    for name in before:
        if (experiment / name).is_file():
            assert (experiment / name).read_text() == name


def test_other_ranks_write_only_their_entry(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank zero alone keeps the records; the others return before it comes."""
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "job")
    monkeypatch.setenv("RANK", "1")
    with start_run(experiment) as other:
        pass
    assert documents(experiment, other.id) == (None, None)
    assert not (experiment / "runs" / "manifest.jsonl").exists()
    assert shown_by_latest(experiment) is None
    assert not other.keeps_records

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(run_module, "_process_launch", ProcessLaunch())
    zero = start_run(experiment)
    assert zero.path == other.path
    assert documents(experiment, zero.id)[0]["launch_key"] == "id job call=1"


def test_secret_in_the_launch_id_is_not_recorded(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users put odd things into variables."""
    token = "hf_" + "a" * 30
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", token)

    assert token not in json.dumps(documents(experiment, start_run(experiment).id)[0])


@pytest.mark.needs("links")
def test_shared_key_is_warned_about(
    experiment: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the variables cannot tell two launches apart the user is told what to set."""
    for name, value in {"RANK": "0", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING):
        start_run(experiment)

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "HINT: set IMMUTABLE_LOGS_LAUNCH_ID" in caplog.text


def test_unknown_rank_is_an_error_before_anything_is_made(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that cannot be known could write into another's files."""
    monkeypatch.setenv("RANK", "zero")
    with pytest.raises(LaunchDetectionError):
        start_run(experiment)

    assert not experiment.exists()


def test_failing_call_is_counted_as_one(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose first call failed stays in step: its second call is the others' second call."""
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "job")
    experiment.mkdir()
    (experiment / "runs").touch()
    with pytest.raises(AgreementError):
        start_run(experiment)
    (experiment / "runs").unlink()

    assert start_run(experiment).launch.key == "id job call=2"


def test_launch_that_fails_before_it_is_published_leaves_latest_alone(experiment: Path) -> None:
    """It is recorded as failed, and `latest` still shows the run before."""
    good = start_run(experiment)
    bad = begin_run(experiment)
    bad.finish("failed", error="no checkpoint")

    assert shown_by_latest(experiment) == good.path
    assert Experiment(experiment).find(bad.id).status == "failed"


def test_run_without_a_complete_record_is_not_published(experiment: Path) -> None:
    """`latest` leads to a complete `run.json` only."""
    run = begin_run(experiment)
    run.publish()

    assert shown_by_latest(experiment) is None
    assert events(experiment) == []


def test_record_and_publish_are_done_once(experiment: Path) -> None:
    """A second call changes nothing on disk."""
    run = begin_run(experiment)
    run.record(configuration={"a": 1})
    run.publish()
    before = (run.path / "run.json").read_bytes()
    run.record(configuration={"a": 2})
    run.publish()

    assert (run.path / "run.json").read_bytes() == before
    assert events(experiment) == [("started", run.id)]


def test_what_the_caller_knows_is_recorded(experiment: Path) -> None:
    """Checkpoint, lineage, world size and commit, inside paths relative."""
    run = begin_run(experiment)
    run.record(
        checkpoint=experiment / "checkpoints" / "last.ckpt",
        checkpoints=experiment / "checkpoints",
        origin=Origin("first", "second"),
        world_size=16,
        git_commit="c0ffee",
    )
    document, _ = documents(experiment, run.id)

    assert document["checkpoint"] == "checkpoints/last.ckpt"
    assert document["checkpoints"] == "checkpoints"
    assert (document["lineage"], document["resumed_from"]) == ("first", "second")
    assert document["world_size"] == 16
    assert document["git_commit"] == "c0ffee"


def test_no_record_holds_an_absolute_path_into_the_experiment(experiment: Path, tmp_path: Path) -> None:
    """The tree is mounted elsewhere in the next container."""
    run = begin_run(experiment)
    run.record(checkpoint=experiment / "a.ckpt", checkpoints=run.path / "checkpoints", git_commit="c")
    run.publish()
    run.finish()

    for path in [path for path in experiment.rglob("*") if path.is_file()]:
        assert str(experiment) not in path.read_text()
    for path in [path for path in experiment.rglob("*") if path.is_symlink()]:
        assert not os.path.isabs(os.readlink(path))


def test_no_link_dangles_or_leads_above_itself(experiment: Path) -> None:
    """`cp -rL`, `rsync -L` and `tar -h` end, and copy no run twice but through `latest`."""
    for _ in range(3):
        start_run(experiment).finish()

    for link in [path for path in experiment.rglob("*") if path.is_symlink()]:
        target = link.resolve(strict=True)
        assert target not in link.parents
        if ".launches" in link.parts or ".latest" in link.parts:
            assert target.is_file()


@pytest.mark.needs("links")
def test_top_level_of_the_experiment_holds_no_plain_file(experiment: Path) -> None:
    """A colleague who starts stock NeMo in the same experiment would sweep it into `run_N`."""
    start_run(experiment).finish()

    assert sorted(path.name for path in experiment.iterdir()) == ["latest", "runs"]
    assert all(path.is_dir() for path in experiment.iterdir())


def test_manifest_without_a_lock_converges(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch whose line was followed by another's switches `latest` to that one."""
    first = start_run(experiment)
    later = begin_run(experiment)
    later.record()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    def overtaken(layout: ExperimentLayout, record: ManifestRecord, *, is_locked: bool) -> None:
        append_record(layout, record, is_locked=is_locked)
        append_record(layout, ManifestRecord(STARTED, later.id, "t"), is_locked=is_locked)

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(run_module, "append_record", overtaken)
    second = start_run(experiment)

    assert len({first.id, second.id, later.id}) == 3
    assert shown_by_latest(experiment) == later.path


@pytest.mark.needs("links")
def test_manifest_that_cannot_be_read_back_still_leaves_latest_right(
    experiment: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Interleaved writes can spoil every line; the run itself is the newest that is known."""
    monkeypatch.setattr(run_module, "recent_started_runs", lambda _: [])
    with caplog.at_level(logging.WARNING):
        run = start_run(experiment)

    assert shown_by_latest(experiment) == run.path
    assert caplog.records == []


@pytest.mark.needs("links")
def test_launches_that_pass_latest_back_and_forth_give_up(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks this can happen; it ends after a number of turns."""
    first = start_run(experiment)
    turns: list[str] = []
    replace = durable_files.replace

    def contested(source: Path, target: Path) -> None:
        replace(source, target)
        turns.append(str(source))
        target.unlink()
        target.symlink_to(f"runs/{first.id}")

    monkeypatch.setattr(durable_files, "replace", contested)
    run = start_run(experiment)

    assert 10 < len(turns) < 100
    assert events(experiment)[-1] == ("started", run.id)


@pytest.mark.needs("links")
def test_foreign_latest_does_not_stop_the_start(experiment: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, and the run is recorded like any other."""
    (experiment / "latest").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        run = start_run(experiment)

    assert len(caplog.records) == 1
    assert events(experiment) == [("started", run.id)]
    assert Experiment(experiment).latest is None


def test_exit_of_the_process_records_the_end(experiment: Path, children: Children) -> None:
    """A script that never says so has finished."""
    child = children.start("from immutable_logs import start_run\nreport(run=start_run(sys.argv[1]).id)", experiment)
    run = child.report()["run"]

    assert documents(experiment, run)[1]["outcome"] == "finished"


@pytest.mark.parametrize(
    ("ending", "status", "recorded"),
    [
        ("raise ValueError('bad batch')", 1, ("failed", "ValueError: bad batch")),
        ("raise KeyboardInterrupt", -2, ("interrupted", "KeyboardInterrupt")),
        ("os._exit(0)", 0, None),
        ("os.kill(os.getpid(), 9)", -9, None),
    ],
)
def test_unhandled_end_of_the_process_is_recorded_where_it_can_be(
    experiment: Path, children: Children, ending: str, status: int, recorded: tuple[str, str] | None
) -> None:
    """An uncaught exception is a failure; after a kill there is no record, and the catalog says so."""
    child = children.start(f"from immutable_logs import start_run\nrun = start_run(sys.argv[1])\n{ending}", experiment)
    child.reports(status=status)
    (summary,) = Experiment(experiment).runs()
    _, end = documents(experiment, summary.id)

    if recorded is None:
        assert summary.status == "unknown"
        assert end is None
    else:
        outcome, error = recorded
        assert summary.status == end["outcome"] == outcome
        assert error in end["error"]


def test_exit_of_a_forked_child_records_nothing(experiment: Path, children: Children) -> None:
    """Only the process that wrote `run.json` writes how the run ended."""
    code = """
        from pathlib import Path
        from immutable_logs import start_run
        run = start_run(sys.argv[1])
        child = os.fork()
        if child == 0:
            sys.exit(3)
        _, status = os.waitpid(child, 0)
        report(status=os.waitstatus_to_exitcode(status), is_recorded=(run.path / "finished.json").exists())
    """
    assert children.start(code, experiment).report() == {"status": 3, "is_recorded": False}

    (summary,) = Experiment(experiment).runs()
    assert summary.status == "finished"


def test_forked_child_that_starts_a_run_gets_its_own(experiment: Path, children: Children) -> None:
    """It is no rank of its parent's launch."""
    code = """
        from immutable_logs import start_run
        run = start_run(sys.argv[1])
        report(run=run.id)
        child = os.fork()
        if child == 0:
            report(run=start_run(sys.argv[1]).id)
            sys.exit(0)
        os.waitpid(child, 0)
    """
    runs = {line["run"] for line in children.start(code, experiment).reports()}

    assert len(runs) == 2
    assert {run.status for run in Experiment(experiment).runs()} == {"finished"}


@pytest.mark.needs("permissions")
@pytest.mark.skipif(os.getuid() != 0, reason="needs a second group")
@pytest.mark.parametrize("mask", [0o077, 0o002, 0o022])
def test_colleague_of_the_group_finds_directories_that_the_group_can_write(tmp_path: Path, mask: int) -> None:
    """Below a set-gid group directory every directory of the layout is the group's, whatever the umask."""
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, -1, 4242)
    shared.chmod(0o2770)
    before = os.umask(mask)
    try:
        for _ in range(2):
            start_run(shared).finish()
    finally:
        os.umask(before)

    directories = [path for path in shared.rglob("*") if path.is_dir() and not path.is_symlink()]
    assert len(directories) > 5
    for path in directories:
        assert path.stat().st_gid == 4242, path
        assert path.stat().st_mode & 0o2070 == 0o2070, path


@pytest.mark.needs("permissions")
def test_read_only_manifest_costs_one_warning(
    experiment: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on, and the run is found by its directory."""
    first = start_run(experiment)
    (experiment / "runs" / "manifest.jsonl").unlink()
    (experiment / "runs" / "manifest.jsonl").mkdir()
    with caplog.at_level(logging.WARNING):
        second = start_run(experiment)

    assert len(caplog.records) == 1
    assert f"Could not publish run {second.id}" in caplog.text
    assert caplog.text.rstrip().endswith("Training goes on")
    assert shown_by_latest(experiment) == first.path


@pytest.mark.needs("links")
def test_run_whose_own_line_is_lost_stays_the_latest(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock two appends can mix; an older run that can be read is not taken for the newest."""
    start_run(experiment).finish()
    monkeypatch.setattr(run_module, "append_record", lambda *_, **__: None)
    run = start_run(experiment)
    assert os.readlink(experiment / "latest") == f"runs/{run.id}"


def test_configuration_that_cannot_be_shown_costs_no_record(experiment: Path) -> None:
    """The user's object raises when it is turned into text; the run is published all the same."""

    class Awkward:
        def __str__(self) -> str:
            raise ValueError("no text")

    run = start_run(experiment, configuration={"a": Awkward()})
    record = json.loads((run.path / "run.json").read_text(encoding="utf-8"))
    assert record["configuration"] == "(could not be recorded: ValueError)"
    assert shown_by_latest(experiment) == run.path


@pytest.mark.needs("permissions")
def test_manifest_is_shared_with_the_group_of_the_experiment(experiment: Path) -> None:
    """Under a umask of 022 a colleague of the group could not append otherwise."""
    experiment.mkdir(exist_ok=True)
    experiment.chmod(0o2775)
    before = os.umask(0o022)
    try:
        start_run(experiment)
    finally:
        os.umask(before)
    assert (experiment / "runs" / "manifest.jsonl").stat().st_mode & 0o060 == 0o060


def test_error_of_an_earlier_cell_is_not_the_runs(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interactive interpreter keeps the last error; what was there before the run is not its own."""
    earlier = NameError("a typo in an earlier cell")
    monkeypatch.setattr(sys, "last_value", earlier, raising=False)
    first, second = start_run(experiment), start_run(experiment)
    first.finish_at_exit(earlier)
    second.finish_at_exit(ValueError("its own"))
    outcomes = [json.loads((run.path / "finished.json").read_text())["outcome"] for run in (first, second)]
    assert outcomes == ["finished", "failed"]
