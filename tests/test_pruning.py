from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment, durable_files, pruning, start_run, tree_removal
from immutable_logs.errors import ManifestBusyError, RemovalError
from immutable_logs.launchers.detection import ProcessLaunch
from immutable_logs.layout import ExperimentLayout
from immutable_logs.lineage import Origin
from immutable_logs.manifest import append_record, manifest_lock, read_manifest
from immutable_logs.nemo_integration.event_files import link_event_files
from immutable_logs.process import this_process
from immutable_logs.pruning import KEPT, UNFINISHED, Result, plan_prune, prune_runs
from immutable_logs.records import ADOPTED, PRUNED, ManifestRecord, RankRecord, RunRecord, format_time
from immutable_logs.retention import Conditions, Decision
from immutable_logs.run import Run, begin_run
from immutable_logs.run_id import format_run_id
from immutable_logs.verification import verify_experiment
from tests.conftest import hidden_links

DAY = 86400.0
ALL = Conditions(keep_last=0)


def later() -> float:
    """The time in forty days: runs that are made now are old then."""
    return time.time() + 40 * DAY


def events_of(run: Run) -> str:
    """Return the name of the event file of a run."""
    return f"events.out.tfevents.{run.id}"


class Case:
    """An experiment, and what is done to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.layout = ExperimentLayout.of(path)

    @property
    def opened(self) -> Experiment:
        """The experiment, as it is now."""
        return Experiment(self.path, now=later)

    def start(self, *, resumed_from: Run | None = None, with_checkpoints: bool = False, **recorded: Any) -> Run:
        """Start a run as NeMo's integration does, with an event file and perhaps checkpoints of its own."""
        run = begin_run(self.path)
        if resumed_from is not None:
            recorded["origin"] = Origin(resumed_from.origin.lineage, resumed_from.id)
        home = run.path / "checkpoints" if with_checkpoints else self.path / "checkpoints"
        home.mkdir(exist_ok=True)
        (home / "last.ckpt").write_text("weights")
        run.record(**{"checkpoints": home, **recorded})
        run.publish()
        # The writer's time, host and process make the name another for each run.
        (run.path / events_of(run)).write_bytes(b"events")
        link_event_files(self.layout, run.origin.lineage, run.id)
        return run

    def finish(self, **recorded: Any) -> Run:
        """Start a run and finish it."""
        run = self.start(**recorded)
        run.finish()
        return run

    def plan(self, conditions: Conditions = ALL) -> list[Decision]:
        """Plan."""
        return plan_prune(self.opened, conditions, now=later())

    def prune(self, conditions: Conditions = ALL, *, at: Callable[[], float] = later) -> dict[str, Result]:
        """Plan and act; return what became of the runs that were to go."""
        plan = plan_prune(self.opened, conditions, now=at())
        return {each.decision.run.id: each for each in prune_runs(self.opened, plan, conditions, now=at)}

    def statuses(self) -> dict[str, str]:
        """Return the status of each run."""
        return {run.id: run.status for run in self.opened.runs()}

    def marker(self, run: Run) -> Path:
        """Return the file of a run beside its claim."""
        (found,) = self.layout.launches.glob(f"*/{run.id}")
        return found

    def findings(self) -> list[str]:
        """Return what a verification finds."""
        found = verify_experiment(self.opened, pause=lambda _: None).findings
        return [finding.kind for finding in found if finding.kind != "claim-unused"]


@pytest.fixture
def case(experiment: Path) -> Case:
    """An experiment that does not exist yet."""
    return Case(experiment)


def outcomes(results: dict[str, Result]) -> dict[str, str]:
    """Return the outcomes without problems, by run."""
    assert [each.problem for each in results.values() if each.problem] == []
    return {name: each.outcome for name, each in results.items()}


def test_a_pruned_run_leaves_its_claim_and_its_lines(case: Case, snapshot: Callable[[Path], dict[str, int]]) -> None:
    """The directory and its event links go; every other name stays, and nothing is found to be wrong."""
    run, latest = case.finish(), case.finish()
    before = snapshot(case.path)

    assert outcomes(case.prune()) == {run.id: PRUNED}

    gone = set(before) - set(snapshot(case.path))
    assert gone
    assert all(name.startswith((f"runs/{run.id}", f"tensorboard/{run.id}")) for name in gone)
    assert case.statuses() == {run.id: "pruned", latest.id: "finished"}
    assert case.marker(run).stat().st_size > 0
    assert case.marker(latest).stat().st_size == 0
    last = read_manifest(case.layout).records[-1]
    assert (last.event, last.run) == (PRUNED, run.id)
    assert last.details["bytes"] > 0
    assert (case.path / "latest").resolve() == latest.path
    assert case.findings() == []


def test_the_plan_changes_nothing(case: Case, snapshot: Callable[[Path], dict[str, int]]) -> None:
    """Not even a time."""
    case.finish()
    case.finish()
    times = {name: os.lstat(case.path / name).st_mtime_ns for name in snapshot(case.path)}

    assert [decision.is_taken for decision in case.plan()] == [True, False]

    assert {name: os.lstat(case.path / name).st_mtime_ns for name in snapshot(case.path)} == times


def test_event_links_of_the_other_runs_of_a_lineage_stay(case: Case) -> None:
    """With their ordinals; the directory, named by a run that is gone, stays for them."""
    first = case.finish()
    second = case.finish(resumed_from=first)
    third = case.finish(resumed_from=second)

    assert outcomes(case.prune(Conditions(keep_last=1))) == {second.id: PRUNED, first.id: PRUNED}

    assert os.listdir(case.layout.lineage(first.id)) == [f"0003_{events_of(third)}"]
    assert third.path.exists()
    assert case.findings() == []


def test_empty_lineage_stays_for_a_run_that_will_link_there(case: Case) -> None:
    """It may be about to."""
    first = case.finish()
    second = case.finish(resumed_from=first)
    for link in case.layout.lineage(first.id).iterdir():
        if second.id in os.readlink(link):
            link.unlink()

    case.prune()

    assert list(case.layout.lineage(first.id).iterdir()) == []


def test_a_run_with_checkpoints_of_its_own_stays_for_the_runs_that_were_resumed_from_it(case: Case) -> None:
    """Those whose checkpoints are shared may go."""
    own = case.finish(with_checkpoints=True)
    shared = case.finish()
    case.finish(resumed_from=shared)
    case.finish(resumed_from=own)

    results = case.prune(Conditions(keep_last=2))

    assert outcomes(results) == {shared.id: PRUNED}
    assert (own.path / "checkpoints" / "last.ckpt").exists()


def test_a_chain_goes_from_its_end(case: Case) -> None:
    """So that a kill leaves no run without the checkpoints that it started from."""
    first = case.finish(with_checkpoints=True)
    second = case.finish(resumed_from=first, with_checkpoints=True)
    case.finish()

    assert list(case.prune()) == [second.id, first.id]


def test_names_that_are_not_ours_stay(case: Case, tmp_path: Path) -> None:
    """A link or a file with the name of a run, and any other name."""
    case.finish()
    linked, filed = (format_run_id(1e9, bytes([number] * 8)) for number in (1, 2))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    case.layout.run(linked).path.symlink_to(elsewhere)
    case.layout.run(filed).path.touch()
    (case.layout.runs / "run_0").mkdir()

    case.prune()

    assert (elsewhere / "precious").exists()
    assert case.layout.run(linked).path.is_symlink()
    assert case.layout.run(filed).path.exists()
    assert (case.layout.runs / "run_0").exists()


def test_a_directory_that_becomes_a_link_after_the_plan_stays(case: Case, tmp_path: Path) -> None:
    """It is not followed, and the run is not called pruned."""
    run, _ = case.finish(), case.finish()
    plan = case.plan()
    run.path.rename(tmp_path / "moved")
    run.path.symlink_to(tmp_path / "moved")

    (result,) = prune_runs(case.opened, plan, ALL, now=later)

    assert result.outcome == KEPT
    assert (tmp_path / "moved" / "run.json").exists()
    assert PRUNED not in {record.event for record in read_manifest(case.layout).records}


def test_a_run_with_a_living_rank_stays(case: Case) -> None:
    """Rank zero may be gone while another rank hangs; only its process shows that."""
    run = case.start()
    gone = json.loads(case.layout.run(run.id).rank_entry(0).read_bytes())
    gone["pid"], gone["start_ticks"] = 1, 1
    case.layout.run(run.id).rank_entry(0).write_text(json.dumps(gone))
    process = this_process()
    entry = RankRecord(
        joined="t",
        nonce="n",
        global_rank=1,
        local_rank=1,
        node_rank=0,
        host=process.host,
        pid=process.pid,
        boot_id=process.boot_id,
        pid_namespace=process.pid_namespace,
        start_ticks=process.start_ticks,
    )
    case.layout.run(run.id).rank_entry(1).write_bytes(entry.encode())
    case.finish()

    (decision, _) = case.plan()
    assert decision.run.status == "unknown"
    assert decision.reason == f"sign of life: process {os.getpid()} of rank 1 on this host is alive"


def test_a_late_rank_of_a_pruned_run_gets_another(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes the marked claim over, and does not bring the directory back."""
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "launch")
    monkeypatch.setenv("RANK", "0")
    run = case.finish()
    monkeypatch.delenv("IMMUTABLE_LOGS_LAUNCH_ID")
    monkeypatch.setattr("immutable_logs.run._process_launch", ProcessLaunch())
    case.finish()
    case.prune()

    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "launch")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("immutable_logs.run._process_launch", ProcessLaunch())
    late = begin_run(case.path)

    assert (late.id != run.id, late.generation) == (True, 2)
    assert not run.path.exists()


def test_a_rank_that_joins_between_the_mark_and_the_removal_keeps_its_files(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is removed then; the leftover is named, and goes once it has been quiet for a day."""
    run, _ = case.finish(), case.finish()
    files = sorted(run.path.rglob("*"))
    late = case.layout.run(run.id).rank_entry(1)
    real = durable_files.mark

    def mark(path: Path, data: bytes) -> bool:
        done = real(path, data)
        late.write_text("joined")
        os.utime(late, (later(), later()))
        return done

    with monkeypatch.context() as patch:
        patch.setattr(durable_files, "mark", mark)
        result = case.prune()[run.id]

    assert result.outcome == UNFINISHED
    assert result.problem is not None
    assert "something was written in it meanwhile" in result.problem
    assert sorted(run.path.rglob("*")) == sorted([*files, late])
    assert case.statuses()[run.id] == "pruned"
    assert case.findings() == ["prune-unfinished"]
    assert not case.plan()[0].is_taken

    assert case.prune(at=lambda: later() + 2 * DAY)[run.id].outcome == PRUNED
    assert not run.path.exists()
    assert case.findings() == []


def test_links_that_the_mount_hides_stop_the_removal(case: Case) -> None:
    """As through SSHFS: which links lead into the run cannot be told, and none may be left dangling."""
    run, _ = case.finish(), case.finish()
    links = sorted(path for path in (case.path / "tensorboard").rglob("*") if path.is_symlink())

    with hidden_links():
        result = case.prune()[run.id]

    assert (result.outcome, result.problem and "Operation not permitted" in result.problem) == (UNFINISHED, True)
    assert (run.path / "run.json").exists()
    assert all(link.exists() for link in links)
    assert case.prune()[run.id].outcome == PRUNED


def test_a_rank_that_joins_after_the_last_look_stops_the_removal_at_its_beginning(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries go first, so that records, logs and checkpoints are all there still."""
    run, _ = case.finish(with_checkpoints=True), case.finish()
    files = {path for path in run.path.rglob("*") if "ranks" not in path.parts}
    late = case.layout.run(run.id).rank_entry(1)
    real = tree_removal.remove_tree

    def join_and_remove(path: Path, **options: Any) -> None:
        late.write_text("joined")
        os.utime(late, (later(), later()))
        real(path, **options)

    monkeypatch.setattr(pruning, "remove_tree", join_and_remove)
    result = case.prune()[run.id]

    assert result.outcome == UNFINISHED
    assert result.problem == f"something was written meanwhile, so the rest stays: {late}"
    assert late.exists()
    assert files <= set(run.path.rglob("*"))


def test_a_pruned_run_that_was_put_back_from_a_copy_stays(case: Case, tmp_path: Path) -> None:
    """Its files keep the times of their writes, so that only the change of their status tells; `ls` says `pruned`."""
    run, _ = case.finish(), case.finish()
    shutil.copytree(run.path, tmp_path / "copy")
    assert outcomes(case.prune()) == {run.id: PRUNED}
    # By the clock of the tests it was pruned in forty days.
    text = case.layout.manifest.read_text(encoding="utf-8")
    line = text.splitlines()[-1]
    earlier = json.dumps({**json.loads(line), "time": format_time(time.time() - 1)})
    case.layout.manifest.write_text(text.replace(line, earlier), encoding="utf-8")
    shutil.copytree(tmp_path / "copy", run.path)

    (decision, _) = case.plan()

    assert decision.reason.startswith("put back, or written in, after it was pruned")
    assert case.prune() == {}
    assert (run.path / "run.json").exists()


def test_a_child_that_appears_after_the_plan_keeps_its_parent(case: Case) -> None:
    """What was resumed meanwhile is seen under the lock."""
    parent, _ = case.finish(with_checkpoints=True), case.finish()
    plan = case.plan()
    case.start(resumed_from=parent)

    (result,) = prune_runs(case.opened, plan, ALL, now=later)

    assert result.outcome == KEPT
    assert "was resumed from it" in result.decision.reason
    assert (parent.path / "checkpoints" / "last.ckpt").exists()


def test_latest_that_is_switched_after_the_plan_keeps_its_run(case: Case) -> None:
    """Somebody has put it back."""
    run, _ = case.finish(), case.finish()
    plan = case.plan()
    (case.path / "latest").unlink()
    (case.path / "latest").symlink_to(f"runs/{run.id}")

    (result,) = prune_runs(case.opened, plan, ALL, now=later)

    assert (result.outcome, result.decision.reason) == (KEPT, "`latest` shows it")
    assert run.path.exists()


def test_a_second_prune_with_the_same_plan_does_nothing(case: Case) -> None:
    """No second line, no error."""
    run, _ = case.finish(), case.finish()
    plan = case.plan()
    case.prune()
    before = case.layout.manifest.read_bytes()

    (result,) = prune_runs(case.opened, plan, ALL, now=later)

    assert (result.outcome, result.problem) == (KEPT, None)
    assert result.decision.run.id == run.id
    assert result.decision.reason == "another prune has taken it meanwhile"
    assert case.layout.manifest.read_bytes() == before


def test_an_unmarked_claim_of_a_pruned_run_that_is_gone_is_marked(case: Case) -> None:
    """Power failed, or somebody has removed the directory by hand after a kill."""
    run, _ = case.finish(), case.finish()
    append_record(case.layout, ManifestRecord(PRUNED, run.id, format_time(1e9)), is_locked=True)
    shutil.rmtree(run.path)
    for link in case.layout.lineage(run.id).iterdir():
        link.unlink()
    assert case.findings() == ["prune-unfinished"]

    assert case.prune() == {}

    assert case.findings() == []


def test_a_claim_that_cannot_be_marked_keeps_the_directory(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late rank would make it again; the next call finishes."""
    run, _ = case.finish(), case.finish()

    def refuse(path: Path, data: bytes) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(durable_files, "mark", refuse)
        result = case.prune()[run.id]

    assert (result.outcome, result.problem) == (UNFINISHED, f"Permission denied: {case.marker(run)}")
    assert (run.path / events_of(run)).exists()
    assert outcomes(case.prune()) == {run.id: PRUNED}


def test_the_parent_of_a_run_that_could_not_be_removed_waits(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoints are there as long as the run that needs them."""
    parent = case.finish(with_checkpoints=True)
    child, _ = case.finish(resumed_from=parent), case.finish()
    real = tree_removal.remove_tree

    def refuse(path: Path, **options: Any) -> None:
        if path == child.path:
            raise RemovalError(path, "it is not empty")
        real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(pruning, "remove_tree", refuse)
        results = case.prune()

    assert {name: each.outcome for name, each in results.items()} == {child.id: UNFINISHED, parent.id: UNFINISHED}
    assert (parent.path / "checkpoints" / "last.ckpt").exists()
    assert outcomes(case.prune()) == {child.id: PRUNED, parent.id: PRUNED}


def test_where_this_user_may_not_remove_nothing_is_begun(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run keeps its status, and the directory is named."""
    run, _ = case.finish(), case.finish()
    monkeypatch.setattr("immutable_logs.tree_removal.os.access", lambda *_, **__: False)

    result = case.prune()[run.id]

    assert result.outcome == KEPT
    assert result.problem == f"this user may not remove anything in {case.layout.runs}"
    assert case.statuses()[run.id] == "finished"


class TestLocks:
    """The manifest's lock."""

    def test_is_waited_for_and_nothing_is_done_without_it(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """Somebody else holds it."""
        run, _ = case.finish(), case.finish()
        monkeypatch.setattr(pruning, "manifest_lock", partial(manifest_lock, timeout=0.05))
        before = case.layout.manifest.read_bytes()

        with case.layout.manifest.open("ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(ManifestBusyError, match="HINT: call it again"):
                case.prune()

        assert case.layout.manifest.read_bytes() == before
        assert case.statuses()[run.id] == "finished"

    def test_is_not_held_while_files_are_removed(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """A launch never waits for that."""
        case.finish()
        case.finish()
        seen = []
        real = tree_removal.remove_tree

        def look(path: Path, **options: Any) -> None:
            with manifest_lock(case.layout, timeout=0.0) as is_free:
                seen.append(is_free)
            real(path, **options)

        monkeypatch.setattr(pruning, "remove_tree", look)
        case.prune()

        assert seen == [True]

    @staticmethod
    def refuse(*_: object) -> None:
        """Answer as a mount without locks."""
        raise OSError(37, "no locks here")

    def test_is_done_without_where_the_mount_has_none(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """The lines are read back."""
        monkeypatch.setattr(fcntl, "flock", self.refuse)
        run, latest = case.finish(), case.finish()

        assert outcomes(case.prune()) == {run.id: PRUNED}
        assert case.statuses() == {run.id: "pruned", latest.id: "finished"}
        assert read_manifest(case.layout).damaged == 0

    @staticmethod
    def grant(*_: object) -> None:
        """Answer as a mount that gives each host the lock."""

    @pytest.mark.parametrize("flock", [refuse, grant], ids=["no locks", "a lock for each host"])
    @pytest.mark.parametrize(("lost", "is_done"), [(1, True), (99, False)])
    def test_a_line_that_was_lost_without_it_is_appended_again(
        self, case: Case, monkeypatch: pytest.MonkeyPatch, flock: staticmethod[..., None], lost: int, is_done: bool
    ) -> None:
        """As two appends at once on NFS can lose one; nothing is removed before it is there."""
        run, _ = case.finish(), case.finish()
        monkeypatch.setattr(fcntl, "flock", flock)
        real = durable_files.append
        left = [lost]

        def append(path: Path, data: bytes, *, after_newline: bool) -> None:
            left[0] -= 1
            if left[0] < 0:
                real(path, data, after_newline=after_newline)

        monkeypatch.setattr(durable_files, "append", append)
        if is_done:
            assert outcomes(case.prune()) == {run.id: PRUNED}
        else:
            with pytest.raises(RemovalError, match="lines that were appended are not there"):
                case.prune()
        assert run.path.exists() is not is_done


class TestAdopted:
    """Runs that a migration has made: their files have old names too."""

    @staticmethod
    def adopt(case: Case, number: int) -> Path:
        """Do what a migration does, with a log of long ago; returns the old name of the log."""
        case.layout.runs.mkdir(parents=True, exist_ok=True)
        run = format_run_id(1e9 + number, bytes(8))
        old = case.path / f"run_{number}" / "lightning_logs.txt"
        old.parent.mkdir()
        old.write_bytes(b"x" * 1000)
        os.utime(old, (1e9, 1e9))
        case.layout.run(run).path.mkdir()
        os.link(old, case.layout.run(run).path / old.name)
        record = RunRecord(run, format_time(1e9), checkpoints="checkpoints", adopted_from={"log_directory": "run_0"})
        case.layout.run(run).run_record.write_bytes(record.encode())
        append_record(case.layout, ManifestRecord(ADOPTED, run, format_time(1e9 + number)), is_locked=True)
        return old

    def test_age_is_that_of_the_files_and_not_of_the_adoption(self, case: Case) -> None:
        """They were adopted a moment ago, and are old all the same; the plan says what becomes free."""
        old = self.adopt(case, 0)
        self.adopt(case, 1)
        conditions = Conditions(older_than=365 * DAY)

        decision, _ = plan_prune(case.opened, conditions, now=time.time())

        assert decision.is_taken
        assert decision.reason.endswith("adopted: what old names still lead to frees no space")
        assert decision.contents is not None
        assert decision.contents.size - decision.contents.freed == 1000
        assert outcomes(case.prune(conditions, at=time.time)) == {decision.run.id: PRUNED}
        assert old.read_bytes() == b"x" * 1000

    def test_a_writer_of_the_old_name_keeps_it(self, case: Case) -> None:
        """The training may go on."""
        old = self.adopt(case, 0)
        self.adopt(case, 1)
        with old.open("ab") as file:
            file.write(b"more")

        decision, _ = plan_prune(case.opened, ALL, now=time.time())

        assert decision.reason.startswith("last write ")


def test_an_experiment_without_a_manifest_is_pruned_by_its_directories(case: Case) -> None:
    """The lost index is not what makes a run; from then on there is one with the `pruned` line."""
    runs = [case.finish() for _ in range(3)]
    case.layout.manifest.unlink()
    # Without the index the order of runs of one second is that of their random ends.
    kept = {runs[-1].id, max(run.id for run in runs)}

    assert outcomes(case.prune()) == {run.id: PRUNED for run in runs if run.id not in kept}
    assert {name for name, status in case.statuses().items() if status == "finished"} == kept


def test_nothing_is_done_where_nothing_is_to_go(case: Case) -> None:
    """Not even the manifest is opened."""
    case.finish()
    before = case.layout.manifest.stat()

    assert case.prune() == {}
    assert case.layout.manifest.stat().st_mtime_ns == before.st_mtime_ns


def test_the_run_after_a_prune_starts_as_ever(case: Case) -> None:
    """A launch finds nothing in its way."""
    case.finish()
    case.finish()
    case.prune()

    with start_run(case.path) as run:
        assert (case.path / "latest").resolve() == run.path
    assert case.findings() == []
