"""Real trainings in a real Slurm: every rank in one run, requeues without loss."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.nemo.launchers.slurm.conftest import Slurm

TWO_NODES = ("trainer.devices=2", "+trainer.num_nodes=2")
ONE_RANK = ("srun", "--nodes=1", "--ntasks=1")


PROGRAM = Path(sys.executable).with_name("immutable-logs")


def _shown(experiment: Path, reference: str) -> dict[str, Any]:
    command = [str(PROGRAM), "show", reference, "-e", str(experiment), "--json"]
    document: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return document


@contextmanager
def _following(experiment: Path, output: Path) -> Iterator[None]:
    """Follow the logs of the latest run as a user does, and end that with Ctrl-C."""
    with output.open("wb") as file:
        process = subprocess.Popen([str(PROGRAM), "logs", "--follow"], cwd=experiment, stdout=file, stderr=file)
    try:
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()


def test_two_nodes_with_two_tasks_each(slurm: Slurm) -> None:
    """One run that all four ranks joined, and a log of its own for each, under its true ranks."""
    ended = slurm.train(*TWO_NODES, NEMO_TESTING="True")
    (run,) = Experiment(slurm.launches.experiment).runs()
    assert ended.values("LOG_DIR") == [str(run.path)] * 4
    assert ended.values("PROCESS_GROUP") == ["False"] * 4
    assert ended.values("STEP") == ["4"] * 4
    assert (run.status, run.ranks_joined, run.world_size, run.source) == ("finished", 4, 4, "Slurm step")
    for rank in range(4):
        log = run.path / f"nemo_log_globalrank-{rank}_localrank-{rank % 2}.txt"
        said = re.findall(r"rank (\d) says goodbye", log.read_text(encoding="utf-8"))
        assert said == [str(rank)]
    assert len(list(run.path.glob("nemo_log_globalrank-*"))) == 4
    assert len(list(run.path.glob("events.out.tfevents.*"))) == 1


def test_stock_loses_rank_logs(slurm: Slurm) -> None:
    """The control: stock takes every task for local rank zero, and their logs go into fewer files."""
    ended = slurm.train(*TWO_NODES, "exp_manager.log_layout=moving", "stop_before_fit=true", NEMO_TESTING="True")
    assert ended.values("LOG_DIR") == [str(slurm.launches.experiment)] * 4
    logs = [path.name for path in slurm.launches.experiment.rglob("nemo_log_globalrank-*")]
    assert logs
    assert "nemo_log_globalrank-1_localrank-1.txt" not in logs


def test_requeued_while_training(slurm: Slurm) -> None:
    """The second run resumes from the first one's last checkpoint, `show` links them, and `logs --follow` goes on."""
    experiment = slurm.launches.experiment
    train = slurm.command(*TWO_NODES, "trainer.max_epochs=4", "seconds_per_step='${oc.decode:${oc.env:SLOW}}'")
    job = slurm.submit(
        # Slow until it is requeued.
        'export NEMO_TESTING=True SLOW=$([ "${SLURM_RESTART_COUNT:-0}" = 0 ] && echo 1.0 || echo 0.0)',
        f"srun --ntasks-per-node=2 --overcommit {train}",
        options=("--requeue", "--nodes=2", "--ntasks-per-node=2"),
    )
    job.wait_until(lambda: any(experiment.glob("checkpoints/*-last.ckpt")), "a checkpoint is saved")
    followed = slurm.launches.directory / "followed.txt"
    with _following(experiment, followed):
        job.requeue()
        job.start_again()
        job.end()
        deadline = time.monotonic() + 60
        while followed.read_text(encoding="utf-8").count(" says goodbye") < 4 and time.monotonic() < deadline:
            time.sleep(0.2)
    first, second = Experiment(experiment).runs()
    before, switch, after = followed.read_text(encoding="utf-8").partition(f"shows the next run now: {second.id}\n")
    assert switch
    assert {f"rank {rank} says goodbye" for rank in range(4)} == set(re.findall(r"rank \d says goodbye", after))
    assert re.findall(r"^\[\d\] ", before, re.MULTILINE)
    assert sorted(job.values("LOG_DIR")) == [str(first.path)] * 4 + [str(second.path)] * 4
    assert first.status in {"interrupted", "unknown"}
    assert second.status == "finished"
    assert [str(second.step)] * 4 == job.values("STEP")
    assert [run.ranks_joined for run in (first, second)] == [4, 4]
    resumed = Experiment(experiment).describe(second).run_record
    assert resumed is not None
    assert f"Restored all states from the checkpoint at {experiment / str(resumed.checkpoint)}" in job.text
    assert Experiment(experiment).latest == second
    shown = {run.id: _shown(experiment, run.id) for run in (first, second)}
    assert shown[second.id]["resumed_from"] == first.id
    assert shown[first.id]["resumed_by"] == [second.id]
    assert shown[second.id]["job"] == shown[first.id]["job"]
    assert shown[first.id]["job"] == job.id


@pytest.mark.parametrize("layout", ["immutable", "moving"])
def test_lightning_requeues_at_sigusr1(slurm: Slurm, layout: str) -> None:
    """The requeued run loads `hpc_ckpt_1.ckpt`, saved at the signal; stock moves it away and starts from nothing."""
    experiment = slurm.launches.experiment
    train = slurm.command(
        f"exp_manager.log_layout={layout}",
        "+exp_manager.create_checkpoint_callback=false",
        "seconds_per_step='${oc.decode:${oc.env:SLOW}}'",
    )
    job = slurm.submit(
        'export SLOW=$([ "${SLURM_RESTART_COUNT:-0}" = 0 ] && echo 2.0 || echo 0.0)',
        f"srun --ntasks=1 {train}",
        options=("--requeue", "--nodes=1", "--ntasks-per-node=1"),
    )
    job.signal_near_the_limit(tasks=1)
    job.start_again()
    job.end()
    (saved,) = experiment.rglob("hpc_ckpt_*.ckpt")
    restored = re.findall(r"Restored all states from the checkpoint at (\S+)", job.text)
    if layout == "moving":
        assert not restored
        return
    first, second = Experiment(experiment).runs()
    assert restored == [str(saved)]
    assert (first.status, second.status, second.step) == ("interrupted", "finished", 16)
    assert second.resumed_from == first.id
