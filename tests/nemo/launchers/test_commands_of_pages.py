"""The commands of the documentation that start trainings, as they stand but for the number of ranks."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment
from tests.project.test_commands_of_pages import ELSEWHERE, TRAININGS, commands_of

if TYPE_CHECKING:
    from tests.nemo.launchers.conftest import Launches, Started

ROOT = Path(__file__).parents[3]
AS_ROOT_ON_FEW_CORES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


@pytest.fixture
def training(launches: Launches) -> Path:
    """A directory with `train.py`, its configuration, and what the page means by `mpirun` and `mpiexec`."""
    launches.copy_scripts()
    programs = launches.directory / "programs"
    programs.mkdir()
    for name, program in {"mpirun": "mpirun.openmpi", "mpiexec": "mpiexec.hydra"}.items():
        found = shutil.which(program)
        if found is not None:
            (programs / name).write_text(f'#!/bin/sh\nexec {found} "$@"\n', encoding="utf-8")
            (programs / name).chmod(0o755)
    return launches.directory


def start(launches: Launches, command: str) -> Started:
    """Start a command of a page in a shell, up to where the training would begin."""
    path = os.pathsep.join(
        (str(launches.directory / "programs"), str(Path(sys.executable).parent), os.environ["PATH"])
    )
    environment = {**AS_ROOT_ON_FEW_CORES, "PATH": path}
    return launches.start_command(["bash", "-c", f"{command} stop_before_fit=true"], environment=environment)


def few_ranks(command: str, port: int) -> str:
    """Return a command with two ranks in all, on this host."""
    command = re.sub(r"(-np?|--nproc-per-node[= ]|trainer\.devices=)( ?)\d+", r"\1\g<2>2", command)
    if "--nnodes=2" in command:
        command = command.replace("--nproc-per-node=2", "--nproc-per-node=1").replace("devices=2", "devices=1")
    return command.replace("node1:29400", f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("page", "begin", "ranks"),
    [
        ("mpi.md", "mpirun", 2),
        ("mpi.md", "IMMUTABLE_LOGS_LAUNCH_ID=", 2),
        ("torchrun.md", "torchrun --standalone", 2),
        ("torchrun.md", "torchrun --nnodes=2", 2),
        ("wandb-and-mlflow.md", "python train.py", 1),
    ],
)
def test_trainings_of_the_pages(
    launches: Launches, training: Path, free_port: int, page: str, begin: str, ranks: int
) -> None:
    """One run with all ranks, for each."""
    (command,) = [each for each in commands_of(ROOT / "docs" / "how-to" / page) if each.startswith(begin)]
    program = re.search(r"\b(mpirun|mpiexec)\b", command)
    if program and not (training / "programs" / program[0]).exists():
        pytest.skip(f"{program[0]} is not installed (Debian and Ubuntu: apt-get install openmpi-bin mpich)")
    agents = [start(launches, few_ranks(command, free_port)) for _ in range(2 if "--nnodes=2" in command else 1)]
    for agent in agents:
        agent.end()

    (run,) = Experiment(launches.experiment).runs()
    assert (run.status, run.ranks_joined) == ("finished", ranks)


def test_the_trainings_are_those_of_the_pages() -> None:
    """What tests/project expects to be run here is in the list above."""
    parameters = test_trainings_of_the_pages.pytestmark[0].args[1]  # type: ignore[attr-defined]
    expected = {(page, begin) for (page, begin), test in ELSEWHERE.items() if test == TRAININGS}
    assert {(f"docs/how-to/{page}", begin) for page, begin, _ in parameters} == expected
