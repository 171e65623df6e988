"""The batch script of `docs/how-to/slurm.md` runs as it stands, and its job survives the time limit."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from immutable_logs import Experiment

if TYPE_CHECKING:
    from tests.nemo.launchers.slurm.conftest import Slurm

ROOT = Path(__file__).parents[4]
SCRIPTS = ROOT / "tests" / "nemo" / "scripts"


def test_the_script_trains_and_is_requeued_at_the_signal(slurm: Slurm) -> None:
    """Near the limit Slurm sends the signal that the script asks for; the second start continues."""
    directory = slurm.launches.directory
    shutil.copytree(SCRIPTS, directory, dirs_exist_ok=True)
    configuration = (SCRIPTS / "train.yaml").read_text(encoding="utf-8")
    configuration = configuration.replace("max_epochs: 2", "max_epochs: 2\n  num_nodes: 1")
    configuration = configuration.replace("seconds_per_step: 0.0", "seconds_per_step: ${oc.decode:${oc.env:SLOW}}")
    (directory / "train.yaml").write_text(configuration, encoding="utf-8")
    page = (ROOT / "docs" / "how-to" / "slurm.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```bash\n(#!/bin/bash\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
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
