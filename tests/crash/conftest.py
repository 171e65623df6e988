"""What the tests of kills and of failing file systems share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment, start_run
from tests.conftest import shown_by_latest

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).parent / "disturbed_launches.py"


@pytest.fixture(autouse=True)
def without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not ask git for the commit at each of some thousand launches."""
    monkeypatch.setenv("PATH", "/nowhere")


@dataclass(frozen=True)
class Case:
    """A launch that was disturbed at one operation.

    Attributes:
        case: Which operation, and how, in words.
        experiment: Where it was launched.
        status: How the process ended; negative for a signal.
        told: The run joined, the error and the warnings, if the launch lived to tell.
    """

    case: str
    experiment: Path
    status: int
    told: dict[str, Any] | None


@pytest.fixture
def disturbed_launches(tmp_path: Path) -> Callable[..., list[Case]]:
    """The function that launches once for every operation, and disturbs that one; see `disturbed_launches.py`."""

    def launch(state: str, how: str, number: int = 0) -> list[Case]:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(tmp_path), state, how, str(number)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [Case(**{**line, "experiment": Path(line["experiment"])}) for line in lines]

    return launch


@pytest.fixture
def assert_recovers(snapshot: Callable[[Path], dict[str, int]]) -> Callable[[Case, set[str]], None]:
    """The function that looks at what a disturbed launch left, starts the next one, and looks again.

    Takes the case and the runs that were there before.
    """

    def check(case: Case, earlier: set[str]) -> None:
        experiment, what = case.experiment, case.case
        shown = shown_by_latest(experiment)
        if earlier:
            assert shown is not None, what
        if shown is not None:
            assert json.loads((shown / "run.json").read_bytes())["run"], what
        listed = {}
        if (experiment / "runs").is_dir():
            listed = {run.id: run.status for run in Experiment(experiment).runs()}
        assert earlier <= listed.keys(), what
        assert {listed[run] for run in earlier} <= {"finished"}, what
        for link in [path for path in experiment.rglob("*") if path.is_symlink()]:
            assert link.exists(), f"{what}: {link} dangles"

        before = snapshot(experiment) if experiment.exists() else {}
        following = start_run(experiment)
        following.finish()
        assert before.items() <= snapshot(experiment).items(), what
        assert following.id not in earlier, what
        assert json.loads((following.path / "run.json").read_bytes())["process"]["pid"] == os.getpid(), what
        assert shown_by_latest(experiment) == following.path.resolve(), what
        runs = Experiment(experiment).runs()
        assert {run.id for run in runs} >= listed.keys() | {following.id}, what
        assert Experiment(experiment).find("latest").status == "finished", what

    return check
