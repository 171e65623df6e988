from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment, durable_files, start_run
from immutable_logs.errors import NotAnExperimentError
from immutable_logs.latest_link import switch_latest
from immutable_logs.launchers.detection import ProcessLaunch
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import append_record, manifest_lock, read_manifest
from immutable_logs.records import ADOPTED, PRUNED, STARTED, ManifestRecord, format_time
from immutable_logs.repair import repair_experiment
from immutable_logs.run import Run, begin_run
from immutable_logs.run_id import format_run_id
from immutable_logs.verification import SECOND_LOOK_AFTER, Finding, Verification, verify_experiment
from immutable_logs.verification.state import read_state
from tests.conftest import hidden_links

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Children

GONE = format_run_id(1_600_000_000.0, bytes(8))
"""The id of a run that never was."""


@dataclass
class Case:
    """An experiment that runs are started in, and that a verification looks at."""

    path: Path

    @property
    def layout(self) -> ExperimentLayout:
        """Its paths."""
        return ExperimentLayout.of(self.path)

    def finish(self, step: int | None = 7, outcome: str = "finished") -> Run:
        """Start a run and finish it."""
        run = start_run(self.path)
        if step is not None:
            run.note_step(step)
        run.finish(outcome)
        return run

    def verify(self) -> Verification:
        """Verify without a pause."""
        return verify_experiment(Experiment(self.path), pause=lambda _: None)

    def kinds(self) -> list[tuple[str, str]]:
        """Return what is found, in short."""
        return [(finding.severity, finding.kind) for finding in self.verify().findings]

    def only(self, kind: str) -> Finding:
        """Return the only finding, which is of a kind."""
        (finding,) = self.verify().findings
        assert finding.kind == kind
        return finding

    def repair(self) -> list[str]:
        """Verify and repair."""
        return repair_experiment(Experiment(self.path), self.verify())

    def order(self) -> list[str]:
        """Return the runs in order."""
        return [run.id for run in Experiment(self.path).runs()]

    def lines(self) -> list[bytes]:
        """Return the manifest's lines."""
        return self.layout.manifest.read_bytes().splitlines(keepends=True)

    def drop(self, *numbers: int) -> list[bytes]:
        """Lose lines of the manifest, and return them."""
        lines = self.lines()
        self.layout.manifest.write_bytes(b"".join(line for at, line in enumerate(lines) if at not in numbers))
        return [lines[number] for number in numbers]

    def contents(self) -> dict[str, bytes | str | None]:
        """Return every name, and what is behind it."""
        found: dict[str, bytes | str | None] = {}
        for path in self.path.rglob("*"):
            name = str(path.relative_to(self.path))
            if path.is_symlink():
                found[name] = os.readlink(path)
            else:
                found[name] = path.read_bytes() if path.is_file() else None
        return found

    def claim_directory(self) -> Path:
        """Return where the claims of the only launch are."""
        (directory,) = self.layout.launches.iterdir()
        return directory


class Clock:
    """Stands for the module `time`; a second passes whenever somebody looks, so that ids are in order."""

    def __init__(self) -> None:
        self.now = time.time() - 1000.0

    def time(self) -> float:
        """Return the next second."""
        self.now += 1.0
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which runs are started here; killed launches have the real one, which is ahead."""
    clock = Clock()
    monkeypatch.setattr("immutable_logs.run.time", clock)
    return clock


@pytest.fixture
def case(experiment: Path, clock: Clock) -> Case:
    """An experiment that does not exist yet."""
    assert clock.now < time.time()
    return Case(experiment)


KILLED = """
import signal
import subprocess
import time
from immutable_logs import start_run
from immutable_logs.run import begin_run
what = sys.argv[2]
run = begin_run(sys.argv[1])
if what != "joined":
    run.record(world_size=int(sys.argv[3]), git_commit="c0ffee")
if what == "published":
    run.publish()
report(run=run.id)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def kill(children: Children, case: Case) -> Callable[..., str]:
    """Starts a launch that is killed after it has ``joined``, ``recorded`` or ``published``; returns its run."""

    def launch(after: str, world_size: int = 1, **environ: str) -> str:
        child = children.start(KILLED, case.path, after, world_size, environ=environ)
        (told,) = child.reports(status=-signal.SIGKILL)
        return str(told["run"])

    return launch


class TestNothing:
    def test_an_experiment_without_runs(self, case: Case) -> None:
        """There is nothing to find."""
        case.layout.runs.mkdir(parents=True)

        assert case.verify() == Verification(0)

    @pytest.mark.parametrize("count", [1, 4])
    def test_runs_that_ended_in_every_way(self, case: Case, count: int) -> None:
        """What launches leave is as it should be."""
        for outcome in ("finished", "failed", "interrupted", "finished")[:count]:
            case.finish(outcome=outcome)

        assert case.verify() == Verification(count)

    def test_a_run_that_goes_on(self, case: Case) -> None:
        """Neither an end nor the other ranks are expected yet, nor a record before it is written."""
        case.finish()
        run = begin_run(case.path)
        assert case.kinds() == []
        run.record(world_size=8)
        assert case.kinds() == []
        run.publish()
        assert case.kinds() == []

    def test_a_launch_that_failed_before_it_was_published(self, case: Case) -> None:
        """It has a record and an end, no `started` line, and `latest` shows the run before: as promised."""
        case.finish()
        run = begin_run(case.path)
        run.record()
        run.finish("failed", error="no data")

        assert case.kinds() == []

    def test_two_launches_with_one_key(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two generations of a key are nothing special."""
        for name, value in (("RANK", "0"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1"), ("WORLD_SIZE", "1")):
            monkeypatch.setenv(name, value)
        for _ in range(2):
            monkeypatch.setattr("immutable_logs.run._process_launch", ProcessLaunch())
            case.finish()

        assert len(list(case.layout.launches.iterdir())) == 1
        assert case.kinds() == []

    def test_a_mount_without_links(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """Claims are files there, and `runs/latest.txt` stands for `latest`."""

        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "symlink", refuse)
        for _ in range(2):
            case.finish()

        assert case.layout.latest_text.is_file()
        assert case.kinds() == []

    def test_hidden_names_are_nobodys_business(self, case: Case) -> None:
        """Such as those that NFS gives to removed files, and the journal of a migration."""
        case.finish()
        for parent in (case.layout.runs, case.claim_directory(), case.layout.tensorboard):
            parent.mkdir(exist_ok=True)
            (parent / ".nfs0001").touch()
            (parent / ".migration").mkdir()

        assert case.kinds() == []

    def test_a_directory_that_is_no_experiment_is_an_error(self, tmp_path: Path) -> None:
        """Nothing was verified there."""
        with pytest.raises(NotAnExperimentError):
            verify_experiment(Experiment(tmp_path))

    def test_it_only_reads(self, case: Case, kill: Callable[..., str]) -> None:
        """Neither names nor bytes nor times change, whatever is found."""
        case.finish()
        kill("recorded")
        case.layout.latest.unlink()

        def times() -> dict[Path, int]:
            return {path: path.lstat().st_mtime_ns for path in [case.path, *case.path.rglob("*")]}

        before = case.contents(), times()
        assert case.verify().problems
        assert (case.contents(), times()) == before


class TestRuns:
    def test_a_run_whose_directory_is_gone(self, case: Case) -> None:
        """The manifest names it, and nothing says that it was pruned."""
        run, _ = case.finish(), case.finish()
        shutil.rmtree(run.path)

        finding = case.only("run-missing")
        assert (finding.severity, finding.run, finding.path) == ("problem", run.id, f"runs/{run.id}")
        assert "found nothing" in finding.message
        assert not finding.is_repairable

    def test_a_run_that_was_moved_and_linked_is_missing(self, case: Case, tmp_path: Path) -> None:
        """A link in the place of the directory is not followed, and the message says that it is there."""
        run, _ = case.finish(), case.finish()
        run.path.rename(tmp_path / "elsewhere")
        run.path.symlink_to(tmp_path / "elsewhere")

        assert "a link, which is not followed" in case.only("run-missing").message

    def test_a_pruned_run_is_not_missing(self, case: Case) -> None:
        """Its claim is marked, its directory gone."""
        run, _ = case.finish(), case.finish()
        self.prune(case, run)
        shutil.rmtree(run.path)

        assert case.kinds() == []

    @staticmethod
    def prune(case: Case, run: Run, *, is_marked: bool = True) -> None:
        """Do what `prune` does before it removes the directory."""
        append_record(case.layout, ManifestRecord(PRUNED, run.id, format_time(1e9), {}), is_locked=True)
        if is_marked:
            (marker,) = case.layout.launches.glob(f"*/{run.id}")
            marker.write_text("pruned")

    def test_a_prune_that_was_interrupted_before_the_directory(self, case: Case) -> None:
        """The line is there, and the directory too."""
        run, _ = case.finish(), case.finish()
        self.prune(case, run)

        finding = case.only("prune-unfinished")
        assert (finding.severity, finding.path) == ("leftover", f"runs/{run.id}")

    def test_a_prune_that_was_interrupted_before_the_mark(self, case: Case) -> None:
        """A late rank of that launch would make the directory again."""
        run, _ = case.finish(), case.finish()
        self.prune(case, run, is_marked=False)
        shutil.rmtree(run.path)

        assert "its claim is not marked" in case.only("prune-unfinished").message

    def test_a_launch_whose_rank_zero_never_wrote(self, case: Case, kill: Callable[..., str]) -> None:
        """The ranks that joined are told, since their logs are all that is left."""
        case.finish()
        run = kill("joined")

        finding = case.only("run-without-record")
        assert (finding.severity, finding.run, finding.details) == ("leftover", run, {"ranks": [0]})
        assert "ranks that joined: 0" in finding.message

    @pytest.mark.parametrize("content", [b"", b'{"format": 1, "run', b"[]", b'{"format": 1}'])
    def test_a_record_that_was_damaged_after_it_was_published(self, case: Case, content: bytes) -> None:
        """It was complete, or the run would not be in the manifest."""
        run, _ = case.finish(), case.finish()
        (run.path / "run.json").write_bytes(content)

        finding = case.only("record-unreadable")
        assert (finding.severity, finding.run, finding.path) == ("problem", run.id, f"runs/{run.id}/run.json")
        assert "damaged since. HINT: restore it" in finding.message

    def test_a_record_that_was_torn_by_a_kill(self, case: Case, kill: Callable[..., str]) -> None:
        """Its run was never published: a leftover."""
        case.finish()
        run = kill("recorded")
        path = case.layout.run(run).run_record
        path.write_bytes(path.read_bytes()[:100])

        finding = case.only("record-unreadable")
        assert (finding.severity, finding.run) == ("leftover", run)
        assert "killed while it wrote" in finding.message

    def test_a_record_of_a_newer_version_is_told_as_such(self, case: Case) -> None:
        """It is not damaged, and the message says what may be needed."""
        run, _ = case.finish(), case.finish()
        (run.path / "run.json").write_text('{"format": 2}')

        assert "found 2; a newer immutable-logs may be needed" in case.only("record-unreadable").message

    def test_a_record_that_is_gone(self, case: Case) -> None:
        """Once published a run has one."""
        run, _ = case.finish(), case.finish()
        (run.path / "run.json").unlink()

        finding = case.only("record-missing")
        assert (finding.severity, finding.path) == ("problem", f"runs/{run.id}/run.json")

    def test_a_run_directory_that_was_copied_by_hand(self, case: Case) -> None:
        """The copy has the records of the original."""
        run = case.finish()
        shutil.copytree(run.path, case.layout.run(GONE).path)

        finding = case.only("record-of-another-run")
        assert (finding.severity, finding.run) == ("problem", GONE)
        assert repr(run.id) in finding.message

    def test_an_end_record_of_another_run(self, case: Case) -> None:
        """It says whose it is."""
        first, second = case.finish(), case.finish()
        shutil.copy(first.path / "finished.json", second.path / "finished.json")

        finding = case.only("record-of-another-run")
        assert finding.path == f"runs/{second.id}/finished.json"

    def test_two_launches_in_one_run(self, case: Case) -> None:
        """The process that wrote the record is not the one that joined as rank zero."""
        run, _ = case.finish(), case.finish()
        entry = case.layout.run(run.id).rank_entry(0)
        entry.write_text(json.dumps({**json.loads(entry.read_bytes()), "pid": 4711}))

        finding = case.only("run-of-two-launches")
        assert (finding.severity, finding.run) == ("problem", run.id)
        assert "pid 4711" in finding.message
        assert f"pid {os.getpid()}" in finding.message

    def test_an_end_record_that_was_damaged(self, case: Case) -> None:
        """The manifest still has the outcome."""
        run = case.finish()
        (run.path / "finished.json").write_bytes(b"{")

        finding = case.only("end-record-unreadable")
        assert (finding.severity, finding.path) == ("problem", f"runs/{run.id}/finished.json")

    def test_an_end_record_that_was_torn_by_a_kill(self, case: Case, kill: Callable[..., str]) -> None:
        """The line comes after the record, so there is none."""
        run = kill("published")
        case.layout.run(run).finish_record.write_bytes(b'{"format": 1')

        finding = case.only("end-record-unreadable")
        assert (finding.severity, finding.run) == ("leftover", run)

    def test_an_end_record_that_is_gone(self, case: Case) -> None:
        """The message repeats the outcome, which only the manifest has now."""
        run = case.finish(outcome="failed")
        (run.path / "finished.json").unlink()

        finding = case.only("end-record-missing")
        assert finding.severity == "problem"
        assert "ended (failed)" in finding.message

    def test_a_line_that_contradicts_the_end_record(self, case: Case) -> None:
        """The record is the proof."""
        run = case.finish(outcome="failed")
        record = run.path / "finished.json"
        record.write_text(record.read_text().replace('"failed"', '"finished"'))

        finding = case.only("end-record-differs")
        assert finding.severity == "problem"
        assert "'failed', found 'finished'" in finding.message

    def test_ranks_that_never_joined(self, case: Case, kill: Callable[..., str]) -> None:
        """Told once nothing more can come."""
        run = kill("published", 4)

        finding = case.only("ranks-absent")
        assert (finding.severity, finding.run, finding.details) == ("leftover", run, {"ranks": [1, 2, 3]})
        assert "expected 4 ranks, found 1; absent: 1, 2, 3" in finding.message

    def test_many_absent_ranks_are_not_all_named(self, case: Case, kill: Callable[..., str]) -> None:
        """The message stays readable, the details have every one."""
        kill("published", 1024)

        finding = case.only("ranks-absent")
        assert "14, 15, 16 and 1007 more" in finding.message
        assert len(finding.details["ranks"]) == 1023

    @pytest.mark.parametrize("content", [b"", b'{"format": 1, "jo'])
    def test_an_entry_that_was_cut_by_a_kill(self, case: Case, content: bytes) -> None:
        """It counts as joined, and its rank is named."""
        run = case.finish()
        case.layout.run(run.id).rank_entry(5).write_bytes(content)

        finding = case.only("rank-entry-unreadable")
        assert (finding.severity, finding.run, finding.details) == ("leftover", run.id, {"rank": 5})
        assert finding.path == f"runs/{run.id}/ranks/0000/rank-000005.json"

    def test_an_entry_that_is_another_ranks(self, case: Case) -> None:
        """It was copied; whose process it was cannot be known."""
        run = case.finish()
        layout = case.layout.run(run.id)
        shutil.copy(layout.rank_entry(0), layout.rank_entry(1))

        assert case.only("rank-entry-unreadable").details == {"rank": 1}


class TestManifest:
    def test_damaged_lines_are_counted(self, case: Case) -> None:
        """They stay for ever, so that they are no problem by themselves."""
        case.finish()
        with case.layout.manifest.open("ab") as file:
            file.write(b'{"format": 1, "event": "star\n\xff\xfe\n')
        case.finish()

        finding = case.only("manifest-damaged")
        assert (finding.severity, finding.path, finding.details) == ("leftover", "runs/manifest.jsonl", {"lines": 2})

    def test_lines_that_name_no_run_are_counted(self, case: Case) -> None:
        """Nobody follows what they name."""
        case.finish()
        append_record(case.layout, ManifestRecord(STARTED, "../../etc", "t", {}), is_locked=True)

        assert case.only("manifest-foreign").severity == "leftover"

    def test_a_doubled_line_is_a_leftover(self, case: Case) -> None:
        """As after a merge of two copies."""
        run = case.finish()
        case.layout.manifest.write_bytes(b"".join(case.lines() * 2))

        findings = case.verify().findings
        assert [(each.severity, each.kind, each.run) for each in findings] == [
            ("leftover", "line-doubled", run.id)
        ] * 2

    def test_two_different_started_lines_are_a_problem(self, case: Case) -> None:
        """Two launches say that they started the same run."""
        run = case.finish()
        line = ManifestRecord(STARTED, run.id, format_time(1e9), {"host": "elsewhere"})
        append_record(case.layout, line, is_locked=True)

        finding = case.only("started-twice")
        assert (finding.severity, finding.run) == ("problem", run.id)
        assert "elsewhere" in finding.message

    def test_a_lost_started_line(self, case: Case) -> None:
        """The run has trained, so it had one."""
        run, _ = case.finish(), case.finish()
        case.drop(0)

        finding = case.only("started-line-lost")
        assert (finding.severity, finding.run, finding.is_repairable) == ("problem", run.id, True)

    def test_a_lost_finished_line(self, case: Case) -> None:
        """The record says how it ended, and readers look there: a leftover of a kill between the two."""
        run, _ = case.finish(), case.finish()
        case.drop(1)

        finding = case.only("finished-line-lost")
        assert (finding.severity, finding.run, finding.is_repairable) == ("leftover", run.id, True)

    def test_a_launch_killed_between_its_record_and_its_line(self, case: Case, kill: Callable[..., str]) -> None:
        """Nobody can know whether the line was lost or never written; it is harmless."""
        case.finish()
        run = kill("recorded")

        finding = case.only("started-line-lost")
        assert (finding.severity, finding.run, finding.is_repairable) == ("leftover", run, True)
        assert "killed before it was published, or lost" in finding.message

    def test_an_adopted_run_without_its_line(self, case: Case) -> None:
        """A migration was interrupted, and its own command goes on with it; the line of a started run is not made."""
        run, _ = case.finish(), case.finish()
        record = run.path / "run.json"
        record.write_text(json.dumps({**json.loads(record.read_bytes()), "adopted_from": {"log_directory": "."}}))
        case.drop(0, 1)

        finding = case.only("adoption-unfinished")
        assert (finding.severity, finding.run, finding.is_repairable) == ("leftover", run.id, False)
        assert case.repair() == []

    def test_foreign_names_are_told_and_left_alone(self, case: Case) -> None:
        """Also a file that has the name of a run."""
        case.finish()
        for name in ("notes.txt", GONE, "run_3"):
            (case.layout.runs / name).touch()

        findings = case.verify().findings
        assert [(each.severity, each.kind, each.path) for each in findings] == [
            ("leftover", "foreign-entry", f"runs/{name}") for name in sorted(("notes.txt", GONE, "run_3"))
        ]


class TestLatest:
    def test_it_is_missing(self, case: Case) -> None:
        """The message says what it should show."""
        _, run = case.finish(), case.finish()
        case.layout.latest.unlink()

        finding = case.only("latest-missing")
        assert (finding.severity, finding.path, finding.run, finding.is_repairable) == (
            "problem",
            "latest",
            run.id,
            True,
        )

    def test_it_shows_an_earlier_run(self, case: Case) -> None:
        """As after a kill between the line and the switch."""
        first, second = case.finish(), case.finish()
        switch_latest(case.layout, first.id, unique="test")

        finding = case.only("latest-behind")
        assert (finding.severity, finding.run, finding.is_repairable) == ("problem", first.id, True)
        assert finding.details == {"expected": second.id}

    def test_it_dangles(self, case: Case) -> None:
        """It shows a run that is gone."""
        case.finish()
        switch_latest(case.layout, GONE, unique="test")

        finding = case.only("latest-dangling")
        assert (finding.severity, finding.run, finding.is_repairable) == ("problem", GONE, True)

    def test_it_shows_a_run_without_a_record(self, case: Case, kill: Callable[..., str]) -> None:
        """It must only ever show a complete one."""
        case.finish()
        run = kill("joined")
        switch_latest(case.layout, run, unique="test")

        (finding,) = (each for each in case.verify().findings if each.path == "latest")
        assert (finding.kind, finding.severity, finding.is_repairable) == ("latest-without-record", "problem", True)

    @pytest.mark.parametrize("what", ["a directory", "a file", "a link of another form"])
    def test_it_is_the_users(self, case: Case, what: str) -> None:
        """It is told what has the name, and that it is never touched."""
        case.finish()
        case.layout.latest.unlink()
        if what == "a directory":
            case.layout.latest.mkdir()
        elif what == "a file":
            case.layout.latest.touch()
        else:
            case.layout.latest.symlink_to("../elsewhere")
        before = case.contents()

        finding = case.only("latest-foreign")
        assert (finding.severity, finding.is_repairable) == ("problem", False)
        assert f"found {what}, which is the user's" in finding.message
        assert case.repair() == []
        assert case.contents() == before

    def test_a_text_that_names_no_run_stands_for_nothing(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a mount without links the text file is written anew."""
        monkeypatch.setattr(os, "symlink", lambda *_: self.refuse())
        run = case.finish()
        case.layout.latest_text.write_text("../../elsewhere")

        assert case.only("latest-missing").run == run.id
        assert case.repair() == [f"switched `latest` to run {run.id}"]
        assert case.layout.latest_text.read_text() == f"{run.id}\n"

    @staticmethod
    def refuse() -> None:
        """Answer as a mount without links."""
        raise OSError(errno.EPERM, "no links here")

    def test_without_any_published_run_none_is_expected(self, case: Case, kill: Callable[..., str]) -> None:
        """A launch that was killed before leaves no `latest`, as promised."""
        kill("recorded")

        assert case.kinds() == [("leftover", "started-line-lost")]

    def test_a_killed_switch_leaves_a_private_name(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is listed, for it does no harm."""
        first, second = case.finish(), case.finish()

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(durable_files, "replace", killed)
            with pytest.raises(KeyboardInterrupt):
                switch_latest(case.layout, first.id, unique="host-1-abc")

        assert case.layout.latest.resolve() == second.path
        finding = case.only("latest-unfinished")
        assert (finding.severity, finding.path) == ("leftover", "runs/.latest/host-1-abc.link")


class TestClaims:
    @pytest.mark.parametrize("text", ["../../elsewhere", "/etc", "run_0"])
    def test_a_claim_that_is_no_run_id(self, case: Case, text: str) -> None:
        """Nobody follows it, and a rank that finds it ends with an error."""
        case.finish()
        (case.claim_directory() / "2").symlink_to(text)

        finding = case.only("claim-untrusted")
        assert (finding.severity, finding.path.rpartition("/")[2]) == ("problem", "2")
        assert repr(text) in finding.message

    @pytest.mark.parametrize("text", ["", "2026-12-01_02"])
    def test_a_claim_that_was_cut_by_a_kill(self, case: Case, text: str) -> None:
        """On a mount without links it is a file, and not complete for a moment."""
        case.finish()
        (case.claim_directory() / "2").write_text(text)

        assert case.only("claim-unfinished").severity == "leftover"

    def test_a_claim_that_is_a_directory(self, case: Case) -> None:
        """Told like any text that is no run id."""
        case.finish()
        (case.claim_directory() / "2").mkdir()

        assert "(a directory)" in case.only("claim-untrusted").message

    def test_a_claim_that_dangles(self, case: Case) -> None:
        """The file that it leads to was removed."""
        run = case.finish()
        (case.claim_directory() / run.id).unlink()

        finding = case.only("claim-dangling")
        assert (finding.severity, finding.run) == ("problem", run.id)
        (case.claim_directory() / run.id).touch()
        assert case.kinds() == []

    def test_a_claimed_run_that_never_was(self, case: Case) -> None:
        """The launch was killed between its claim and its entry."""
        case.finish()
        (case.claim_directory() / GONE).touch()
        (case.claim_directory() / "2").symlink_to(GONE)

        finding = case.only("claim-without-run")
        assert (finding.severity, finding.run) == ("leftover", GONE)

    def test_files_that_no_claim_leads_to(self, case: Case) -> None:
        """Ranks that were overtaken left them: one finding, however many."""
        case.finish()
        others = sorted(format_run_id(1e9, bytes([0] * 7 + [number])) for number in range(3))
        for name in others:
            (case.claim_directory() / name).touch()

        finding = case.only("claim-unused")
        assert (finding.severity, finding.details) == ("leftover", {"files": others})

    def test_two_claims_of_one_run(self, case: Case) -> None:
        """Two launches could come to one directory."""
        run = case.finish()
        (case.claim_directory() / "2").symlink_to(run.id)

        finding = case.only("run-claimed-twice")
        assert (finding.severity, finding.run) == ("problem", run.id)
        assert finding.message.count("runs/.launches/") == 1

    def test_a_running_launch_whose_claim_was_removed(self, case: Case) -> None:
        """A rank that is still to come would start a run of its own; after the end it does not matter."""
        run = start_run(case.path)
        shutil.rmtree(case.layout.launches)

        finding = case.only("run-unclaimed")
        assert (finding.severity, finding.run) == ("problem", run.id)
        run.finish()
        assert case.kinds() == []

    def test_foreign_names_beside_the_claims(self, case: Case, tmp_path: Path) -> None:
        """They are told; a link to a directory elsewhere is not entered."""
        case.finish()
        (case.claim_directory() / "02").touch()
        (case.claim_directory() / "notes").touch()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "1").symlink_to("/etc")
        (case.layout.launches / "link").symlink_to(tmp_path / "elsewhere")

        findings = case.verify().findings
        assert [finding.kind for finding in findings] == ["foreign-entry"] * 3


class TestEventLinks:
    @staticmethod
    def link(case: Case, run: Run, text: str | None = None) -> Path:
        """Make the link to an event file of a run."""
        (run.path / "events.out.tfevents.1").touch()
        directory = case.layout.lineage(run.id)
        directory.mkdir(parents=True, exist_ok=True)
        link = directory / f"{len(list(directory.iterdir())) + 1:04d}_events.out.tfevents.1"
        link.symlink_to(text or f"../../runs/{run.id}/events.out.tfevents.1")
        return link

    def test_a_link_to_an_event_file_is_as_it_should_be(self, case: Case) -> None:
        """Nothing is found."""
        self.link(case, case.finish())

        assert case.kinds() == []

    def test_a_link_that_dangles(self, case: Case) -> None:
        """Copies that follow links fail on it."""
        run = case.finish()
        link = self.link(case, run)
        (run.path / "events.out.tfevents.1").unlink()

        finding = case.only("tensorboard-dangling")
        assert (finding.severity, finding.run) == ("problem", run.id)
        assert finding.path == str(link.relative_to(case.path))

    def test_links_that_the_mount_hides_are_told_once(self, case: Case) -> None:
        """As through SSHFS: nobody can say whether they dangle."""
        for _ in range(2):
            self.link(case, case.finish())

        with hidden_links():
            finding = case.only("tensorboard-unchecked")
        assert (finding.severity, finding.path) == ("leftover", "tensorboard")

    @pytest.mark.parametrize(
        "text", ["/etc/passwd", "../../../elsewhere", "../../runs/manifest.jsonl", "../../latest/x"]
    )
    def test_a_link_that_leads_to_no_file_of_a_run(self, case: Case, text: str) -> None:
        """It is not ours, wherever it leads."""
        self.link(case, case.finish(), text)

        finding = case.only("foreign-entry")
        assert finding.severity == "leftover"
        assert repr(text) in finding.message

    def test_other_things_beside_the_links(self, case: Case) -> None:
        """A file among the links, and a directory that bears no run id."""
        run = case.finish()
        self.link(case, run)
        (case.layout.lineage(run.id) / "events.out.tfevents.2").touch()
        (case.layout.tensorboard / "mine").mkdir()

        assert case.kinds() == [("leftover", "foreign-entry")] * 2


class TestSecondLook:
    def test_what_is_gone_at_the_second_look_is_not_told(self, case: Case) -> None:
        """A launch was between its line and the switch of `latest` at the first."""
        first, second = case.finish(), case.finish()
        switch_latest(case.layout, first.id, unique="test")
        pauses: list[float] = []

        def launch_goes_on(seconds: float) -> None:
            pauses.append(seconds)
            switch_latest(case.layout, second.id, unique="test2")

        found = verify_experiment(Experiment(case.path), pause=launch_goes_on)

        assert (found.findings, found.newest) == ((), None)
        assert pauses == [SECOND_LOOK_AFTER]

    def test_what_is_new_at_the_second_look_is_not_told(self, case: Case) -> None:
        """It had no chance to pass yet."""
        run, _ = case.finish(), case.finish()
        case.layout.latest.unlink()

        found = verify_experiment(Experiment(case.path), pause=lambda _: (run.path / "run.json").unlink())

        assert [finding.kind for finding in found.findings] == ["latest-missing"]

    def test_what_is_new_at_the_second_look_is_not_mended(self, case: Case) -> None:
        """Somebody may just be at it."""
        run = case.finish()
        (run.path / "finished.json").unlink()

        found = verify_experiment(Experiment(case.path), pause=lambda _: case.layout.latest.unlink())

        assert [finding.kind for finding in found.findings] == ["end-record-missing"]
        assert repair_experiment(Experiment(case.path), found) == []

    def test_without_a_problem_there_is_no_pause(self, case: Case) -> None:
        """Leftovers do not pass."""
        case.finish()
        (case.layout.runs / "notes").touch()

        assert len(verify_experiment(Experiment(case.path), pause=lambda _: pytest.fail("paused")).findings) == 1


class TestRepair:
    def test_lost_lines_come_back_as_they_were(self, case: Case) -> None:
        """Byte for byte, at the end of the manifest, whoever lost them."""
        for _ in range(2):
            case.finish()
        before = case.contents()
        lost = case.drop(2, 3)

        assert len(case.repair()) == 2
        assert case.lines()[2:] == lost
        assert case.contents() == before
        assert case.kinds() == []

    def test_a_whole_manifest_comes_back(self, case: Case, kill: Callable[..., str]) -> None:
        """The runs have the order that their ids give them, and `latest` stays where it is."""
        runs = [case.finish().id, kill("published"), case.finish(outcome="failed").id]
        case.layout.manifest.unlink()
        order = case.order()

        done = case.repair()

        assert sorted(order) == sorted(runs)
        assert case.order() == order
        assert len(done) == 5
        assert case.kinds() == []
        assert case.layout.latest.resolve().name == runs[2]

    def test_a_line_from_the_middle_makes_no_old_run_the_newest(self, case: Case) -> None:
        """It comes back in a form that leaves the order and `latest` as they are."""
        runs = [case.finish().id for _ in range(3)]
        case.drop(0)

        assert case.repair() == [f"added the `recovered` line of run {runs[0]}"]
        assert case.order() == runs
        assert case.layout.latest.resolve().name == runs[2]
        assert case.kinds() == []

    @pytest.mark.parametrize("order", ["012", "021", "102", "120", "201", "210"])
    @pytest.mark.parametrize("lost", [(0,), (2,), (4,), (0, 2), (0, 4), (0, 1, 2, 3, 4, 5)])
    def test_launches_of_one_second_stay_as_they_are(
        self, case: Case, monkeypatch: pytest.MonkeyPatch, order: str, lost: tuple[int, ...]
    ) -> None:
        """Their ids tell no order; `latest` stays where it is, and nothing is found afterwards."""
        ids = iter([f"2020-01-01_00-00-00Z_0000{digit}" for digit in order])
        monkeypatch.setattr("immutable_logs.run.format_run_id", lambda *_: next(ids))
        for _ in order:
            case.finish()
        latest = case.layout.latest.resolve()
        case.drop(*lost)

        case.repair()

        assert case.layout.latest.resolve() == latest
        assert case.kinds() == []

    @pytest.mark.parametrize("order", ["12", "21"])
    def test_a_launch_of_the_same_second_that_publishes_meanwhile_stays_the_latest(
        self, case: Case, monkeypatch: pytest.MonkeyPatch, order: str
    ) -> None:
        """The time in the record decides where the ids do not."""
        ids = iter([f"2020-01-01_00-00-00Z_0000{digit}" for digit in order])
        monkeypatch.setattr("immutable_logs.run.format_run_id", lambda *_: next(ids))
        case.finish()
        case.layout.manifest.unlink()
        case.layout.latest.unlink()
        found = case.verify()
        newest = case.finish()

        repair_experiment(Experiment(case.path), found)

        assert case.layout.latest.resolve() == newest.path
        assert case.kinds() == []

    @pytest.mark.parametrize("numbers", [(2, 4), (4,), (4, 5)])
    def test_a_clock_that_jumped_back_does_not_turn_latest_back(
        self, case: Case, clock: Clock, numbers: tuple[int, ...]
    ) -> None:
        """The last run has the earliest id, and its line is lost: `latest` knows better."""
        for number in range(3):
            clock.now -= 100.0 * number
            case.finish()
        latest = case.layout.latest.resolve()
        case.drop(*numbers)
        assert {kind for _, kind in case.kinds()} <= {"started-line-lost", "finished-line-lost"}

        case.repair()

        assert case.layout.latest.resolve() == latest
        assert case.order()[-1] == latest.name
        assert case.kinds() == []

    @pytest.mark.parametrize("numbers", [(0,), (2,), (4,), (0, 2), (0, 1, 2, 3), (2, 4), (0, 4), (0, 1, 2, 3, 4, 5)])
    def test_a_repair_never_changes_the_order_of_the_runs(self, case: Case, numbers: tuple[int, ...]) -> None:
        """Whichever lines were lost."""
        for _ in range(3):
            case.finish()
        case.drop(*numbers)
        order = case.order()

        case.repair()

        assert case.order() == order
        assert case.kinds() == []

    @pytest.mark.parametrize("damage", ["missing", "behind", "dangling"])
    def test_latest_is_mended(self, case: Case, damage: str) -> None:
        """It shows the run that started last, as a launch would have switched it."""
        runs = [case.finish() for _ in range(3)]
        if damage == "missing":
            case.layout.latest.unlink()
        else:
            switch_latest(case.layout, GONE if damage == "dangling" else runs[0].id, unique="test")

        assert case.repair() == [f"switched `latest` to run {runs[2].id}"]
        assert os.readlink(case.layout.latest) == f"runs/{runs[2].id}"
        assert case.kinds() == []

    def test_a_run_that_failed_before_it_was_published_does_not_become_the_latest(self, case: Case) -> None:
        """Although it is the newest that has a record."""
        published = case.finish()
        failed = begin_run(case.path)
        failed.record()
        failed.finish("failed", error="no data")
        case.layout.manifest.unlink()
        case.layout.latest.unlink()

        case.repair()

        assert case.layout.latest.resolve() == published.path
        assert case.kinds() == []

    def test_a_second_repair_does_nothing(self, case: Case, kill: Callable[..., str]) -> None:
        """Also one that goes by what was found before the first."""
        case.finish()
        kill("recorded")
        case.drop(1)
        case.layout.latest.unlink()
        found = case.verify()
        first = repair_experiment(Experiment(case.path), found)
        after = case.contents()

        assert len(first) == 3
        assert repair_experiment(Experiment(case.path), found) == []
        assert case.repair() == []
        assert case.contents() == after

    def test_nothing_else_is_changed(self, case: Case, kill: Callable[..., str]) -> None:
        """Every other name keeps its bytes, whatever else was found."""
        runs = [case.finish() for _ in range(3)]
        kill("joined")
        kill("recorded", 4)
        shutil.rmtree(runs[0].path)
        (runs[1].path / "finished.json").write_bytes(b"{")
        (case.layout.runs / "notes").touch()
        case.drop(4)
        case.layout.latest.unlink()
        before = case.contents()

        assert len(case.repair()) == 3

        after = case.contents()
        changed = {name for name in after.keys() | before.keys() if after.get(name, "") != before.get(name, "")}
        assert changed == {"latest", "runs/manifest.jsonl"}
        manifests = after["runs/manifest.jsonl"], before["runs/manifest.jsonl"]
        assert isinstance(manifests[0], bytes)
        assert isinstance(manifests[1], bytes)
        assert manifests[0].startswith(manifests[1])

    def test_a_torn_last_line_is_ended_first(self, case: Case) -> None:
        """The line that is added does not grow together with it."""
        for _ in range(2):
            case.finish()
        lines = case.lines()
        case.layout.manifest.write_bytes(b"".join(lines[:3]) + lines[3][:20])

        assert len(case.repair()) == 1
        assert case.lines()[4] == lines[3]
        assert case.kinds() == [("leftover", "manifest-damaged")]

    def test_a_run_that_goes_on_is_left_to_its_launch(self, case: Case) -> None:
        """Its line is not lost but still to come, and comes once."""
        case.finish()
        run = begin_run(case.path)
        run.record()
        case.layout.latest.unlink()

        case.repair()
        run.publish()

        started = [record.run for record in read_manifest(case.layout).records if record.event == STARTED]
        assert started.count(run.id) == 1
        assert case.layout.latest.resolve() == run.path

    def test_a_launch_that_publishes_meanwhile_stays_the_latest(self, case: Case) -> None:
        """What was found is looked at again under the lock."""
        case.finish()
        lost = case.finish()
        case.drop(2)
        case.layout.latest.unlink()
        found = case.verify()
        assert found.newest == lost.id
        newest = case.finish()

        repair_experiment(Experiment(case.path), found)

        assert case.layout.latest.resolve() == newest.path
        assert case.order()[-1] == newest.id
        assert case.kinds() == []

    def test_it_waits_for_the_lock_of_a_launch(self, case: Case, children: Children) -> None:
        """A launch that holds the manifest's lock writes its line first."""
        case.finish()
        case.layout.latest.unlink()
        code = """
        from pathlib import Path
        from immutable_logs import Experiment
        from immutable_logs.repair import repair_experiment
        from immutable_logs.verification import verify_experiment
        found = verify_experiment(Experiment(sys.argv[1]))
        print("ready", flush=True)
        repair_experiment(Experiment(sys.argv[1]), found)
        report(done=time.monotonic())
        """
        with manifest_lock(case.layout) as is_held:
            assert is_held
            child = children.start(code, case.path)
            child.wait_until_ready()
            with pytest.raises(subprocess.TimeoutExpired):
                child.popen.wait(timeout=0.3)
            assert not os.path.lexists(case.layout.latest)
        child.report()
        assert os.path.lexists(case.layout.latest)

    def test_launches_and_repairs_at_the_same_time(self, case: Case, children: Children) -> None:
        """Every run is in the manifest and `latest` shows the last.

        At worst a line is there twice, since a launch writes its line a moment after its record; readers count one.
        """
        for _ in range(3):
            case.finish()
        case.drop(0, 3)
        case.layout.latest.unlink()
        launch = """
        from immutable_logs import start_run
        gate()
        for _ in range(10):
            start_run(sys.argv[1]).finish()
        """
        repair = """
        from immutable_logs import Experiment
        from immutable_logs.repair import repair_experiment
        from immutable_logs.verification import verify_experiment
        gate()
        for _ in range(10):
            experiment = Experiment(sys.argv[1])
            repair_experiment(experiment, verify_experiment(experiment, pause=lambda _: None))
        """
        started = [children.start(code, case.path, is_gated=True) for code in (launch, repair, launch, repair)]
        children.open_gate()
        for child in started:
            child.reports()

        assert len(case.order()) == 23
        assert set(case.kinds()) <= {("leftover", "line-doubled")}

    def test_lines_are_built_as_launches_write_them(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """From the records alone, with every key."""
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        case.finish(step=9, outcome="interrupted")
        (run,) = read_state(Experiment(case.path)).runs.values()

        assert run.record is not None
        assert run.finish is not None
        assert [run.record.manifest_line.encode(), run.finish.manifest_line.encode()] == case.lines()
        assert b'"job": "7"' in case.lines()[0]


def test_adopted_runs_are_as_they_should_be(case: Case) -> None:
    """Whatever a migration could not find out of them is not missing."""
    for number in range(2):
        run = format_run_id(1e9 + number, bytes(8))
        case.layout.run(run).path.mkdir(parents=True)
        record = {
            "format": 1,
            "run": run,
            "started": format_time(1e9 + number),
            "launch_source": "adopted",
            "lineage": run,
            "adopted_from": {"log_directory": ".", "certainty": "by evidence"},
        }
        case.layout.run(run).run_record.write_text(json.dumps(record))
        append_record(case.layout, ManifestRecord(ADOPTED, run, format_time(1e9 + number), {}), is_locked=True)
    assert case.kinds() == [("problem", "latest-missing")]
    case.repair()
    assert case.kinds() == []
    assert case.layout.latest.resolve().name == run
    case.finish()
    assert case.kinds() == []
