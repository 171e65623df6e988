"""Where things go: each row of the placement table, launched twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment

FRESH: dict[str, Any] = {"resume_if_exists": False}
RESUMED: dict[str, Any] = {"resume_if_exists": True, "resume_ignore_no_checkpoint": True}


@pytest.fixture
def launch(nemo: Any, make_trainer: Callable[..., Any]) -> Callable[..., tuple[Path, Any]]:
    """Call `exp_manager` under the immutable layout; returns the run directory and the trainer."""

    def call(trainer: Any = None, **cfg: Any) -> tuple[Path, Any]:
        trainer = trainer or make_trainer()
        return Path(nemo.exp_manager(trainer, {"log_layout": "immutable", **cfg})), trainer

    return call


def _checkpoint_directory(trainer: Any) -> Path:
    return Path(trainer.checkpoint_callback.dirpath)


def _app_state() -> tuple[Any, Any, Any, Any]:
    from nemo.utils.app_state import AppState

    state = AppState()
    return state.log_dir, state.exp_dir, state.name, state.version


def test_explicit_log_dir_is_the_experiment(launch: Callable[..., tuple[Path, Any]], tmp_path: Path) -> None:
    """`explicit_log_dir=D`: runs in `D/runs`, checkpoints shared in `D/checkpoints`."""
    target = tmp_path / "D"
    first, trainer = launch(explicit_log_dir=str(target), **RESUMED)
    assert first.parent == target / "runs"
    assert _checkpoint_directory(trainer) == target / "checkpoints"
    assert _app_state() == (first, str(target), "", "")
    second, trainer = launch(explicit_log_dir=str(target), **RESUMED)
    assert second != first
    assert second.parent == target / "runs"
    assert _checkpoint_directory(trainer) == target / "checkpoints"
    assert os.readlink(target / "latest") == f"runs/{second.name}"


def test_a_version_keeps_its_own_experiment(launch: Callable[..., tuple[Path, Any]], tmp_path: Path) -> None:
    """`version=V`: the experiment is `exp_dir/name/V`, with or without resuming."""
    for cfg in (FRESH, RESUMED):
        run, trainer = launch(exp_dir=str(tmp_path), name="tiny", version="V", **cfg)
        assert run.parent == tmp_path / "tiny" / "V" / "runs"
        assert _checkpoint_directory(trainer) == tmp_path / "tiny" / "V" / "checkpoints"
        assert _app_state() == (run, str(tmp_path), "tiny", "V")
    assert len(Experiment(tmp_path / "tiny" / "V").runs()) == 2


def test_a_version_from_the_environment_counts_as_it_was_at_the_beginning(
    launch: Callable[..., tuple[Path, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`NEMO_EXPM_VERSION` counts if the user set it; a value that stock's own code exports later does not."""
    from immutable_logs.nemo_integration import placement

    monkeypatch.setenv("NEMO_EXPM_VERSION", "exported_by_stock")
    run, _ = launch(exp_dir=str(tmp_path), name="tiny", **FRESH)
    assert run.parent == tmp_path / "tiny" / "runs"
    monkeypatch.setattr(placement, "INITIAL_NEMO_VERSION", "chosen")
    run, _ = launch(exp_dir=str(tmp_path), name="tiny", **FRESH)
    assert run.parent == tmp_path / "tiny" / "chosen" / "runs"


def test_resumed_runs_share_the_checkpoints_of_the_name(
    launch: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    """`resume_if_exists`: the experiment is `exp_dir/name`, checkpoints shared, no version."""
    run, trainer = launch(exp_dir=str(tmp_path), name="tiny", **RESUMED)
    assert run.parent == tmp_path / "tiny" / "runs"
    assert _checkpoint_directory(trainer) == tmp_path / "tiny" / "checkpoints"
    assert _app_state() == (run, str(tmp_path), "tiny", None)


@pytest.mark.parametrize("use_datetime_version", [True, False])
def test_a_fresh_version_keeps_its_checkpoints_in_the_run(
    launch: Callable[..., tuple[Path, Any]], tmp_path: Path, use_datetime_version: bool, capfd: Any
) -> None:
    """Where stock makes a fresh version each time, the run id is the version and the checkpoints are the run's."""
    for _ in range(2):
        run, trainer = launch(exp_dir=str(tmp_path), name="tiny", use_datetime_version=use_datetime_version, **FRESH)
        assert run.parent == tmp_path / "tiny" / "runs"
        assert _checkpoint_directory(trainer) == run / "checkpoints"
        assert _app_state() == (run, str(tmp_path), "tiny", run.name)
    assert "NEMO_EXPM_VERSION" not in os.environ
    assert "No version folders would be created" not in "".join(capfd.readouterr())


def test_without_exp_dir_the_default_directory_is_used(
    launch: Callable[..., tuple[Path, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No `exp_dir` and no `name`: `./nemo_experiments/default`."""
    monkeypatch.chdir(tmp_path)
    run, _ = launch(**RESUMED)
    assert run.parent == tmp_path / "nemo_experiments" / "default" / "runs"


def test_a_logger_of_the_user_keeps_its_place(
    launch: Callable[..., tuple[Path, Any]], make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """`trainer.logger`: the run lies beside the logger's versions, whose own directory holds the checkpoints."""
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(str(tmp_path), name="mine", version=3)
    run, trainer = launch(make_trainer(logger=logger), create_tensorboard_logger=False, **RESUMED)
    assert run.parent == tmp_path / "mine" / "runs"
    assert trainer.logger is logger
    assert logger.log_dir == str(tmp_path / "mine" / "version_3")
    assert _checkpoint_directory(trainer) == tmp_path / "mine" / "version_3" / "checkpoints"
    assert _app_state() == (run, str(tmp_path), "mine", "version_3")


def test_a_checkpoint_directory_of_the_user_is_untouched(
    launch: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    """`checkpoint_callback_params.dirpath=C`: checkpoints go to C, whatever the rest says."""
    for cfg in (FRESH, RESUMED):
        _, trainer = launch(
            exp_dir=str(tmp_path), name="tiny", checkpoint_callback_params={"dirpath": str(tmp_path / "C")}, **cfg
        )
        assert _checkpoint_directory(trainer) == tmp_path / "C"


def test_the_trainers_directories_are_the_run_directory(
    launch: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    """`default_root_dir`, the TensorBoard logger and `trainer.log_dir` are the run directory."""
    run, trainer = launch(exp_dir=str(tmp_path), name="tiny", **RESUMED)
    assert Path(trainer.default_root_dir) == run
    assert Path(trainer.logger.log_dir) == run
    assert Path(trainer.log_dir) == run


def test_files_to_copy_and_nemos_own_files_are_in_the_run(
    launch: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    """What stock writes into its log directory is in the run directory, and nothing else is at the top."""
    extra = tmp_path / "notes.txt"
    extra.write_text("keep me", encoding="utf-8")
    run, _ = launch(explicit_log_dir=str(tmp_path / "D"), files_to_copy=[str(extra)], log_every_rank=True, **RESUMED)
    names = {path.name for path in run.iterdir()}
    assert {
        "cmd-args.log",
        "lightning_logs.txt",
        "nemo_error_log.txt",
        "nemo_log_globalrank-0_localrank-0.txt",
        "notes.txt",
        "run.json",
        "ranks",
    } <= names
    assert {path.name for path in (tmp_path / "D").iterdir()} == {"runs", "latest"}


def test_resuming_without_a_checkpoint_fails_as_stock_and_leaves_latest(
    nemo: Any, launch: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    """NeMo's own `NotFoundError`; the start is recorded as failed, and `latest` still shows the run before."""
    first, _ = launch(exp_dir=str(tmp_path), name="tiny", **RESUMED)
    with pytest.raises(nemo.NotFoundError, match="There were no checkpoints found"):
        launch(exp_dir=str(tmp_path), name="tiny", resume_if_exists=True)
    experiment = Experiment(tmp_path / "tiny")
    failed = [run for run in experiment.runs() if run.status == "failed"]
    assert len(failed) == 1
    assert experiment.latest is not None
    assert experiment.latest.id == first.name
    details = experiment.describe(failed[0])
    assert details.finish_record is not None
    assert "NotFoundError" in str(details.finish_record.error)
    assert details.run_record is not None


@pytest.mark.parametrize("cfg", [None, {"log_layout": "immutable"}])
def test_disabled_exp_manager_makes_no_run(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cfg: Any
) -> None:
    """`cfg=None` and `fast_dev_run` do nothing, as stock."""
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer(fast_dev_run=cfg is not None)
    assert nemo.exp_manager(trainer, cfg) is None
    assert list(tmp_path.iterdir()) == []


def test_fault_tolerance_keeps_the_directory_that_stock_gives_it(
    nemo: Any, launch: Callable[..., tuple[Path, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault-tolerance callback keeps state between runs, so its directory does not follow the run.

    The package that brings the callback is not to be had everywhere; a stand-in takes down what it is given.
    """
    given: dict[str, Any] = {}

    class StandIn(nemo.Callback):
        def __init__(self, **arguments: Any) -> None:
            given.update(arguments)

    monkeypatch.setattr(nemo, "HAVE_FT", True)
    monkeypatch.setattr(nemo, "FaultToleranceCallback", StandIn, raising=False)
    launch(exp_dir=str(tmp_path), name="tiny", create_fault_tolerance_callback=True, **RESUMED)
    assert given["exp_dir"] == tmp_path
