"""Nodes that have a directory of their own where the launch expects a shared one."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Children


def can_mount() -> bool:
    """Tell whether this user may make a mount name space and mount in it."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs the right to mount, as root has it")

NODE = """
    import ctypes, logging, subprocess
    from immutable_logs import Experiment, start_run

    experiment, node, ranks_per_node = sys.argv[1], int(sys.argv[2]), 2
    os.environ["PATH"] += ":/bin:/sbin:/usr/sbin"
    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:  # CLONE_NEWNS
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", os.path.dirname(experiment)], check=True)

    class Texts(logging.Handler):
        def __init__(self):
            super().__init__(logging.WARNING)
            self.texts = []
        def emit(self, record):
            self.texts.append(record.getMessage())

    def be_rank(local_rank):
        rank = node * ranks_per_node + local_rank
        os.environ.update(SLURM_PROCID=str(rank), SLURM_LOCALID=str(local_rank), SLURM_NODEID=str(node))
        texts = Texts()
        logging.getLogger("immutable_logs").addHandler(texts)
        for _ in range(2):
            before = time.monotonic()
            run = start_run(experiment)
            seconds = time.monotonic() - before
            run.finish()
            report(rank=rank, node=node, run=run.id, seconds=seconds, warnings=texts.texts)
            texts.texts = []

    gate()
    pids = []
    for local_rank in range(ranks_per_node):
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                be_rank(local_rank)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    report(
        node=node,
        runs=[[run.id, run.status, run.ranks_joined, run.world_size] for run in Experiment(experiment).runs()],
        has_latest=os.path.lexists(os.path.join(experiment, "latest")),
    )
"""

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}


@needs_mounts
def test_each_node_gets_a_run_of_its_own_and_one_line_tells_it(children: Children, tmp_path: Path) -> None:
    """Two nodes of a Slurm step, a RAM disk each: nobody waits, nothing fails, the second node's first rank warns."""
    experiment = tmp_path / "disk" / "experiment"
    experiment.parent.mkdir()
    nodes = [children.start(NODE, experiment, node, environ=STEP, is_gated=True) for node in range(2)]
    children.open_gate()
    lines: list[Any] = [line for node in nodes for line in node.reports()]
    ranks = sorted((line for line in lines if "rank" in line), key=lambda line: int(line["rank"]))
    first, second = (line for line in lines if "runs" in line)

    assert [line["rank"] for line in ranks] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert max(line["seconds"] for line in ranks) < 9.0, "waited for a lock, or for a name to become visible"
    found = [{line["run"] for line in ranks if line["node"] == node} for node in range(2)]
    assert [len(runs) for runs in found] == [2, 2]
    assert not found[0] & found[1]
    assert [run[1:] for run in first["runs"]] == [["finished", 2, 4]] * 2
    assert [run[2:] for run in second["runs"]] == [[2, None]] * 2
    assert (first["has_latest"], second["has_latest"]) == (True, False)
    assert list(experiment.parent.iterdir()) == []

    (warned,) = (line for line in ranks if line["warnings"])
    (text,) = warned["warnings"]
    assert warned["rank"] == 2
    assert f"second node of the launch, where {experiment} is on a file system of one machine (tmpfs)" in text
    assert "HINT: choose a directory on a file system that the nodes share" in text
