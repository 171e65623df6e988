"""torchrun in each of its forms: all ranks of a launch come to one run, and the same command again to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment

if TYPE_CHECKING:
    from immutable_logs.catalog import RunSummary
    from tests.nemo.launchers.conftest import Ended, Launches

TORCHRUN = ("-m", "torch.distributed.run")
QUICK = ("trainer.max_epochs=1", "exp_manager.log_every_rank=true")


def _rank_logs(run: RunSummary) -> list[str]:
    return sorted(log.name for log in run.path.glob("nemo_log_globalrank-*"))


def _sees_one_finished_run(launches: Launches, *ended: Ended) -> None:
    (run,) = Experiment(launches.experiment).runs()
    paths = [path for each in ended for path in each.values("LOG_DIR")]
    assert paths == [str(run.path)] * 2
    assert [state for each in ended for state in each.values("PROCESS_GROUP")] == ["False"] * 2
    assert (run.status, run.ranks_joined, run.world_size, run.step) == ("finished", 2, 2, 4)
    assert run.source == "torchrun's agent store"


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--standalone",),
        ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=exp"),
    ],
    ids=["default", "standalone", "c10d"],
)
def test_one_agent(launches: Launches, free_port: int, options: tuple[str, ...]) -> None:
    """Two ranks of one agent agree, each with a log of its own."""
    launcher = (*TORCHRUN, "--nproc-per-node=2", *(option.format(port=free_port) for option in options))
    ended = launches.run("trainer.devices=2", *QUICK, launcher=launcher)
    _sees_one_finished_run(launches, ended)
    (run,) = Experiment(launches.experiment).runs()
    assert _rank_logs(run) == [f"nemo_log_globalrank-{rank}_localrank-{rank}.txt" for rank in range(2)]


def test_the_same_static_command_again_is_another_run(launches: Launches, free_port: int) -> None:
    """Address, port and run id are the same in both launches, and the run id is the text `none`."""
    launcher = (*TORCHRUN, "--nnodes=1", "--nproc-per-node=2", f"--master-port={free_port}")
    first = launches.run("trainer.devices=2", *QUICK, launcher=launcher)
    second = launches.run("trainer.devices=2", launcher=launcher)
    for ended in (first, second):
        assert ended.values("TORCHELASTIC_RUN_ID") == ["none"] * 2
        assert ended.values("MASTER_PORT") == [str(free_port)] * 2
        assert len(ended.values("LOG_DIR")) == 2
    experiment = Experiment(launches.experiment)
    runs = experiment.runs()
    assert [run.path for run in runs] == [first.run, second.run]
    assert [run.ranks_joined for run in runs] == [2, 2]
    assert runs[1].resumed_from == runs[0].id
    # Told apart by their keys, not only because the ranks' places in the first run are taken.
    records = [experiment.describe(run).run_record for run in runs]
    assert len({record.launch_key for record in records if record}) == 2


def test_restarted_workers_are_another_run(launches: Launches) -> None:
    """The agent starts all workers anew after a failure; they agree on a fresh run."""
    launcher = (*TORCHRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=1")
    ended = launches.run(
        "trainer.devices=2",
        "fail_at=0",
        # Only the first attempt gets to `fit`: after a restart gloo's own connections fail now and then.
        "stop_before_fit='${oc.decode:${oc.env:TORCHELASTIC_RESTART_COUNT}}'",
        launcher=launcher,
    )
    first, second = Experiment(launches.experiment).runs()
    assert sorted(ended.values("LOG_DIR")) == [str(first.path)] * 2 + [str(second.path)] * 2
    for run in (first, second):
        assert sorted(entry.name for entry in run.path.glob("ranks/*/*")) == ["rank-000000.json", "rank-000001.json"]
    assert second.status == "finished"
    # The agent may end rank zero before it has recorded the failure, which rank one has noticed first.
    assert first.status in {"failed", "interrupted", "unknown"}


@pytest.mark.parametrize(
    "options",
    [
        ("--node-rank={node}", "--master-addr=127.0.0.1", "--master-port={port}"),
        ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=exp"),
    ],
    ids=["static", "c10d"],
)
def test_two_agents(launches: Launches, free_port: int, options: tuple[str, ...]) -> None:
    """One rank on each of two nodes; which node gets which rank is the rendezvous's choice."""
    started = [
        launches.start(
            "+trainer.num_nodes=2",
            *QUICK,
            launcher=(
                *TORCHRUN,
                "--nnodes=2",
                "--nproc-per-node=1",
                *(option.format(node=node, port=free_port) for option in options),
            ),
        )
        for node in range(2)
    ]
    ended = [each.end() for each in started]
    _sees_one_finished_run(launches, *ended)
    (run,) = Experiment(launches.experiment).runs()
    assert _rank_logs(run) == [f"nemo_log_globalrank-{rank}_localrank-0.txt" for rank in range(2)]
