"""torchrun starts the workers anew after one has died: which run they come to, by when it died and who noticed.

The death is a real SIGKILL at a known moment (`scripts/one_rank_dies.py`). Where NeMo's handling of SIGTERM counts the
ranks are trainings, otherwise they only join (`scripts/join.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment

if TYPE_CHECKING:
    from immutable_logs.catalog import RunSummary
    from tests.nemo.launchers.conftest import Ended, Launches, Started

TORCHRUN = ("-m", "torch.distributed.run", "--max-restarts=2", "--monitor-interval=0.1")
STATIC_AGENT = (*TORCHRUN, "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1")
C10D_AGENT = (*TORCHRUN, "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=exp")
STOP = ("stop_before_fit=true", "exp_manager.log_every_rank=true")


def _ranks(run: RunSummary) -> list[int]:
    """The ranks that have joined a run."""
    return sorted(int(entry.stem.removeprefix("rank-")) for entry in run.path.glob("ranks/*/*"))


def _returned(*ended: Ended) -> list[str]:
    """The run that each worker that lived to print it has got, workers before and after the restart."""
    return sorted(path for each in ended for path in each.values("LOG_DIR"))


def _problems(launches: Launches) -> list[Any]:
    """What `verify` finds that is no leftover of the killed workers; its exit code must agree."""
    program = Path(sys.executable).with_name("immutable-logs")
    completed = subprocess.run(
        [program, "verify", launches.experiment, "--json"],
        env=launches.environment,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    problems = [each for each in json.loads(completed.stdout)["findings"] if each["severity"] == "problem"]
    assert completed.returncode == (1 if problems else 0)
    return problems


def _sees_that_one_rank_landed_in_the_older_run(
    launches: Launches, rank: int, found: RunSummary, home: RunSummary
) -> None:
    (problem,) = _problems(launches)
    assert (problem["kind"], problem["run"]) == ("rank-in-older-run", found.id)
    assert (problem["details"]["rank"], problem["details"]["belongs_to"]) == (rank, home.id)
    assert "HINT" in problem["message"]


def _start_static_agents(launches: Launches, port: int, story: str) -> list[Started]:
    return [
        launches.start(
            launcher=(*STATIC_AGENT, f"--master-port={port}", f"--node-rank={node}"),
            environment={"STORY": story},
            script="join.py",
        )
        for node in range(2)
    ]


def _start_c10d_agents(
    launches: Launches, port: int, story: str, *overrides: str, script: str = "train.py"
) -> list[Started]:
    return [
        launches.start(
            "+trainer.num_nodes=2",
            *STOP,
            *overrides,
            launcher=(*C10D_AGENT, f"--rdzv-endpoint=127.0.0.1:{port}"),
            environment={"STORY": story},
            script=script,
        )
        for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("story", "ranks_of_first", "status_of_first"),
    [
        ("1 joined joined wait", [0, 1], "interrupted"),
        ("1 start joined wait", [0], "interrupted"),
        ("0 start joined wait", [1], "running"),
        ("1 start start wait", None, None),
    ],
    ids=["after all joined", "before it joined", "rank zero before it joined", "before anybody joined"],
)
def test_workers_of_one_agent(
    launches: Launches, free_port: int, story: str, ranks_of_first: list[int] | None, status_of_first: str | None
) -> None:
    """All restarted workers agree on a fresh run; where nobody had joined before, it is the only one."""
    ended = launches.run(
        "trainer.devices=2",
        *STOP,
        launcher=(*TORCHRUN, "--nnodes=1", "--nproc-per-node=2", f"--master-port={free_port}"),
        environment={"STORY": story},
    )
    assert set(ended.values("TORCHELASTIC_RUN_ID")) == {"none"}
    *before, last = Experiment(launches.experiment).runs()
    assert (_ranks(last), last.status, last.world_size) == ([0, 1], "finished", 2)
    assert [(_ranks(run), run.status) for run in before] == (
        [] if ranks_of_first is None else [(ranks_of_first, status_of_first)]
    )
    assert _returned(ended) == [str(run.path) for run in (*before, last) for _ in _ranks(run)]
    for run in (*before, last):
        assert sorted(log.name for log in run.path.glob("nemo_log_globalrank-*")) == [
            f"nemo_log_globalrank-{rank}_localrank-{rank}.txt" for rank in _ranks(run)
        ]
    assert _problems(launches) == []


def test_a_launch_id_does_not_hide_a_restart(launches: Launches, free_port: int) -> None:
    """Restarted workers inherit the id of those before; the agent's count of restarts still tells them apart."""
    ended = launches.run(
        launcher=(*TORCHRUN, "--nnodes=1", "--nproc-per-node=2", f"--master-port={free_port}"),
        environment={"STORY": "1 start joined wait", "IMMUTABLE_LOGS_LAUNCH_ID": "job 7"},
        script="join.py",
    )
    first, second = Experiment(launches.experiment).runs()
    assert (_ranks(first), _ranks(second)) == ([0], [0, 1])
    assert _returned(ended) == [str(first.path)] + [str(second.path)] * 2
    assert _problems(launches) == []


@pytest.mark.parametrize("agents", [1, 2])
def test_a_rank_zero_that_waits_for_the_process_group_ends_at_once(
    launches: Launches, free_port: int, agents: int
) -> None:
    """SIGTERM reaches it inside a call of torch, where no handler written in Python gets its turn.

    Else the agent gives it 30 seconds and then kills it, and the end of its run is on record nowhere.
    """
    story = "1 start joined fit"
    if agents == 1:
        options = ("--nnodes=1", "--nproc-per-node=2", f"--master-port={free_port}")
        started = [launches.start("trainer.devices=2", launcher=(*TORCHRUN, *options), environment={"STORY": story})]
    else:
        started = _start_c10d_agents(launches, free_port, story, "stop_before_fit=false")
    ended = [each.end() for each in started]
    assert "closing signal SIGTERM" in "".join(each.output for each in ended)
    assert "Unable to shutdown process" not in "".join(each.output for each in ended)
    first, second = Experiment(launches.experiment).runs()
    assert (_ranks(first), first.status) == ([0], "interrupted")
    assert (_ranks(second), second.status) == ([0, 1], "finished")
    assert _returned(*ended) == [str(first.path)] + [str(second.path)] * 2


@pytest.mark.parametrize(
    ("story", "ranks_of_first"),
    [("1 joined joined wait", [0, 1]), ("1 start joined wait", [0]), ("1 start start wait", None)],
    ids=["after all joined", "before it joined", "before anybody joined"],
)
def test_workers_of_two_agents(
    launches: Launches, free_port: int, story: str, ranks_of_first: list[int] | None
) -> None:
    """The agents' store and all variables stay the same, and still the restarted workers agree on a fresh run.

    A rank that had not joined passes over the first run because rank zero has recorded that SIGTERM ended it.
    """
    ended = [each.end() for each in _start_c10d_agents(launches, free_port, story)]
    *before, last = Experiment(launches.experiment).runs()
    assert (_ranks(last), last.status, last.world_size) == ([0, 1], "finished", 2)
    assert [(_ranks(run), run.status) for run in before] == (
        [] if ranks_of_first is None else [(ranks_of_first, "interrupted")]
    )
    assert _returned(*ended) == [str(run.path) for run in (*before, last) for _ in _ranks(run)]
    assert _problems(launches) == []


def test_rank_zero_of_two_agents_dies_before_it_joins(launches: Launches, free_port: int) -> None:
    """Nobody could record the end of the run that rank one had joined: the new rank zero lands there; `verify` tells.

    Nothing that a worker can see without waiting tells the two groups of workers apart.
    """
    ended = [each.end() for each in _start_c10d_agents(launches, free_port, "0 start joined wait", script="join.py")]
    first, second = Experiment(launches.experiment).runs()
    assert (_ranks(first), _ranks(second)) == ([0, 1], [1])
    assert _returned(*ended) == [str(first.path)] * 2 + [str(second.path)]
    _sees_that_one_rank_landed_in_the_older_run(launches, 0, first, second)


def test_both_static_agents_restart_after_all_joined(launches: Launches, free_port: int) -> None:
    """Each agent restarts its own worker, without a word to the other; both come to the second run."""
    ended = [each.end() for each in _start_static_agents(launches, free_port, "1 joined joined die")]
    first, second = Experiment(launches.experiment).runs()
    assert (_ranks(first), _ranks(second)) == ([0, 1], [0, 1])
    assert _returned(*ended) == [str(first.path)] * 2 + [str(second.path)] * 2
    assert _problems(launches) == []


def test_one_static_agent_restarts_a_rank_that_had_not_joined(launches: Launches, free_port: int) -> None:
    """The other agent's worker lives on in the run, to which the new one comes: they are one launch, and agree."""
    ended = [each.end() for each in _start_static_agents(launches, free_port, "1 start joined stay")]
    (run,) = Experiment(launches.experiment).runs()
    assert _ranks(run) == [0, 1]
    assert _returned(*ended) == [str(run.path)] * 2


def test_both_static_agents_restart_before_one_had_joined(launches: Launches, free_port: int) -> None:
    """Rank zero left no record of its end: the new rank one lands in the run before; `verify` tells."""
    ended = [each.end() for each in _start_static_agents(launches, free_port, "1 start joined die")]
    first, second = Experiment(launches.experiment).runs()
    assert (_ranks(first), _ranks(second)) == ([0, 1], [0])
    assert _returned(*ended) == [str(first.path)] * 2 + [str(second.path)]
    _sees_that_one_rank_landed_in_the_older_run(launches, 1, first, second)
