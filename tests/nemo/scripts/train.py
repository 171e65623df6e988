"""A NeMo training as a user writes it; knows nothing of this project.

What it says to the tests: one `NAME=value` a line.
"""

from __future__ import annotations

import os
import time
from typing import Any

from one_rank_dies import is_second_attempt, reach  # type: ignore[import-not-found] # the module beside this one

reach("start")

import lightning.pytorch as pl  # noqa: E402 - a rank that dies at the start has imported nothing
import torch  # noqa: E402 - as above
from nemo.core.config import hydra_runner  # noqa: E402 - as above
from nemo.utils import logging  # noqa: E402 - as above
from nemo.utils.app_state import AppState  # noqa: E402 - as above
from nemo.utils.exp_manager import exp_manager  # noqa: E402 - as above


class TinyModel(pl.LightningModule):
    """One linear layer that learns to give zero."""

    def __init__(self, fail_at: int = -1, seconds_per_step: float = 0.0) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.fail_at = fail_at
        self.seconds_per_step = seconds_per_step
        self.save_hyperparameters()

    def training_step(self, batch: Any, index: int) -> Any:
        """Return the mean square, unless it is time to fail."""
        if self.global_step == self.fail_at:
            raise ValueError("the loss exploded")
        time.sleep(self.seconds_per_step)
        loss = self.layer(batch).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        """Log the mean square."""
        self.log("val_loss", self.layer(batch).pow(2).mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Return plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 0.01)


def say(line: str) -> None:
    """Print a line with one write: ranks and loggers share the output."""
    os.write(1, f"{line}\n".encode())


@hydra_runner(config_path=".", config_name="train")
def main(cfg: Any) -> None:
    """Train."""
    trainer = pl.Trainer(**cfg.trainer)
    begin = time.monotonic()
    log_dir = exp_manager(trainer, cfg.get("exp_manager", None))
    say(f"SECONDS={time.monotonic() - begin:.3f}")
    say(f"LOG_DIR={log_dir}")
    say(f"APP_STATE={AppState().log_dir}")
    say(f"PROCESS_GROUP={torch.distributed.is_initialized()}")
    for variable in ("TORCHELASTIC_RUN_ID", "MASTER_PORT"):
        say(f"{variable}={os.environ.get(variable)}")
    reach("joined")
    if cfg.get("stop_before_fit") or is_second_attempt:  # after a restart gloo's own connections fail now and then
        return
    data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
    trainer.fit(TinyModel(cfg.get("fail_at", -1), cfg.get("seconds_per_step", 0.0)), data, data)
    logging.info(f"rank {trainer.global_rank} says goodbye")
    say(f"STEP={trainer.global_step}")
    say(f"RANK={trainer.global_rank} PID={os.getpid()}")
    if cfg.get("fail_after_fit"):
        raise RuntimeError("the evaluation went wrong")


if __name__ == "__main__":
    main()
