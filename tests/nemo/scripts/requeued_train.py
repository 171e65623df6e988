"""A rank of a job that is requeued again and again: trains now and then, and saves as Lightning does at a requeue.

Lightning saves in its handler of the signal that Slurm sends, with the two calls that stand here at the end.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from nemo.core.config import hydra_runner
from nemo.utils.exp_manager import exp_manager
from train import TinyModel, say  # type: ignore[import-not-found] # the script beside this one


@hydra_runner(config_path=".", config_name="train")
def main(cfg: Any) -> None:
    """Start, and train unless told otherwise."""
    trainer = pl.Trainer(**cfg.trainer)
    say(f"LOG_DIR={exp_manager(trainer, cfg.exp_manager)}")
    connector = trainer._checkpoint_connector
    say(f"HPC={connector._hpc_resume_path}")
    if cfg.stop_before_fit:
        return
    data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
    trainer.fit(TinyModel(), data, data)
    say(f"STEP={trainer.global_step}")
    trainer.save_checkpoint(connector.hpc_save_path(trainer.default_root_dir))


if __name__ == "__main__":
    main()
