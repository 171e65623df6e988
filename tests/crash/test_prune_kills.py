"""SIGKILL, and errors of the file system, at every change that a prune makes; then the next prune."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment, start_run
from immutable_logs.pruning import plan_prune, prune_runs
from immutable_logs.retention import Conditions
from immutable_logs.verification import verify_experiment

ROOT = Path(__file__).parents[2]
CONDITIONS = Conditions(keep_last=1)

Prunes = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def disturbed_prunes(tmp_path: Path) -> Prunes:
    """The function that prunes once for every change, and disturbs that one; see `disturbed_prunes.py`."""

    def prune(how: str, number: int = 0) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.crash.disturbed_prunes", str(tmp_path), how, str(number)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return prune


def later() -> float:
    """The time in forty days."""
    return time.time() + 40 * 86400


def names(directory: Path) -> set[str]:
    """Return every name in a directory."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def final_state(experiment: Path) -> tuple[set[str], dict[str, str], set[str]]:
    """Return the names, the statuses, and which claims are marked."""
    marked = {path.name for path in experiment.glob("runs/.launches/*/*Z_*") if path.stat().st_size}
    return names(experiment), {run.id: run.status for run in Experiment(experiment).runs()}, marked


def problems(experiment: Path) -> list[str]:
    """Return what a verification finds that breaks a promise."""
    found = verify_experiment(Experiment(experiment), pause=lambda _: None)
    return [finding.kind for finding in found.problems]


def prune_again(experiment: Path) -> None:
    """Prune undisturbed."""
    opened = Experiment(experiment, now=later)
    plan = plan_prune(opened, CONDITIONS, now=later())
    assert [result.problem for result in prune_runs(opened, plan, CONDITIONS, now=later) if result.problem] == []


def assert_whole_or_pruned(case: dict[str, Any], template: Path) -> None:
    """See that every run is there with all its names, or is called pruned, and that the rest is as it was."""
    experiment = Path(case["experiment"])
    runs = Experiment(experiment).runs()
    assert [run.id for run in runs] == [run.id for run in Experiment(template).runs()], case
    assert runs[-1].status == "finished", case
    for run in runs:
        if run.status != "pruned":
            assert run.status == "finished", case
            assert names(run.path) == names(template / "runs" / run.id), case
    assert (experiment / "latest").resolve() == runs[-1].path, case
    if runs[1].status != "pruned":
        assert (experiment / "runs" / str(runs[1].resumed_from) / "checkpoints" / "last.ckpt").exists(), case


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_a_kill_leaves_whole_runs_and_pruned_ones_and_the_next_prune_finishes(
    disturbed_prunes: Prunes, tmp_path: Path, how: str
) -> None:
    """Whatever the step, the end is the same as without a kill, and a launch in between works."""
    cases = disturbed_prunes(how)
    expected = final_state(tmp_path / "undisturbed")
    assert len(cases) > (2 if how == "torn" else 40)
    assert sorted(expected[1].values()) == ["finished", "pruned", "pruned"]

    for case in cases:
        experiment = Path(case["experiment"])
        assert case["status"] == -signal.SIGKILL, case
        assert_whole_or_pruned(case, tmp_path / "template")
        assert problems(experiment) == [], case

        prune_again(experiment)
        assert final_state(experiment) == expected, case
        assert problems(experiment) == [], case
    start_run(experiment).finish()
    assert problems(experiment) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["error", "errors"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=lambda number: errno.errorcode[number])
def test_an_error_is_told_and_the_next_prune_finishes(
    disturbed_prunes: Prunes, tmp_path: Path, how: str, number: int
) -> None:
    """Once, or from there on: what could not be removed is named, and nothing is lost by halves."""
    cases = disturbed_prunes(how, number)
    expected = final_state(tmp_path / "undisturbed")
    told = 0

    for case in cases:
        experiment = Path(case["experiment"])
        assert case["status"] == 0, case
        assert_whole_or_pruned(case, tmp_path / "template")
        if final_state(experiment) != expected:
            assert case["problems"], case
            told += os.strerror(number) in " ".join(case["problems"])
        prune_again(experiment)
        assert final_state(experiment) == expected, case

    assert told > 20


def test_kills_reach_every_kind_of_change(disturbed_prunes: Prunes) -> None:
    """The steps are those that a prune really makes."""
    done = " ".join(case["case"] for case in disturbed_prunes("before"))

    for part in ("write", "fsync", "unlink", "rmdir", "run.json", "rank-000000.json", "manifest.jsonl", "tensorboard"):
        assert part in done, part
