"""Start a launch of many ranks as processes forked from one parent, a process for each node between them.

Started by the tests as a program, so that the ranks are forked from a process without threads and cost no start of an
interpreter each. Their environment is that of a recorded Slurm step, with the numbers of this launch. A node has a
host name of its own where the right to make a UTS name space is there. Prints one JSON object for each rank.

    simulated_launch.py EXPERIMENT ENVIRONMENT NODES RANKS_PER_NODE HOW

ENVIRONMENT is a file of recorded environments. HOW is ``at-once`` (one signal lets all ranks go) or ``in-stages``:
first rank zero, then the first rank of each further directory of rank entries, then all others at once.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from immutable_logs.layout import RANKS_PER_SHARD
from immutable_logs.run import start_run

BEGIN = "/begin"
STARTED = "/started"
END = "/end"
"""Names that are not there: asking for them leaves a mark in a trace."""

CLONE_NEWUTS = 0x04000000


def step_environment(recorded: Path, rank: int, nodes: int, ranks_per_node: int) -> dict[str, str]:
    """Return what Slurm gives a rank of a step of that size."""
    template: dict[str, str] = json.loads(recorded.read_text(encoding="utf-8"))["ranks"][0]
    node, local_rank = divmod(rank, ranks_per_node)
    world_size = str(nodes * ranks_per_node)
    return {
        **template,
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local_rank),
        "SLURMD_NODENAME": f"node{node}",
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), str(nodes)),
        **dict.fromkeys(("SLURM_NPROCS", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"), world_size),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), f"{ranks_per_node}(x{nodes})"),
    }


def stage_of(rank: int, how: str) -> int:
    """Return with which signal a rank is let go."""
    if how == "at-once" or rank == 0:
        return 0
    return 1 if rank % RANKS_PER_SHARD == 0 else 2


def be_rank(rank: int, experiment: Path, environment: dict[str, str], gate: int, answers: int) -> int:
    """Wait for the signal, start and finish, and tell about it; return the exit status."""
    os.environ.update(environment)
    os.environ["PATH"] = "/nowhere"  # git is not asked for the commit
    os.write(answers, b'{"ready": true}\n')
    if not os.read(gate, 1):
        return 1  # the parent is gone
    os.path.lexists(BEGIN)
    run = start_run(experiment)
    os.path.lexists(STARTED)
    run.finish()
    os.path.lexists(END)
    told: dict[str, Any] = {
        "rank": rank,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "run": run.id,
        "generation": run.generation,
        "source": run.launch.source,
    }
    os.write(answers, json.dumps(told).encode("ascii") + b"\n")  # one write: all share the pipe
    return 0


def name_host(name: str) -> None:
    """Give this process and its children a host name of their own, where that is allowed."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS) == 0:
        socket.sethostname(name)


def fork(function: Any, *arguments: Any) -> int:
    """Call a function in a child that ends with what it returns, and return its pid."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            status = function(*arguments)
        finally:
            if sys.exc_info()[0] is not None:
                traceback.print_exc()
            os._exit(status)
    return pid


def wait_for(pids: list[int]) -> int:
    """Wait for the end of all, and return the highest exit status; -9 and the like count as 71."""
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return max(status if status >= 0 else 71 for status in statuses)


def main() -> int:
    """Start the launch, let the stages go one after the other, and pass on what the ranks tell."""
    experiment, recorded, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[5]
    nodes, ranks_per_node = int(sys.argv[3]), int(sys.argv[4])
    stages = [stage_of(rank, how) for rank in range(nodes * ranks_per_node)]
    gates = [os.pipe() for _ in range(3)]
    answers = os.pipe()

    def be_node(node: int) -> int:
        for _, writing in gates:
            os.close(writing)
        name_host(f"node{node}")
        ranks = range(node * ranks_per_node, (node + 1) * ranks_per_node)
        return wait_for(
            [
                fork(
                    be_rank,
                    rank,
                    experiment,
                    step_environment(recorded, rank, nodes, ranks_per_node),
                    gates[stages[rank]][0],
                    answers[1],
                )
                for rank in ranks
            ]
        )

    pids = [fork(be_node, node) for node in range(nodes)]
    os.close(answers[1])
    with os.fdopen(answers[0], encoding="ascii") as stream:
        for _ in stages:
            stream.readline()  # ready
        for stage, (_, writing) in enumerate(gates):
            count = stages.count(stage)
            os.write(writing, b"." * count)
            for _ in range(count):
                print(stream.readline(), end="")
    sys.stdout.flush()
    return wait_for(pids)


if __name__ == "__main__":
    sys.exit(main())
