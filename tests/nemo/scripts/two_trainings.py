"""Trainings one after the other in one script, as some people pretrain and fine-tune."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from nemo.core.config import hydra_runner
from nemo.utils import logging
from nemo.utils.exp_manager import exp_manager
from train import TinyModel, say  # type: ignore[import-not-found] # the script beside this one


@hydra_runner(config_path=".", config_name="train")
def main(cfg: Any) -> None:
    """Train `len(epochs)` times, each time up to that number of epochs, on as many devices."""
    for number, (epochs, devices) in enumerate(zip(cfg.epochs, cfg.devices, strict=True)):
        trainer = pl.Trainer(**{**cfg.trainer, "max_epochs": epochs, "devices": devices})
        say(f"RUN_{number}={exp_manager(trainer, cfg.exp_manager)}")
        data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
        trainer.fit(TinyModel(), data, data)
        logging.info(f"training {number} says goodbye")


if __name__ == "__main__":
    main()
