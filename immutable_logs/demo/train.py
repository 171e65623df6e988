"""Train a small network on random data, as any NeMo script does; nothing in it knows of the immutable layout."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from nemo.core.config import hydra_runner
from nemo.utils import logging
from nemo.utils.exp_manager import exp_manager
from omegaconf import DictConfig, OmegaConf
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Regression(pl.LightningModule):
    """Two layers that learn the sum of their inputs."""

    def __init__(self, features: int, hidden: int, lr: float) -> None:
        """Make the layers; the sizes are saved with the checkpoint."""
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(features, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1)
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:  # noqa: ARG002 - Lightning's
        """Return the loss of a batch."""
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:  # noqa: ARG002 - Lightning's
        """Log the loss of a batch, over all ranks."""
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    def _loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, target = batch
        return functional.mse_loss(self.layers(inputs), target)


def random_data(samples: int, features: int, batch_size: int, *, seed: int) -> Any:
    """Return a loader of random inputs, each with its sum; the same on every rank, Lightning deals it out."""
    inputs = torch.randn(samples, features, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=batch_size)


@hydra_runner(config_path=".", config_name="train")
def main(cfg: DictConfig) -> None:
    """Train."""
    logging.info("Configuration:\n%s", OmegaConf.to_yaml(cfg))
    trainer = pl.Trainer(**cfg.trainer)
    exp_manager(trainer, cfg.get("exp_manager"))
    model = Regression(**cfg.model)
    train = random_data(cfg.data.samples, cfg.model.features, cfg.data.batch_size, seed=1)
    validation = random_data(cfg.data.samples // 10, cfg.model.features, cfg.data.batch_size, seed=2)
    trainer.fit(model, train, validation)


if __name__ == "__main__":
    main()
