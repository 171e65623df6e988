"""The `mpirun` of Open MPI and of MPICH themselves, as far as they are installed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment

if TYPE_CHECKING:
    from immutable_logs.catalog import RunSummary
    from tests.nemo.launchers.conftest import Launches

STOP = ("stop_before_fit=true", "exp_manager.log_every_rank=true")


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian and Ubuntu: apt-get install {package})")
    return found


def _mpirun_of_open_mpi(ranks: int) -> tuple[str, ...]:
    program = _program("mpirun.openmpi", "openmpi-bin")
    return (program, "--allow-run-as-root", "--oversubscribe", "-np", str(ranks))


def _mpirun_of_mpich(ranks: int) -> tuple[str, ...]:
    return (_program("mpirun.mpich", "mpich"), "-np", str(ranks))


def _ranks(run: RunSummary) -> list[int]:
    return sorted(int(entry.stem.removeprefix("rank-")) for entry in run.path.glob("ranks/*/*"))


def _sees_a_log_of_each_rank(run: RunSummary, ranks: int) -> None:
    """All ranks are on one node; `mpirun` mixes what they print, so that only their logs tell what each has got."""
    logs = {f"nemo_log_globalrank-{rank}_localrank-{rank}.txt" for rank in range(ranks)}
    assert {log.name for log in run.path.glob("nemo_log_globalrank-*")} == logs
    for name in logs:
        lines = (run.path / name).read_text(encoding="utf-8").splitlines()
        (line,) = (each for each in lines if "Experiments will be logged at" in each)
        assert line.endswith(f" {run.path}")


def test_open_mpi_twice(launches: Launches) -> None:
    """Four ranks come to one run, each with a log of its own under its true ranks; the same command to another run."""
    for _ in range(2):
        launches.run(*STOP, program=_mpirun_of_open_mpi(4))
    runs = Experiment(launches.experiment).runs()
    assert [(run.status, run.ranks_joined, run.world_size, run.source) for run in runs] == [
        ("finished", 4, 4, "Open MPI")
    ] * 2
    for run in runs:
        assert _ranks(run) == [0, 1, 2, 3]
        _sees_a_log_of_each_rank(run, 4)
    assert os.readlink(launches.experiment / "latest") == f"runs/{runs[1].id}"


def test_open_mpi_with_a_bare_environment(launches: Launches) -> None:
    """The ranks need nothing but what `mpirun` itself gives them."""
    launches.environment = {"PATH": os.environ["PATH"]}
    for _ in range(3):
        launches.run(program=_mpirun_of_open_mpi(4), script="join.py")
    runs = Experiment(launches.experiment).runs()
    assert [(_ranks(run), run.world_size) for run in runs] == [([0, 1, 2, 3], 4)] * 3


@pytest.mark.parametrize("name", ["mpirun.mpich", "mpiexec.hydra"])
def test_mpich_is_refused_with_what_to_do(launches: Launches, name: str) -> None:
    """Its ranks have nothing that tells one launch from the next: each says so, and nothing is written."""
    started = launches.start(*STOP, program=(_program(name, "mpich"), "-np", "2"))
    started.popen.wait(timeout=240)
    output = started.output.read_text(encoding="utf-8", errors="replace")
    assert started.popen.returncode != 0, output
    assert "of 2, and nothing in the environment tells which launch that is" in output
    assert "HINT: set IMMUTABLE_LOGS_LAUNCH_ID to the same text on all ranks" in output
    assert not launches.experiment.exists()


def test_mpich_with_a_launch_id(launches: Launches) -> None:
    """With the variable that the hint names the ranks agree, under their true ranks, and each launch has its run."""
    for number in range(2):
        launches.run(
            *STOP,
            program=_mpirun_of_mpich(2),
            environment={"IMMUTABLE_LOGS_LAUNCH_ID": f"job-{number}"},
        )
    runs = Experiment(launches.experiment).runs()
    assert [(run.status, run.ranks_joined, run.world_size) for run in runs] == [("finished", 2, 2)] * 2
    for run in runs:
        _sees_a_log_of_each_rank(run, 2)
