"""Launches of which `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` are all that is known: real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from immutable_logs import Experiment
from immutable_logs.agreement import JOIN_WINDOW

if TYPE_CHECKING:
    from immutable_logs.catalog import RunSummary
    from tests.conftest import Child, Children

START = """
from immutable_logs import start_run
run = start_run(sys.argv[1])
report(run=run.id)
"""
START_AND_LIVE = f"""{START}
print("ready", flush=True)
time.sleep(100)
"""
WARNING = (
    "The launch is known only from MASTER_ADDR and MASTER_PORT: another launch can have the same. "
    "HINT: set IMMUTABLE_LOGS_LAUNCH_ID to the same text on all ranks, another for each launch\n"
)
ADDRESS = {"MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}


def _start(children: Children, experiment: Path, rank: int, code: str = START, **variables: str) -> Child:
    environ = {**ADDRESS, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", **variables}
    return children.start(code, experiment, environ=environ)


def _launch(children: Children, experiment: Path, **variables: str) -> list[str]:
    """Start both ranks at once; return the run that each has got."""
    started = [_start(children, experiment, rank, **variables) for rank in range(2)]
    return [child.report()["run"] for child in started]


def _launch_and_kill_rank_zero(children: Children, experiment: Path, **variables: str) -> None:
    """Start a launch of which rank zero is killed after it has joined, and rank one before it has."""
    child = _start(children, experiment, 0, START_AND_LIVE, **variables)
    assert child.popen.stdout is not None
    assert child.popen.stdout.readline()
    child.wait_until_ready()
    child.popen.kill()
    child.popen.wait()


def _ranks(run: RunSummary) -> list[int]:
    return sorted(int(entry.stem.removeprefix("rank-")) for entry in run.path.glob("ranks/*/*"))


def _problems(experiment: Path) -> list[Any]:
    """What `verify` finds that is no leftover of the killed processes; its exit code must agree."""
    program = Path(sys.executable).with_name("immutable-logs")
    completed = subprocess.run(
        [program, "verify", experiment, "--json"], stdout=subprocess.PIPE, encoding="utf-8", check=False
    )
    problems = [each for each in json.loads(completed.stdout)["findings"] if each["severity"] == "problem"]
    assert completed.returncode == (1 if problems else 0)
    return problems


def _age_claims(experiment: Path, seconds: float) -> None:
    """Let every claim be made so much earlier, by the clock of the file server, which is what is compared."""
    claims = [path for path in experiment.glob("runs/.launches/*/*") if path.is_symlink()]
    assert claims
    for claim in claims:
        made = claim.lstat().st_mtime - seconds
        os.utime(claim, (made, made), follow_symlinks=False)


def test_two_launches_have_a_run_each(children: Children, experiment: Path) -> None:
    """The second launch has the same variables, and finds its places in the first run taken."""
    launched = [_launch(children, experiment) for _ in range(2)]
    runs = Experiment(experiment).runs()
    assert launched == [[run.id] * 2 for run in runs]
    assert [_ranks(run) for run in runs] == [[0, 1]] * 2
    assert _problems(experiment) == []


def test_the_log_names_the_rule_and_the_variable_that_makes_it_safe(children: Children, experiment: Path) -> None:
    """Every rank says how its launch is known, that another can have the same, and what to set."""
    for child in [_start(children, experiment, rank) for rank in range(2)]:
        _, errors = child.communicate()
        assert WARNING in errors
    (run,) = Experiment(experiment).runs()
    assert run.source == "MASTER_ADDR and MASTER_PORT"


def test_with_a_launch_id_there_is_nothing_to_warn_of(children: Children, experiment: Path) -> None:
    """The warning goes away with its cause."""
    _, errors = _start(children, experiment, 0, IMMUTABLE_LOGS_LAUNCH_ID="a").communicate()
    assert "known only" not in errors


def test_a_launch_after_one_that_was_killed_half_joined(children: Children, experiment: Path) -> None:
    """Within the join window nothing tells the two apart: rank one lands in the run before, and `verify` tells it."""
    _launch_and_kill_rank_zero(children, experiment)
    zero, one = _launch(children, experiment)
    first, second = Experiment(experiment).runs()
    assert (one, zero) == (first.id, second.id)
    assert (_ranks(first), _ranks(second)) == ([0, 1], [0])
    (problem,) = _problems(experiment)
    assert (problem["kind"], problem["run"]) == ("rank-in-older-run", first.id)
    assert (problem["details"]["rank"], problem["details"]["belongs_to"]) == (1, second.id)
    assert "HINT" in problem["message"]
    assert "IMMUTABLE_LOGS_LAUNCH_ID" in problem["message"]


def test_a_launch_after_the_join_window(children: Children, experiment: Path) -> None:
    """A run that was claimed longer ago than the join window is passed over, whoever had joined it."""
    _launch_and_kill_rank_zero(children, experiment)
    _age_claims(experiment, JOIN_WINDOW + 5)
    launched = _launch(children, experiment)
    first, second = Experiment(experiment).runs()
    assert launched == [second.id] * 2
    assert (_ranks(first), _ranks(second)) == ([0], [0, 1])
    assert _problems(experiment) == []


def test_a_launch_just_inside_the_join_window(children: Children, experiment: Path) -> None:
    """A rank that is that late still comes to the run of its launch."""
    _launch_and_kill_rank_zero(children, experiment)
    _age_claims(experiment, JOIN_WINDOW - 60)
    late = _start(children, experiment, 1).report()["run"]
    (run,) = Experiment(experiment).runs()
    assert (late, _ranks(run)) == (run.id, [0, 1])


def test_a_launch_after_one_whose_end_was_recorded(children: Children, experiment: Path) -> None:
    """The first launch failed before rank one had joined, and said so: the second passes its run over at once."""
    failing = _start(children, experiment, 0, f"{START}\nraise RuntimeError('no data')")
    failing.reports(status=1)
    launched = _launch(children, experiment)
    first, second = Experiment(experiment).runs()
    assert (first.status, launched) == ("failed", [second.id] * 2)
    assert (_ranks(first), _ranks(second)) == ([0], [0, 1])
    assert _problems(experiment) == []


def test_launch_ids_tell_launches_apart_whatever_dies(children: Children, experiment: Path) -> None:
    """With another `IMMUTABLE_LOGS_LAUNCH_ID` for each launch a half-joined one misleads nobody."""
    for number in range(3):
        _launch_and_kill_rank_zero(children, experiment, IMMUTABLE_LOGS_LAUNCH_ID=f"killed-{number}")
        launched = _launch(children, experiment, IMMUTABLE_LOGS_LAUNCH_ID=f"whole-{number}")
        *_, killed, whole = Experiment(experiment).runs()
        assert launched == [whole.id] * 2
        assert (_ranks(killed), _ranks(whole)) == ([0], [0, 1])
    assert len(Experiment(experiment).runs()) == 6
    assert _problems(experiment) == []
