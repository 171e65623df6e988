"""Rank zero, which alone keeps the records, is killed before it has written anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment

if TYPE_CHECKING:
    from tests.nemo.launchers.conftest import Ended, Launches

WORLD_SIZE = 3
STORY = {"STORY": "0 start joined go"}
STOP = ("stop_before_fit=true", "exp_manager.log_every_rank=true")
FAILED, KILLED = 1, -9


def _by_torchrun(launches: Launches, environment: Mapping[str, str], status: int) -> list[Ended]:
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD_SIZE}")
    return [launches.start(*STOP, launcher=launcher, environment=environment).end(status=FAILED if status else 0)]


def _by_hand(launches: Launches, environment: Mapping[str, str], status: int) -> list[Ended]:
    launch_id = {"IMMUTABLE_LOGS_LAUNCH_ID": "first" if environment else "second"}
    started = [
        launches.start(
            *STOP,
            environment={
                **environment,
                **launch_id,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(WORLD_SIZE),
            },
        )
        for rank in range(WORLD_SIZE)
    ]
    return [each.end(status=0 if rank else status) for rank, each in enumerate(started)]


def _listed(launches: Launches) -> list[Any]:
    program = Path(sys.executable).with_name("immutable-logs")
    completed = subprocess.run(
        [program, "ls", launches.experiment, "--json"], env=launches.environment, stdout=subprocess.PIPE, check=True
    )
    runs: list[Any] = json.loads(completed.stdout)["runs"]
    return runs


@pytest.mark.parametrize("launch", [_by_torchrun, _by_hand], ids=["torchrun", "launch id"])
def test_rank_zero_is_killed_before_it_joins(launches: Launches, launch: Any) -> None:
    """The others do not wait for it, their logs are in a run that is listed, and the next launch has its own run."""
    ended = launch(launches, STORY, KILLED)
    paths = [Path(path) for each in ended for path in each.values("LOG_DIR")]
    assert len(paths) == WORLD_SIZE - 1
    (orphaned,) = set(paths)
    # Far less than the five seconds that stock lets every other rank sleep.
    assert max(float(seconds) for each in ended for seconds in each.values("SECONDS")) < 4
    logs = [f"nemo_log_globalrank-{rank}_localrank-{rank}.txt" for rank in range(1, WORLD_SIZE)]
    assert sorted(entry.name for entry in orphaned.iterdir()) == [*logs, "ranks"]
    for log in logs:
        assert f"Experiments will be logged at {orphaned}" in (orphaned / log).read_text(encoding="utf-8")
    (listed,) = _listed(launches)
    assert (listed["run"], listed["path"], listed["ranks_joined"]) == (orphaned.name, str(orphaned), WORLD_SIZE - 1)
    assert listed["status"] in {"running", "unknown"}
    assert not os.path.lexists(launches.experiment / "latest")

    following = [path for each in launch(launches, {}, 0) for path in each.values("LOG_DIR")]
    first, second = Experiment(launches.experiment).runs()
    assert (first.path, following) == (orphaned, [str(second.path)] * WORLD_SIZE)
    assert (second.status, second.ranks_joined, second.world_size) == ("finished", WORLD_SIZE, WORLD_SIZE)
    assert os.readlink(launches.experiment / "latest") == f"runs/{second.id}"
