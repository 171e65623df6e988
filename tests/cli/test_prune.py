from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import append_record
from immutable_logs.records import PRUNED, ManifestRecord, format_time
from immutable_logs.run import Run

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
FinishRuns = Callable[[Path, int], list[Run]]

DAY = 86400.0
ACTING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
"""Characters that can act on a terminal."""


def let_pass(experiment: Path, days: float = 40) -> None:
    """Set every time in the experiment back, as if so many days had passed."""
    then = time.time() - days * DAY
    for path in (experiment / "runs").rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)
    manifest = experiment / "runs" / "manifest.jsonl"
    if manifest.is_file():
        text = re.sub(r'"time": "[^"]*"', f'"time": "{format_time(then)}"', manifest.read_text(encoding="utf-8"))
        manifest.write_text(text, encoding="utf-8")


@pytest.fixture
def old_runs(finish_runs: FinishRuns, experiment: Path) -> Callable[[int], list[Run]]:
    """Makes runs that ended forty days ago, each resumed from the one before it, with shared checkpoints."""

    def make(count: int) -> list[Run]:
        runs = finish_runs(experiment, count)
        for run in runs:
            record = json.loads((run.path / "run.json").read_bytes())
            (run.path / "run.json").write_text(json.dumps({**record, "checkpoints": "checkpoints"}))
            (run.path / "log.txt").write_bytes(b"x" * 1000)
        let_pass(experiment)
        return runs

    return make


def test_the_plan_shows_every_run_with_the_reason(
    run_program: RunProgram, old_runs: Callable[[int], list[Run]], experiment: Path
) -> None:
    """What would go and what would stay; nothing has changed."""
    first, second, third = old_runs(3)

    completed = run_program("prune", "--keep-last", "2", cwd=experiment)

    assert completed.returncode == 0
    heading, *lines = completed.stdout.splitlines()
    assert re.split(r"  +", heading) == ["PLAN", "RUN", "STATUS", "QUIET FOR", "BYTES", "WHY"]
    taken, kept, latest = (re.split(r"  +", line) for line in lines)
    size = sum(path.stat().st_size for path in first.path.rglob("*") if path.is_file())
    assert taken == ["take", first.id, "finished", "40 d 0 h", str(size), "not one of the last 2"]
    assert kept == ["keep", second.id, "finished", "40 d 0 h", "-", "one of the last 2"]
    assert latest == ["keep", third.id, "finished", "40 d 0 h", "-", "`latest` shows it"]
    assert completed.stderr.startswith("To remove: 1, ")
    assert completed.stderr.endswith("To keep: 2\nNothing has been removed. With --yes it is\n")
    assert first.path.exists()


def test_yes_removes_what_the_plan_takes(
    run_program: RunProgram, old_runs: Callable[[int], list[Run]], experiment: Path
) -> None:
    """The same table tells what was done."""
    first, second, third = old_runs(3)

    completed = run_program("prune", experiment, "--keep-last", "1", "--older-than", "30d", "--yes")

    assert completed.returncode == 0
    lines = completed.stdout.splitlines()
    assert lines[0].startswith("DONE")
    assert [line.split()[:2] for line in lines[1:]] == [
        ["pruned", first.id],
        ["pruned", second.id],
        ["kept", third.id],
    ]
    assert "old enough, not one of the last 1" in lines[1]
    assert re.match(r"Removed: 2, .* KiB\. Kept: 1\n\Z", completed.stderr)
    assert [path.name for path in (experiment / "runs").glob("*Z_*")] == [third.id]
    listed = json.loads(run_program("ls", experiment, "--json").stdout)["runs"]
    assert [run["status"] for run in listed] == ["pruned", "pruned", "finished"]
    assert run_program("verify", experiment).returncode == 0


def test_failed_takes_failed_runs_alone(
    run_program: RunProgram, start: Callable[..., Run], old_runs: Callable[[int], list[Run]], experiment: Path
) -> None:
    """An interrupted one has not failed."""
    failed, interrupted = start(experiment), start(experiment)
    failed.finish("failed", error="boom")
    interrupted.finish("interrupted")
    (latest,) = old_runs(1)

    runs = json.loads(run_program("prune", experiment, "--failed", "--json").stdout)["runs"]

    assert [(run["run"], run["action"]) for run in runs] == [
        (failed.id, "take"),
        (interrupted.id, "keep"),
        (latest.id, "keep"),
    ]
    assert runs[1]["reason"] == "interrupted, not failed"


def test_what_ended_today_stays(run_program: RunProgram, finish_runs: FinishRuns, experiment: Path) -> None:
    """Whatever is asked for."""
    first, _ = finish_runs(experiment, 2)

    completed = run_program("prune", experiment, "--keep-last", "0", "--yes")

    assert completed.returncode == 0
    assert re.search(rf"kept +{first.id} .* it ended \d+ s ago, which is less than a day", completed.stdout)
    assert first.path.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected at least one condition, found none\nHINT: say which runs may go"),
        (["--yes"], "expected at least one condition, found none\nHINT: say which runs may go"),
        (["--older-than", "soon"], "expected --older-than to be a length of time such as 90m, 6h, 30d or 4w"),
        (["--older-than", "2026-12-01"], "expected --older-than to be a length of time"),
        (["--keep-last", "-1"], "Invalid value for '--keep-last'"),
        (["--keep-last", "some"], "Invalid value for '--keep-last'"),
    ],
)
def test_wrong_use_removes_nothing(
    run_program: RunProgram,
    old_runs: Callable[[int], list[Run]],
    snapshot: Callable[[Path], dict[str, int]],
    experiment: Path,
    options: list[str],
    message: str,
) -> None:
    """It ends with 2 and says what was expected."""
    old_runs(2)
    before = snapshot(experiment)

    completed = run_program("prune", experiment, *options)

    assert (completed.returncode, completed.stdout) == (2, "")
    assert message in completed.stderr
    assert snapshot(experiment) == before


def test_json_has_the_documented_keys(
    run_program: RunProgram, old_runs: Callable[[int], list[Run]], experiment: Path
) -> None:
    """In this order, on the page too."""
    first, _ = old_runs(2)

    document = json.loads(run_program("prune", experiment, "--keep-last", "1", "--json").stdout)

    assert (document["format"], document["experiment"], document["is_plan"]) == (1, str(experiment), True)
    run = document["runs"][0]
    assert (run["run"], run["status"], run["action"]) == (first.id, "finished", "take")
    assert run["bytes"] == run["freed_bytes"] > 1000
    assert (run["has_checkpoints"], run["problem"]) == (False, None)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    section = page.partition("## `prune`\n")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)
    assert documented == [*document, *run]
    acted = json.loads(run_program("prune", experiment, "--keep-last", "1", "--json", "--yes").stdout)
    assert acted["is_plan"] is False
    assert [run["action"] for run in acted["runs"]] == ["pruned", "kept"]


def test_an_interrupted_prune_is_finished(
    run_program: RunProgram, old_runs: Callable[[int], list[Run]], experiment: Path
) -> None:
    """Whatever the conditions are then."""
    first, _ = old_runs(2)
    layout = ExperimentLayout.of(experiment)
    append_record(layout, ManifestRecord(PRUNED, first.id, format_time(time.time())), is_locked=True)
    (first.path / "run.json").unlink()

    plan = run_program("prune", experiment, "--keep-last", "9")
    done = run_program("prune", experiment, "--keep-last", "9", "--yes")

    assert re.search(rf"take +{first.id} +pruned .* an earlier prune was interrupted", plan.stdout)
    assert (plan.returncode, done.returncode) == (0, 0)
    assert not first.path.exists()
    assert run_program("verify", experiment).stderr.startswith("Nothing found")


def test_an_experiment_without_runs_has_an_empty_plan(run_program: RunProgram, experiment: Path) -> None:
    """That is no error."""
    (experiment / "runs").mkdir(parents=True)

    for options in ([], ["--yes"]):
        completed = run_program("prune", experiment, "--keep-last", "3", *options)
        assert (completed.returncode, completed.stdout) == (0, "")
        assert completed.stderr.endswith(": 0\n")


def test_a_directory_that_is_no_experiment_is_wrong_use(run_program: RunProgram, tmp_path: Path) -> None:
    """With `--yes` too."""
    completed = run_program("prune", tmp_path, "--keep-last", "3", "--yes")

    assert (completed.returncode, completed.stdout) == (2, "")
    assert "this directory holds no runs" in completed.stderr


def damage_manifest(experiment: Path) -> None:
    """Tear the last line, and put what is none in between."""
    with (experiment / "runs" / "manifest.jsonl").open("ab") as manifest:
        manifest.write(b'\xff\n{"format": 99}\n{"format": 1, "event": "sta')


def lose_latest(experiment: Path) -> None:
    """Put a directory of the user's in the place of the link."""
    (experiment / "latest").unlink()
    (experiment / "latest").mkdir()


def put_hostile_names(experiment: Path) -> None:
    """Put names that would act on a terminal beside the runs and into one."""
    (run, *_) = (experiment / "runs").glob("*Z_*")
    for name in ("\x1b[31m\n", "\udcff", "\u202e"):
        for directory in (run, experiment / "runs", experiment / "tensorboard"):
            directory.mkdir(exist_ok=True)
            (directory / name).touch()
    let_pass(experiment)


@pytest.mark.parametrize("bring_into", [damage_manifest, lose_latest, put_hostile_names])
def test_an_experiment_in_any_state_is_pruned(
    run_program: RunProgram,
    old_runs: Callable[[int], list[Run]],
    experiment: Path,
    bring_into: Callable[[Path], None],
) -> None:
    """The last run stays, the others go, and nothing acts on the terminal."""
    runs = old_runs(3)
    bring_into(experiment)

    completed = run_program("prune", experiment, "--keep-last", "1", "--yes")

    assert completed.returncode == 0
    assert not ACTING.search(completed.stdout + completed.stderr)
    assert [run.path.exists() for run in runs] == [False, False, True]


def test_hostile_host_and_status_are_shown_harmless(
    run_program: RunProgram, old_runs: Callable[[int], list[Run]], experiment: Path
) -> None:
    """Anyone in a shared directory can have written the manifest."""
    first, _ = old_runs(2)
    manifest = experiment / "runs" / "manifest.jsonl"
    manifest.write_text(
        re.sub(r'"outcome": "finished"', r'"outcome": "\\u001b[31mred"', manifest.read_text(), count=1)
    )

    completed = run_program("prune", experiment, "--failed")

    assert rf"keep  {first.id}  \x1b[31mred" in completed.stdout
    assert not ACTING.search(completed.stdout)


def can_mount() -> bool:
    """Tell whether a name space with mounts of its own can be had here."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount in a name space of its own")
def test_a_read_only_mount_can_be_planned_and_not_pruned(
    program: str, plain_environ: dict[str, str], old_runs: Callable[[int], list[Run]], experiment: Path
) -> None:
    """The plan is shown; with `--yes` the exit code is 3, and the runs are not called pruned."""
    first, _ = old_runs(2)
    script = (
        'mount --bind "$2" "$2" && mount -o remount,bind,ro "$2" || exit 99\n'
        '"$1" prune "$2" --keep-last 1 || exit 98\n"$1" prune "$2" --keep-last 1 --yes'
    )

    completed = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", program, str(experiment)],
        env=plain_environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert completed.returncode == 3, completed.stderr
    assert f"take  {first.id}" in completed.stdout
    assert "Traceback" not in completed.stderr
    assert "Read-only file system" in completed.stderr
    assert first.path.exists()


def test_many_runs_are_planned_at_once(
    run_program: RunProgram, old_runs: Callable[[int], list[Run]], experiment: Path
) -> None:
    """Ten thousand lines in the manifest, and nothing is looked into that stays anyway."""
    old_runs(2)
    manifest = experiment / "runs" / "manifest.jsonl"
    lines = [
        ManifestRecord(
            "started", f"2026-01-01_{n // 3600:02d}-{n // 60 % 60:02d}-{n % 60:02d}Z_aaaaa", format_time(1e9)
        )
        for n in range(10_000)
    ]
    for line in lines[:500]:
        (experiment / "runs" / line.run).mkdir()
    manifest.write_bytes(b"".join(line.encode() for line in lines) + manifest.read_bytes())
    let_pass(experiment)

    document = json.loads(run_program("prune", experiment, "--keep-last", "400", "--json").stdout)

    assert [run["action"] for run in document["runs"]] == ["take"] * 102 + ["keep"] * 400
    done = run_program("prune", experiment, "--keep-last", "400", "--yes")
    assert done.returncode == 0
    assert len(list((experiment / "runs").glob("*Z_*"))) == 400


def test_progress_is_shown_on_a_terminal_alone(
    program: str, plain_environ: dict[str, str], old_runs: Callable[[int], list[Run]], experiment: Path
) -> None:
    """It is taken away before the result."""
    old_runs(2)
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [program, "prune", str(experiment), "--keep-last", "1", "--yes"],
            env=plain_environ,
            stdout=subprocess.PIPE,
            stderr=theirs,
            check=False,
            timeout=60,
        )
        said = os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)

    assert done.returncode == 0
    assert "Removing runs: 1 of 1\r\x1b[2KRemoved: 1" in said
    assert b"Removing" not in done.stdout
