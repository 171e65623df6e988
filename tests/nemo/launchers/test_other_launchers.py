"""Slurm, Open MPI and plain variables: a real process for each rank, with the environment of a real launch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment
from immutable_logs.manifest import read_manifest

if TYPE_CHECKING:
    from tests.nemo.launchers.conftest import Launches

ENVIRONMENTS = Path(__file__).parents[2] / "launchers" / "environments"


def _captured(name: str) -> list[dict[str, str]]:
    document = json.loads((ENVIRONMENTS / f"{name}.json").read_text(encoding="utf-8"))
    ranks: list[dict[str, str]] = document["ranks"]
    return ranks


def _sees_one_run(
    launches: Launches, environments: list[dict[str, str]], overrides: tuple[str, ...], ranks: list[tuple[int, int]]
) -> None:
    """Start all ranks at once; `ranks` are the true pairs of global and local rank."""
    ended = launches.run_ranks(environments, "stop_before_fit=true", "exp_manager.log_every_rank=true", *overrides)
    (run,) = Experiment(launches.experiment).runs()
    assert [each.values("LOG_DIR") for each in ended] == [[str(run.path)]] * len(ranks)
    assert [each.values("PROCESS_GROUP") for each in ended] == [["False"]] * len(ranks)
    logs = [run.path / f"nemo_log_globalrank-{rank}_localrank-{local}.txt" for rank, local in ranks]
    assert sorted(run.path.glob("nemo_log_globalrank-*")) == sorted(logs)
    for log in logs:
        lines = log.read_text(encoding="utf-8").splitlines()
        assert sum("Experiments will be logged at" in line for line in lines) == 1
    events = [(record.event, record.run) for record in read_manifest(Experiment(launches.experiment).layout).records]
    assert events == [("started", run.id), ("finished", run.id)]
    assert run.world_size == len(ranks)
    assert sorted(entry.name for entry in run.path.glob("ranks/*/*")) == [
        f"rank-{rank:06d}.json" for rank, _ in sorted(ranks)
    ]


def test_slurm_step(launches: Launches) -> None:
    """Four tasks on two nodes; `srun` sets no `LOCAL_RANK`, and each task has a log of its own all the same."""
    environments = _captured("slurm_srun")
    ranks = [(int(rank["SLURM_PROCID"]), int(rank["SLURM_LOCALID"])) for rank in environments]
    assert sorted(ranks) == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert not any("LOCAL_RANK" in rank for rank in environments)
    _sees_one_run(launches, environments, ("trainer.devices=2", "+trainer.num_nodes=2"), ranks)


@pytest.mark.parametrize("name", ["openmpi_container_1", "sbatch_openmpi_onenode_1"])
def test_open_mpi(launches: Launches, name: str) -> None:
    """`mpirun` in a container, and inside a Slurm job, where the ranks carry the batch script's Slurm variables."""
    environments = _captured(name)
    ranks = [(int(rank["OMPI_COMM_WORLD_RANK"]), int(rank["OMPI_COMM_WORLD_LOCAL_RANK"])) for rank in environments]
    # Lightning knows Open MPI only with `mpi4py`, and without it takes each rank for a training on one device.
    _sees_one_run(launches, environments, ("trainer.devices=1",), ranks)


def _plain_variables(port: int) -> list[dict[str, str]]:
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "NODE_RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        for rank in range(2)
    ]


def test_plain_variables(launches: Launches, free_port: int) -> None:
    """`RANK`, `WORLD_SIZE` and the address of the first node, as Kubernetes operators and shell scripts set them."""
    environments = _plain_variables(free_port)
    _sees_one_run(launches, environments, ("trainer.devices=1", "+trainer.num_nodes=2"), [(0, 0), (1, 0)])


def test_the_same_plain_variables_again_are_another_run(launches: Launches, free_port: int) -> None:
    """Nothing but the places taken in the first run tells the launches apart; each rank says so, and what to set."""
    for _ in range(2):
        for ended in launches.run_ranks(
            _plain_variables(free_port),
            "+trainer.num_nodes=2",
            "stop_before_fit=true",
            "exp_manager.log_every_rank=true",
        ):
            assert "The launch is known only from MASTER_ADDR and MASTER_PORT" in ended.output
            assert "HINT: set IMMUTABLE_LOGS_LAUNCH_ID" in ended.output
    runs = Experiment(launches.experiment).runs()
    assert [(run.status, run.ranks_joined, run.world_size) for run in runs] == [("finished", 2, 2)] * 2
    for run in runs:
        assert sorted(log.name for log in run.path.glob("nemo_log_globalrank-*")) == [
            f"nemo_log_globalrank-{rank}_localrank-0.txt" for rank in range(2)
        ]
