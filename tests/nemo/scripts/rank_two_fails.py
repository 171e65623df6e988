"""A NeMo training as a user writes it, in which rank 2 fails in its fourth step: it raises, or it is killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import lightning.pytorch as pl
import torch
from nemo.core.config import hydra_runner
from nemo.utils import logging
from nemo.utils.exp_manager import exp_manager

STEP = 3


class TinyModel(pl.LightningModule):
    """One linear layer that learns to give zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        """Return the mean square; rank 2 fails as it is told to."""
        logging.info(f"step {self.global_step}")
        if self.global_rank == 2 and self.global_step == STEP:
            if os.environ["RANK_TWO"] == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("the loss is not a number")
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self) -> Any:
        """Return plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 0.01)


@hydra_runner(config_path=".", config_name="train")
def main(cfg: Any) -> None:
    """Train."""
    trainer = pl.Trainer(**cfg.trainer)
    print(f"LOG_DIR={exp_manager(trainer, cfg.exp_manager)}", flush=True)
    trainer.fit(TinyModel(), torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4))


if __name__ == "__main__":
    main()
