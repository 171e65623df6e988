"""Every command that only looks, on experiments in every state: no traceback, the right exit code, nothing changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs.run import Run

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
FinishRuns = Callable[[Path, int], list[Run]]

COMMANDS = {
    "ls": ["ls", "."],
    "ls --graph": ["ls", "--graph", "--long"],
    "ls --json": ["ls", "--json", "--status", "finished", "--since", "1d"],
    "show": ["show"],
    "show --graph": ["show", "--graph", "--json"],
    "path": ["path"],
    "logs": ["logs"],
    "logs --errors": ["logs", "--errors"],
    "logs --json": ["logs", "--json", "-n", "5"],
    "diff": ["diff", "latest", "latest", "--full"],
    "prune": ["prune", "--keep-last", "0"],
    "tensorboard": ["tensorboard", "."],
    "tensorboard --json": ["tensorboard", "--json", "--per-run"],
    "report": ["report", "-o", "-"],
}


def make_whole(experiment: Path) -> None:
    """Leave the experiment as it is."""


def make_no_runs(experiment: Path) -> None:
    """Leave nothing but the directory of the runs."""
    shutil.rmtree(experiment / "runs")
    (experiment / "latest").unlink()
    (experiment / "runs").mkdir()


def make_damaged_manifest(experiment: Path) -> None:
    """Tear lines, mix in what is no text, and other formats."""
    with (experiment / "runs" / "manifest.jsonl").open("ab") as manifest:
        manifest.write(
            b'{"format": 1, "ev\n\x00\x00\n\xff\xfe\n{"format": 99, "event": "started"}\n[]\n"text"\n1e999\n'
        )


def make_lost_manifest(experiment: Path) -> None:
    """Lose the index."""
    (experiment / "runs" / "manifest.jsonl").unlink()


def make_foreign_latest(experiment: Path) -> None:
    """Put a directory of the user's where the link would be."""
    (experiment / "latest").unlink()
    (experiment / "latest").mkdir()


def make_dangling_latest(experiment: Path) -> None:
    """Let the link lead to a run that was never there."""
    (experiment / "latest").unlink()
    (experiment / "latest").symlink_to("runs/2026-12-01_02-28-15Z_zzzzz")


def make_hostile_names(experiment: Path) -> None:
    """Put files of every kind among the runs, under names that would act on a terminal."""
    for directory in (experiment, experiment / "runs", experiment / "latest", experiment / "tensorboard"):
        directory.mkdir(exist_ok=True)
        for name in ("\x1b[31m\n[red]", "\udcff", "-rf", "events.out.tfevents.\x1b]0;x\x07"):
            (directory / name).write_bytes(b"x")
    os.mkfifo(experiment / "latest" / "events.out.tfevents.pipe")
    (experiment / "tensorboard" / "loop").symlink_to(".")


STATES: dict[str, tuple[Callable[[Path], None], int]] = {
    "whole": (make_whole, 0),
    "no runs": (make_no_runs, 2),
    "damaged manifest": (make_damaged_manifest, 0),
    "lost manifest": (make_lost_manifest, 0),
    "foreign latest": (make_foreign_latest, 2),
    "dangling latest": (make_dangling_latest, 2),
    "hostile names": (make_hostile_names, 0),
}
"""How an experiment is brought into a state, and the exit code of commands that look for its latest run there."""


@pytest.mark.parametrize("state", list(STATES))
def test_no_state_of_an_experiment_is_a_traceback(
    run_program: RunProgram,
    finish_runs: FinishRuns,
    snapshot: Callable[[Path], dict[str, int]],
    experiment: Path,
    state: str,
) -> None:
    """Whatever lies in the experiment, each command ends with a code that is documented, and alters nothing."""
    finish_runs(experiment, 2)
    bring_into, code_of_latest = STATES[state]
    bring_into(experiment)
    before = {name: os.lstat(experiment / name).st_mtime_ns for name in snapshot(experiment)}

    for name, arguments in COMMANDS.items():
        completed = run_program(*arguments, cwd=experiment)

        needs_latest = name.startswith(("show", "path", "logs", "diff"))
        assert completed.returncode == (code_of_latest if needs_latest else 0), (name, completed.stderr)
        assert "Traceback" not in completed.stderr, name
        assert not set(completed.stdout + completed.stderr) & set("\x1b\x07"), name
    assert {name: os.lstat(experiment / name).st_mtime_ns for name in snapshot(experiment)} == before


@pytest.mark.parametrize("name", list(COMMANDS))
def test_no_experiment_is_wrong_use(run_program: RunProgram, tmp_path: Path, name: str) -> None:
    """Where there is no experiment, every command ends with 2, prints no data and says what to name."""
    completed = run_program(*COMMANDS[name], cwd=tmp_path)

    assert (completed.returncode, completed.stdout) == (2, "")
    assert "HINT: name the directory that holds `runs/`" in completed.stderr


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_directory_that_cannot_be_read_is_not_wrong_use(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, name: str
) -> None:
    """What was named is right but cannot be looked at: 3, with the path."""
    finish_runs(experiment, 1)
    manifest = experiment / "runs" / "manifest.jsonl"
    manifest.unlink()
    manifest.mkdir()

    completed = run_program(*COMMANDS[name], cwd=experiment)

    assert (completed.returncode, completed.stdout) == (3, "")
    assert str(manifest) in completed.stderr
