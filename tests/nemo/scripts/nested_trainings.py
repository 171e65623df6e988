"""A script that starts another training as a child: before its own fit, and after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from nemo.core.config import hydra_runner
from nemo.utils.exp_manager import exp_manager
from train import TinyModel, say  # type: ignore[import-not-found] # the script beside this one


def train_in_a_child() -> None:
    """Run the plain training script on the same experiment, on one device."""
    overrides = [each for each in sys.argv[1:] if not each.startswith("trainer.devices")]
    subprocess.run([sys.executable, str(Path(__file__).with_name("train.py")), *overrides], check=True)


@hydra_runner(config_path=".", config_name="train")
def main(cfg: Any) -> None:
    """Train, with a training before and one after the fit."""
    trainer = pl.Trainer(**cfg.trainer)
    say(f"OUTER={exp_manager(trainer, cfg.exp_manager)}")
    # As Lightning's launcher runs the whole script on every rank, people guard such a thing by the rank.
    if trainer.global_rank == 0:
        train_in_a_child()
    data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
    trainer.fit(TinyModel(), data, data)
    if trainer.global_rank == 0:
        train_in_a_child()


if __name__ == "__main__":
    main()
