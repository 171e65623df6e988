"""Loggers beside TensorBoard keep what stock NeMo gives them."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

RESUMED = {"resume_if_exists": True, "resume_ignore_no_checkpoint": True}
WANDB = {
    "create_tensorboard_logger": False,
    "create_checkpoint_callback": False,
    "create_wandb_logger": True,
    "wandb_logger_kwargs": {"name": "my_run", "project": "my_project", "offline": True},
}


def nemo_version() -> str:
    """Return the version of NeMo that is installed."""
    return importlib.metadata.version("nemo_toolkit")


@pytest.mark.parametrize(
    ("configuration", "place", "wandb_id"),
    [
        ({"exp_dir": "exp", "name": "tiny", **RESUMED}, "exp", None),
        ({"exp_dir": "exp", "name": "tiny", "version": "V"}, "exp", "V"),
        ({"explicit_log_dir": "D"}, "D", None),
    ],
    ids=["resumed", "version", "explicit"],
)
@pytest.mark.parametrize("layout", ["immutable", "moving"])
def test_wandb_is_where_stock_has_it(
    nemo: Any,
    make_trainer: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    configuration: dict[str, Any],
    place: str,
    wandb_id: str | None,
) -> None:
    """The directory and the id of the W&B run, with both layouts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_EXPM_VERSION", raising=False)
    trainer = make_trainer()
    nemo.exp_manager(trainer, {**configuration, **WANDB, "log_layout": layout})

    (logger,) = trainer.loggers
    assert Path(logger.save_dir).resolve() == (tmp_path / place).resolve()
    assert logger.version == wandb_id


def test_a_fresh_version_gives_wandb_the_run_id(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """Stock gives it the fresh version, which the run id stands for."""
    trainer = make_trainer()
    run = nemo.exp_manager(trainer, {"exp_dir": str(tmp_path), "name": "tiny", **WANDB, "log_layout": "immutable"})

    assert trainer.logger.version == run.name
    assert Path(trainer.logger.save_dir) == tmp_path


@pytest.mark.parametrize("layout", ["immutable", "moving"])
def test_mlflow_fails_as_in_stock(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path, layout: str) -> None:
    """NeMo passes the name of the run twice."""
    release = tuple(map(int, nemo_version().split(".")[:2]))
    if release < (2, 7):
        pytest.skip("tried with NeMo 2.7 and 3.0")
    with pytest.raises(TypeError, match="run_name"):
        nemo.exp_manager(
            make_trainer(),
            {"exp_dir": str(tmp_path), "name": "tiny", "create_mlflow_logger": True, "log_layout": layout},
        )


def test_a_logger_can_be_added_after_exp_manager(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """It keeps its own place, and TensorBoard that in the run."""
    from lightning.pytorch.loggers import CSVLogger

    trainer = make_trainer()
    run = nemo.exp_manager(trainer, {"exp_dir": str(tmp_path), "name": "tiny", **RESUMED, "log_layout": "immutable"})
    trainer.loggers = [*trainer.loggers, CSVLogger(tmp_path / "elsewhere", name="my_exp", version=run.name)]

    assert [type(logger).__name__ for logger in trainer.loggers] == ["TensorBoardLogger", "CSVLogger"]
    assert Path(trainer.loggers[0].log_dir) == run
    assert trainer.loggers[1].log_dir == str(tmp_path / "elsewhere" / "my_exp" / run.name)
