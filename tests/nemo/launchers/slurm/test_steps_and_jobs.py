"""Which trainings are one launch in a real Slurm: steps, arrays, batch scripts, requeues, and torchrun inside."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from immutable_logs import Experiment

if TYPE_CHECKING:
    from immutable_logs.catalog import RunSummary
    from tests.nemo.launchers.slurm.conftest import Slurm

ONLY_START = ("stop_before_fit=true",)
TWO_RANKS = ("trainer.devices=1", "+trainer.num_nodes=2", *ONLY_START)
TWO_TASKS = "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --overcommit"


def _joined_by(slurm: Slurm, paths: list[str], *, ranks: int, runs: int) -> list[RunSummary]:
    """Return the runs, each of which so many ranks say that they joined, and have an entry in."""
    found = Experiment(slurm.launches.experiment).runs()
    assert Counter(paths) == {str(run.path): ranks for run in found}
    assert [(run.status, run.ranks_joined, run.world_size) for run in found] == [("finished", ranks, ranks)] * runs
    assert Experiment(slurm.launches.experiment).latest == found[-1]
    return found


def test_steps_one_after_the_other_and_at_once(slurm: Slurm) -> None:
    """Four steps of one job, the last two at the same time: a run each."""
    train = f"{TWO_TASKS} --exact {slurm.command(*TWO_RANKS)}"
    job = slurm.submit(train, train, f"{train} &", f"{train} &", "wait", options=("--nodes=2", "--ntasks-per-node=2"))
    job.end()
    runs = _joined_by(slurm, job.values("LOG_DIR"), ranks=2, runs=4)
    assert [run.source for run in runs] == ["Slurm step"] * 4


def test_trainings_one_after_the_other_in_one_step(slurm: Slurm) -> None:
    """Nothing in the environment tells them apart: the second finds its ranks' places taken."""
    train = slurm.command(*TWO_RANKS)
    step = f"{TWO_TASKS} bash -c '{train.replace(chr(39), chr(34))} && {train.replace(chr(39), chr(34))}'"
    job = slurm.submit(step, options=("--nodes=2", "--ntasks-per-node=1"))
    job.end()
    _joined_by(slurm, job.values("LOG_DIR"), ranks=2, runs=2)


def test_job_array(slurm: Slurm) -> None:
    """Four elements at once in one experiment: a run each, and no rank in another's."""
    job = slurm.submit(
        f"srun --ntasks=1 {slurm.command(*ONLY_START, '+note=element-$SLURM_ARRAY_TASK_ID').replace(chr(39), '')}",
        options=("--array=0-3", "--ntasks=1"),
    )
    slurm.wait_for_all()
    runs = _joined_by(slurm, job.values("LOG_DIR"), ranks=1, runs=4)
    arguments = sorted((run.path / "cmd-args.log").read_text(encoding="utf-8").split()[-1] for run in runs)
    assert arguments == [f"+note=element-{element}" for element in range(4)]


def test_batch_script_without_srun(slurm: Slurm) -> None:
    """The job's variables are there, but no step: each training is a launch of its own."""
    train = slurm.command(*ONLY_START)
    job = slurm.submit(train, train, options=("--ntasks=1",))
    job.end()
    runs = _joined_by(slurm, job.values("LOG_DIR"), ranks=1, runs=2)
    assert [run.job for run in runs] == [job.id] * 2


def test_shell_in_an_allocation(slurm: Slurm) -> None:
    """Two trainings from the shell that `salloc` gives: a run each."""
    train = slurm.command(*ONLY_START)
    ended = slurm.launches.run(
        *ONLY_START,
        program=("salloc", "--quiet", "--nodes=1", "bash", "-c", f'{train} && "$0" "$@"'),
        environment=slurm.environment,
    )
    _joined_by(slurm, ended.values("LOG_DIR"), ranks=1, runs=2)


def test_requeue_without_the_environment(slurm: Slurm) -> None:
    """With `--export=NONE` nothing of the submission reaches the job: a requeue is still a fresh run."""
    train = slurm.command(*TWO_RANKS)
    over = slurm.launches.directory / "first-training-is-over"
    exports = [f"export {name}={value}" for name, value in slurm.environment.items() if name.startswith("MASTER")]
    job = slurm.submit(
        *exports,
        "export GLOO_SOCKET_IFNAME=lo",
        f"{TWO_TASKS} {train}",
        # Only the first time it waits for the requeue.
        f'[ -e "{over}" ] || {{ touch "{over}"; sleep 300; }}',
        options=("--export=NONE", "--requeue", "--nodes=2", "--ntasks-per-node=1"),
    )
    job.wait_until(over.exists, "the first training is over")
    job.requeue()
    job.start_again()
    job.end()
    runs = _joined_by(slurm, job.values("LOG_DIR"), ranks=2, runs=2)
    assert [run.job for run in runs] == [job.id] * 2
