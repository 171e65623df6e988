"""What may be passed to `exp_manager` under the immutable layout, and what our keys do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pathlib2
import pytest
from omegaconf import OmegaConf

from immutable_logs.errors import ConfigurationError

RESUMED: dict[str, Any] = {"resume_if_exists": True, "resume_ignore_no_checkpoint": True}


def test_paths_of_pathlib2_are_accepted_in_a_dict(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """`pathlib2.Path` values, nested ones too, do what their text does."""
    copied = tmp_path / "notes.txt"
    copied.write_text("x", encoding="utf-8")
    trainer = make_trainer()
    run = nemo.exp_manager(
        trainer,
        {
            "log_layout": "immutable",
            "exp_dir": pathlib2.Path(str(tmp_path)),
            "name": "tiny",
            "files_to_copy": [pathlib2.Path(str(copied))],
            "checkpoint_callback_params": {"dirpath": pathlib2.Path(str(tmp_path / "C"))},
            **RESUMED,
        },
    )
    assert run.parent == tmp_path / "tiny" / "runs"
    assert (run / "notes.txt").is_file()
    assert Path(trainer.checkpoint_callback.dirpath) == tmp_path / "C"


def test_paths_of_pathlib2_in_a_config_that_holds_objects_are_accepted(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """A DictConfig that allows objects can hold a `pathlib2.Path`."""
    cfg = OmegaConf.create({"log_layout": "immutable", "name": "tiny", **RESUMED}, flags={"allow_objects": True})
    cfg.exp_dir = pathlib2.Path(str(tmp_path))
    assert nemo.exp_manager(make_trainer(), cfg).parent == tmp_path / "tiny" / "runs"


def test_interpolations_reach_the_parent_of_the_section(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """`${…}` in the section may name keys outside of it, for our keys too."""
    cfg = OmegaConf.create(
        {
            "root": str(tmp_path),
            "layout": "immutable",
            "exp_manager": {"exp_dir": "${root}", "name": "tiny", "log_layout": "${layout}", **RESUMED},
        }
    )
    assert nemo.exp_manager(make_trainer(), cfg.exp_manager).parent == tmp_path / "tiny" / "runs"
    moving = OmegaConf.merge(cfg, {"layout": "moving", "exp_manager": {"name": "stock"}})
    assert nemo.exp_manager(make_trainer(), moving.exp_manager) == tmp_path / "stock"


def test_a_structured_configuration_is_accepted(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """NeMo's own dataclass knows our keys."""
    cfg = OmegaConf.structured(nemo.ExpManagerConfig(exp_dir=str(tmp_path), name="tiny", log_layout="immutable"))
    assert nemo.exp_manager(make_trainer(), cfg).parent == tmp_path / "tiny" / "runs"


@pytest.mark.parametrize("value", ["imutable", "Immutable", "", 1, True])
def test_an_unknown_layout_is_refused_with_the_allowed_ones(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path, value: object
) -> None:
    """A wrong value names what is allowed, and leaves nothing behind."""
    with pytest.raises(ConfigurationError, match="'immutable' or 'moving'") as caught:
        nemo.exp_manager(make_trainer(), {"log_layout": value, "exp_dir": str(tmp_path)})
    assert caught.value.value == value
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_layout_in_the_environment_is_refused(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the variable."""
    monkeypatch.setenv("NEMO_LOG_LAYOUT", "imutable")
    with pytest.raises(ConfigurationError, match="environment variable NEMO_LOG_LAYOUT, found 'imutable'"):
        nemo.exp_manager(make_trainer(), {"exp_dir": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_unknown_keys_are_still_refused(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """Only our two keys are taken out; a misspelt one is refused as in stock, before any run is made."""
    from omegaconf.errors import ConfigKeyError

    with pytest.raises(ConfigKeyError, match="log_layouts"):
        nemo.exp_manager(make_trainer(), {"log_layout": "immutable", "log_layouts": 1, "exp_dir": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that NeMo asked to sleep, without sleeping them."""
    seconds: list[float] = []
    stand_in = type("Time", (), {"__getattr__": lambda _, name: getattr(time, name), "sleep": seconds.append})
    from nemo.utils import exp_manager

    monkeypatch.setattr(exp_manager, "time", stand_in())
    return seconds


def _as_rank_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29999",
        "IMMUTABLE_LOGS_LAUNCH_ID": "test",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("form", "given", "expected"),
    [("dict", None, 0), ("dict", 5, 5), ("structured", None, 0), ("structured", 2.5, 2.5), ("dict", 0.25, 0.25)],
)
def test_other_ranks_sleep_only_as_long_as_the_user_says(
    nemo: Any,
    make_trainer: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slept: list[float],
    form: str,
    given: float | None,
    expected: float,
) -> None:
    """`seconds_to_sleep` is 0 unless set; in a structured configuration stock's 5.0 is not "set"."""
    _as_rank_one(monkeypatch)
    values: dict[str, Any] = {"exp_dir": str(tmp_path), "name": "tiny", "log_layout": "immutable"}
    if given is not None:
        values["seconds_to_sleep"] = given
    cfg = values if form == "dict" else OmegaConf.structured(nemo.ExpManagerConfig(**values))
    nemo.exp_manager(make_trainer(devices=2), cfg)
    assert slept == [expected]


def test_stock_sleeps_five_seconds(
    nemo: Any,
    make_trainer: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slept: list[float],
) -> None:
    """The control: under the moving layout the same rank sleeps."""
    _as_rank_one(monkeypatch)
    nemo.exp_manager(make_trainer(devices=2), {"exp_dir": str(tmp_path), "name": "tiny"})
    assert slept == [5.0]


@pytest.mark.parametrize("setting", [True, False, None])
def test_log_every_rank_decides_who_writes_a_log(
    nemo: Any,
    make_trainer: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: bool | None,
) -> None:
    """Unset, it is as the NeMo version does: 3.0 writes no rank logs, 2.x writes them all."""
    _as_rank_one(monkeypatch)
    cfg = {"exp_dir": str(tmp_path), "name": "tiny", "log_layout": "immutable", "log_every_rank": setting}
    run = nemo.exp_manager(make_trainer(devices=2), cfg)
    does_stock_write = "log_global_rank_0_only" in nemo.ExpManagerConfig.__annotations__
    expected = does_stock_write if setting is None else setting
    assert (run / "nemo_log_globalrank-1_localrank-1.txt").exists() == expected


def test_the_configuration_is_recorded_without_secrets(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """`run.json` holds the section as given, secrets replaced."""
    cfg = {
        "exp_dir": str(tmp_path),
        "name": "tiny",
        "log_layout": "immutable",
        "wandb_logger_kwargs": {"name": "n", "project": "p", "api_key": "s3cr3t-value"},
    }
    run = nemo.exp_manager(make_trainer(), cfg)
    text = (run / "run.json").read_text(encoding="utf-8")
    assert "s3cr3t-value" not in text
    recorded = json.loads(text)["configuration"]
    assert recorded["name"] == "tiny"
    assert recorded["wandb_logger_kwargs"]["project"] == "p"


def test_a_checkpoint_callback_without_a_directory_is_no_obstacle(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """Lightning's base class of checkpoint callbacks has no `dirpath`; the start goes on as in stock."""
    from lightning.pytorch.callbacks import Checkpoint

    class Mine(Checkpoint):  # type: ignore[misc, unused-ignore]
        pass

    cfg = {"exp_dir": str(tmp_path), "name": "tiny", "log_layout": "immutable", "create_checkpoint_callback": False}
    run = nemo.exp_manager(make_trainer(callbacks=[Mine()], enable_checkpointing=True), cfg)
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["checkpoints"] is None


def test_children_of_lightnings_launcher_get_the_version_that_the_user_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stock's own code exports a version in the parent, which its children inherit but nobody chose."""
    import os

    from immutable_logs.nemo_integration import activation

    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("NEMO_EXPM_VERSION", raising=False)
    monkeypatch.setenv("_IMMUTABLE_LOGS_NEMO_EXPM_VERSION", "")
    assert activation._initial_nemo_version() is None
    monkeypatch.setenv("NEMO_EXPM_VERSION", "exported-by-stock")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert activation._initial_nemo_version() is None
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert activation._initial_nemo_version() == "exported-by-stock"
