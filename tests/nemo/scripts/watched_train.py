"""A training that tells what `exp_manager` lets a rank wait for, and which records it reads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, SupportsIndex

import torch.distributed

sleeps: list[float] = []
collectives: list[str] = []
records: list[str] = []
stock_sleep = time.sleep


def record_open(event: str, arguments: tuple[Any, ...]) -> None:
    """Note the file that is opened if it is one that tells of runs."""
    if event == "open":
        name = str(arguments[0]).rpartition("/")[2]
        if name in ("manifest.jsonl", "run.json"):
            records.append(name)


def recorded_sleep(seconds: float | SupportsIndex, /) -> None:
    """Sleep, and note how long."""
    if float(seconds) > 0:
        sleeps.append(float(seconds))
    stock_sleep(seconds)


def recorded_collective(name: str) -> Callable[..., Any]:
    """Return a function of `torch.distributed` that notes that it was called."""
    stock = getattr(torch.distributed, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        collectives.append(name)
        return stock(*arguments, **keywords)

    return call


sys.addaudithook(record_open)
# Before anything else is imported, so that names bound early are the recorded ones too.
time.sleep = recorded_sleep
for each in ("init_process_group", "barrier", "monitored_barrier", "all_reduce", "broadcast_object_list"):
    setattr(torch.distributed, each, recorded_collective(each))

import lightning.pytorch as pl  # noqa: E402 - see above
from nemo.core.config import hydra_runner  # noqa: E402 - see above
from nemo.utils.exp_manager import exp_manager  # noqa: E402 - see above
from train import TinyModel  # type: ignore[import-not-found] # noqa: E402 - the script beside this one


@hydra_runner(config_path=".", config_name="train")
def main(cfg: Any) -> None:
    """Train."""
    trainer = pl.Trainer(**cfg.trainer)
    sleeps.clear()
    collectives.clear()
    records.clear()
    log_dir = exp_manager(trainer, cfg.exp_manager)
    rank = trainer.global_rank
    print(f"LOG_DIR={log_dir}", f"SLEEPS_{rank}={sleeps}", f"RECORDS_{rank}={records}", sep="\n", flush=True)
    print(f"COLLECTIVES={collectives}", flush=True)
    if cfg.stop_before_fit:
        return
    data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
    trainer.fit(TinyModel(), data, data)
    print(f"COLLECTIVES_OF_FIT={sorted(set(collectives))}", flush=True)


if __name__ == "__main__":
    main()
