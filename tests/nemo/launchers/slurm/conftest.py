"""A real Slurm with two nodes, on loopback, and jobs that train in it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.nemo.launchers.conftest import Ended, Launches, Started

CLUSTER = Path(__file__).parents[3] / "slurm" / "cluster.py"
HANG_GUARD = 200.0
UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED")
TWO_BY_TWO = ("srun", "--nodes=2", "--ntasks-per-node=2", "--overcommit")


@dataclass(frozen=True)
class Job:
    """A batch job that was submitted.

    Attributes:
        id: The job id.
        output: Where the script's output goes; requeues and the elements of an array append to it.
    """

    slurm: Slurm
    id: str
    output: Path

    @property
    def state(self) -> str:
        """The state that Slurm gives, as `RUNNING`."""
        return self._property("JobState")

    @property
    def text(self) -> str:
        """What the script has printed until now."""
        return self.output.read_text(encoding="utf-8", errors="replace") if self.output.exists() else ""

    def values(self, name: str) -> list[str]:
        """Return the rest of every line of the output that begins with a name and `=`."""
        return [line.partition("=")[2] for line in self.text.splitlines() if line.startswith(f"{name}=")]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; fails with the job's output if the job ends or hangs without it."""
        deadline = time.monotonic() + HANG_GUARD
        while not condition():
            goes_on = self.state in UNFINISHED and time.monotonic() < deadline
            assert goes_on or condition(), f"it never came that {what}\n{self.text[-6000:]}"
            time.sleep(0.2)

    def end(self, state: str = "COMPLETED") -> Job:
        """Wait for the end of the job, in a given state."""
        self.wait_until(lambda: self.state not in UNFINISHED, "the job ends")
        found = self.slurm.run("scontrol", "show", "job", self.id)
        assert f"JobState={state}" in found, (
            f"expected {state}, found {found}\n{self.text[-6000:]}\n{self.slurm.daemons_said()}"
        )
        return self

    def signal_near_the_limit(self, tasks: int) -> None:
        """Send SIGUSR1 to the tasks of the job's step, as Slurm does before the time limit, while they train.

        The steps of the training must take two seconds, so that the signal comes to all ranks in the same one.
        """
        ready = "Setting signal handlers"
        self.wait_until(lambda: self.text.count(ready) == tasks, f"Lightning says on {tasks} ranks: {ready}")
        time.sleep(1.0)
        self.slurm.run("scancel", "--signal=USR1", self.id)

    def requeue(self) -> None:
        """Put the job back into the queue, as a preemption does."""
        self.slurm.run("scontrol", "requeue", self.id)

    def start_again(self, restarts: int = 1) -> None:
        """Wait until the job has been requeued, and have it started: Slurm would hold it back for two minutes."""
        self.wait_until(lambda: int(self._property("Restarts")) >= restarts, "the job is requeued")
        self.wait_until(lambda: self.state != "COMPLETING", "the job's processes end")
        # The node's daemon cleans up a moment later, under the name that the job has again when it starts.
        spool = Path(self.slurm.environment["SLURM_CONF"]).parent
        self.wait_until(lambda: not list(spool.glob(f"*/job{int(self.id):05d}*")), "the nodes forget the job")
        if self.state == "PENDING":
            # A start in the second in which the nodes ended the job is refused ("Job credential revoked").
            self.slurm.run("scontrol", "update", f"jobid={self.id}", "StartTime=now+2")

    def _property(self, name: str) -> str:
        words = self.slurm.run("scontrol", "--oneliner", "show", "job", self.id).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))


@dataclass(frozen=True)
class Slurm:
    """Starts trainings in the cluster.

    Attributes:
        launches: Starts what is not a batch job, and knows the experiment.
        environment: What a process needs to talk to the cluster, and to train on a machine whose nodes are one host.
    """

    launches: Launches
    environment: dict[str, str]

    def run(self, *command: str) -> str:
        """Run one of Slurm's programs and return its output."""
        return subprocess.run(
            command,
            env={**self.launches.environment, **self.environment},
            cwd=self.launches.directory,
            capture_output=True,
            text=True,
            check=True,
            timeout=HANG_GUARD,
        ).stdout

    def daemons_said(self) -> str:
        """Return the end of what Slurm's daemons have logged."""
        logs = sorted((Path(self.environment["SLURM_CONF"]).parent / "log").glob("slurm*"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def start(self, *overrides: str, program: Sequence[str] = TWO_BY_TWO, **variables: str) -> Started:
        """Start a training with `srun` or another program."""
        return self.launches.start(*overrides, program=program, environment={**self.environment, **variables})

    def train(self, *overrides: str, program: Sequence[str] = TWO_BY_TWO, **variables: str) -> Ended:
        """Start a training and wait for its end."""
        return self.start(*overrides, program=program, **variables).end()

    def command(self, *overrides: str, launcher: Sequence[str] = ()) -> str:
        """Return the command that trains, as text for a script."""
        return shlex.join(self.launches.command(*overrides, launcher=launcher))

    def submit(self, *lines: str, options: Sequence[str] = ()) -> Job:
        """Submit a batch script of these lines."""
        script = self.launches.directory / "job.sh"
        script.write_text("\n".join(("#!/bin/bash", "#SBATCH --job-name=training", *lines, "")), encoding="utf-8")
        return self.submit_file(script, options=options)

    def submit_file(self, script: Path, *, options: Sequence[str] = ()) -> Job:
        """Submit a batch script."""
        output = self.launches.directory / "job.out"
        where = (f"--output={output}", "--open-mode=append")
        answer = self.run("sbatch", "--parsable", *where, *options, str(script))
        return Job(self, answer.strip().partition(";")[0], output)

    def wait_for_all(self) -> None:
        """Wait for the end of every job."""
        deadline = time.monotonic() + HANG_GUARD
        while jobs := self.run("squeue", "--noheader", "--format=%A %T").split():
            assert time.monotonic() < deadline, f"jobs that do not end: {jobs}"
            time.sleep(0.2)

    def end_all(self) -> None:
        """Cancel every job, and wait until none is left."""
        deadline = time.monotonic() + 30
        while jobs := self.run("squeue", "--noheader", "--format=%A").split():
            assert time.monotonic() < deadline, f"jobs that do not end: {jobs}"
            for how in (("--signal=KILL", "--full"), ()):
                subprocess.run(
                    ["scancel", *how, *jobs],
                    env={**self.launches.environment, **self.environment},
                    capture_output=True,
                    check=False,
                    timeout=30,
                )
            time.sleep(0.2)


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[str, str]]:
    """What must be in the environment to talk to a Slurm with two nodes, which is up for the whole session."""
    with subprocess.Popen(
        [sys.executable, str(CLUSTER), "sh", "-c", 'echo "$SLURM_CONF"; exec cat'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        configuration = process.stdout.readline().strip()
        if not configuration:
            _, said = process.communicate(timeout=60)
            if process.returncode == 3:
                pytest.skip(f"no Slurm on this machine. {said.strip()}")
            pytest.fail(f"Slurm did not start: {said}")
        # The end of its input ends the command, and that the cluster; also should this process die.
        yield {"SLURM_CONF": configuration}
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.fixture
def slurm(launches: Launches, cluster: dict[str, str], free_port: int) -> Iterator[Slurm]:
    """Starts trainings in a real Slurm; none of its jobs outlives the test."""
    # The names of the nodes lead nowhere: both are this host.
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # as in an activated environment
    slurm = Slurm(launches, {**cluster, **address, "PATH": path})
    try:
        yield slurm
    finally:
        slurm.end_all()
