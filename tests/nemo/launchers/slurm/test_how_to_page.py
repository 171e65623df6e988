"""What the pages of `docs/how-to/` tell to do under Slurm, as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from immutable_logs import Experiment
from tests.project.test_commands_of_pages import commands_of

if TYPE_CHECKING:
    from tests.nemo.launchers.slurm.conftest import Slurm

ROOT = Path(__file__).parents[4]


def test_the_script_trains_and_is_requeued_at_the_signal(slurm: Slurm) -> None:
    """Near the limit Slurm sends the signal that the script asks for; the second start continues."""
    directory = slurm.launches.directory
    configuration = slurm.launches.copy_scripts()
    text = configuration.read_text(encoding="utf-8")
    text = text.replace("seconds_per_step: 0.0", "seconds_per_step: ${oc.decode:${oc.env:SLOW}}")
    configuration.write_text(text, encoding="utf-8")
    (script,) = [each for each in commands_of(ROOT / "docs" / "how-to" / "slurm.md") if each.startswith("#!")]
    assert "#SBATCH --signal=SIGUSR1@300\n" in script
    # This cluster has no GPU to give.
    script = script.replace("#SBATCH --gpus-per-node=2\n", "")
    (directory / "page.sh").write_text(script, encoding="utf-8")
    job = slurm.submit_file(directory / "page.sh", options=("--export=ALL,SLOW=2.0",))
    experiment = directory / "experiments" / "my_exp"
    job.signal_near_the_limit(tasks=4)
    job.start_again()
    job.end()
    first, second = Experiment(experiment).runs()
    assert [run.ranks_joined for run in (first, second)] == [4, 4]
    assert (first.status, second.status, second.step) == ("interrupted", "finished", 4)
    assert second.resumed_from == first.id
    saved = experiment / "requeue" / f"loopback.{job.id}.0-1" / "hpc_ckpt_1.ckpt"
    assert f"Restored all states from the checkpoint at {saved}" in job.text


def test_two_nodes_try_a_mount(slurm: Slurm) -> None:
    """Both pages say the same command, in a job of two nodes, and it ends well."""
    pages = [ROOT / "docs" / "how-to" / name for name in ("check-a-mount.md", "roll-out.md")]
    (command,) = {each for page in pages for each in commands_of(page) if each.startswith("srun")}
    job = slurm.submit(command.replace("/scratch/me", str(slurm.launches.directory)), options=("--nodes=2",))
    job.end()
    assert "exclusive names on two hosts" in job.text
    assert " 0 missing" in job.text


def test_torchrun_in_a_step_of_the_page(slurm: Slurm) -> None:
    """One agent on each node with two workers each: torchrun knows the ranks, Slurm only the agents."""
    (command,) = [each for each in commands_of(ROOT / "docs" / "how-to" / "torchrun.md") if each.startswith("srun")]
    slurm.launches.copy_scripts()
    for page, here in {
        '"$(scontrol show hostnames | head -n 1):29400"': f"127.0.0.1:{slurm.environment['MASTER_PORT']}",
        "--nproc-per-node=8": "--nproc-per-node=2",
        "trainer.devices=8": "trainer.devices=2",
    }.items():
        assert page in command
        command = command.replace(page, here)
    more = "stop_before_fit=true exp_manager.log_every_rank=true"
    slurm.submit(f"NEMO_TESTING=True {command} {more}", options=("--nodes=2", "--ntasks-per-node=1")).end()
    (run,) = Experiment(slurm.launches.experiment).runs()
    assert (run.ranks_joined, run.source) == (4, "torchrun's agent store")
    assert sorted(log.name for log in run.path.glob("nemo_log_globalrank-*")) == [
        f"nemo_log_globalrank-{rank}_localrank-{rank % 2}.txt" for rank in range(4)
    ]
