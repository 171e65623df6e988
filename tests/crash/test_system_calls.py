"""A kill, an error and an interruption at every system call of a launch, also at those that Python makes itself."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import start_run
from tests.conftest import shown_by_latest
from tests.crash.conftest import PROGRAM, Case

HANG_GUARD = 60.0
STRACE = shutil.which("strace") or "strace"


def can_inject() -> bool:
    """Tell whether there is strace and it may disturb what it traces; some containers forbid it."""
    command = [STRACE, "-o", "/dev/null", "-e", "inject=getcwd:error=EIO", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not can_inject(), reason="needs strace 4.22 or newer and the right to trace"),
]


def launch(experiment: Path, trace: Path, *options: str) -> tuple[int, dict[str, Any] | None]:
    """Launch under strace; return how the process ended and what it told, if it lived to tell."""
    done = subprocess.run(
        [STRACE, "-y", "-s", "4096", "-o", str(trace), *options, sys.executable, str(PROGRAM), str(experiment)],
        # The number of calls before the launch must be the same each time.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else None


def calls_below(experiment: Path, trace: Path) -> list[tuple[str, int]]:
    """Return the system calls on paths of an experiment, in order: the name, and which one of that name."""
    counts: Counter[str] = Counter()
    calls = []
    for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
        name = re.match(r"\w+(?=\()", line)
        if name is not None:
            counts[name[0]] += 1
            # Its own arguments and what it tells name the experiment too.
            if str(experiment) in line and not line.startswith(("execve(", "write(1<")):
                calls.append((name[0], counts[name[0]]))
    return calls


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """An experiment with two runs that have ended."""
    for _ in range(2):
        start_run(tmp_path / "template").finish()
    return tmp_path / "template"


@pytest.fixture
def disturb_each_call(tmp_path: Path, template: Path) -> Callable[[str], list[Case]]:
    """The function that launches once for every system call, and disturbs that one with strace's words for it."""

    def prepare(name: str) -> Path:
        # Names of one length, so that all launches write as much.
        return Path(shutil.copytree(template, tmp_path / name / "experiment", symlinks=True))

    def disturb(how: str) -> list[Case]:
        undisturbed = prepare("all")
        launch(prepare("one"), tmp_path / "warm-up")
        launch(undisturbed, tmp_path / "undisturbed", "-e", "trace=%file,%desc")
        calls = calls_below(undisturbed, tmp_path / "undisturbed")

        def disturb_one(number: int) -> Case:
            name, index = calls[number]
            experiment, trace = prepare(f"{number:03d}"), tmp_path / f"{number:03d}.trace"
            status, told = launch(experiment, trace, "-e", f"trace={name}", "-e", f"inject={name}:{how}:when={index}")
            lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
            disturbed = lines[-2:] if told is None else [line for line in lines if "(INJECTED)" in line]
            what = f"{how} at call {number}: {disturbed}".replace(str(experiment), "")
            assert any(str(experiment) in line for line in disturbed), what
            return Case(what, experiment, status, told)

        with ThreadPoolExecutor(os.cpu_count()) as executor:
            return list(executor.map(disturb_one, range(len(calls))))

    return disturb


def runs_of(template: Path) -> set[str]:
    """Return the ids of the runs that were there before."""
    return {path.name for path in (template / "runs").iterdir() if (path / "run.json").exists()}


def test_a_kill_at_any_system_call_needs_no_repair(
    disturb_each_call: Callable[[str], list[Case]], assert_recovers: Callable[..., None], template: Path
) -> None:
    """The next launch works, no earlier run is lost, and `latest` leads to a complete record."""
    cases = disturb_each_call("signal=KILL")
    assert len(cases) > 60
    for case in cases:
        assert case.status == -signal.SIGKILL, case.case
        assert_recovers(case, runs_of(template))


@pytest.mark.parametrize("name", ["EINTR", "EIO", "ESTALE"])
def test_an_error_at_any_system_call_is_told_or_overcome(
    disturb_each_call: Callable[[str], list[Case]], assert_recovers: Callable[..., None], template: Path, name: str
) -> None:
    """Without a run directory it is an error, from then on a warning; what needs neither is recorded in full."""
    number = getattr(errno, name)
    overcome = 0
    cases = disturb_each_call(f"error={name}")
    for case in cases:
        assert case.told is not None, case.case
        warnings = case.told["warnings"]
        if case.told["joined"] is None:
            assert os.strerror(number) in case.told["error"], case.case
            assert str(case.experiment) in case.told["error"], case.case
            assert warnings == [], case.case
        elif warnings:
            assert len(warnings) == 1, (case.case, warnings)
            assert "Training goes on" in warnings[0], case.case
            assert os.strerror(number) in warnings[0], case.case
        else:
            overcome += 1
            run = case.experiment / "runs" / case.told["joined"]
            assert (run / "finished.json").stat().st_size > 0, case.case
            assert shown_by_latest(case.experiment) == run, case.case
        assert_recovers(case, runs_of(template))
    assert overcome > 5
