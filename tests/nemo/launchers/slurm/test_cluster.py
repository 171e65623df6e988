"""The Slurm of these tests ends all that it started, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.nemo.launchers.slurm.conftest import Slurm

CLUSTER = Path(__file__).parents[3] / "slurm" / "cluster.py"


def _processes_of(directory: str) -> list[str]:
    """Return the command lines of all processes that have the directory in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if directory.encode() in environment.read_bytes():
                found.append(environment.with_name("cmdline").read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return found


def test_it_ends_its_daemons_and_jobs_and_no_other_cluster(slurm: Slurm) -> None:
    """A job that would go on for long ends with the command; the cluster of the session stays up."""
    command = 'dirname "$SLURM_CONF"; srun sleep 600 >&2 & while ! squeue -h -t R | grep -q .; do sleep 0.1; done'
    finished = subprocess.run(
        [sys.executable, str(CLUSTER), "bash", "-c", command], capture_output=True, text=True, timeout=100, check=False
    )
    assert finished.returncode == 0, finished.stderr
    directory = finished.stdout.strip()
    assert directory
    assert not Path(directory).exists()
    assert _processes_of(directory) == []
    assert slurm.run("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle", "idle"]


def test_it_ends_when_whoever_started_it_is_killed(slurm: Slurm) -> None:
    """The command sees the end of its input, ends, and the cluster with it."""
    holder = "import subprocess, sys; subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE).wait()"
    command = [sys.executable, str(CLUSTER), "sh", "-c", 'dirname "$SLURM_CONF"; exec cat']
    with subprocess.Popen(
        [sys.executable, "-c", holder, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        directory = process.stdout.readline().strip()
        assert len(_processes_of(directory)) >= 4
        process.kill()
    deadline = time.monotonic() + 60
    while _processes_of(directory) or Path(directory).exists():
        assert time.monotonic() < deadline, _processes_of(directory)
        time.sleep(0.1)
