"""Lightning's own requeue checkpoints lie apart for each Slurm job and step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RESUMED: dict[str, Any] = {"resume_if_exists": True, "resume_ignore_no_checkpoint": True, "log_layout": "immutable"}


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the variables of a task of a Slurm step, and forget the launch of this process, as a new process would."""

    def enter(job: str, restart: str | None = None) -> None:
        from immutable_logs import run

        monkeypatch.setattr(run, "_process_launch", type(run._process_launch)())
        for name, value in {
            "SLURM_JOB_ID": job,
            "SLURM_STEP_ID": "0",
            "SLURM_JOB_NAME": "train",
            "SLURM_CLUSTER_NAME": "cluster",
            "SLURM_NTASKS": "1",
            "SLURM_NTASKS_PER_NODE": "1",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": "0",
            "SLURM_NNODES": "1",
        }.items():
            monkeypatch.setenv(name, value)
        if restart is None:
            monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
        else:
            monkeypatch.setenv("SLURM_RESTART_COUNT", restart)

    return enter


def test_a_requeued_job_finds_its_own_checkpoint_and_no_other_job_does(
    nemo: Any, make_trainer: Callable[..., Any], step: Callable[..., None], tmp_path: Path
) -> None:
    """Two jobs in one experiment save `hpc_ckpt_1.ckpt`; after the requeue each loads its own."""

    def start() -> tuple[Path, Any]:
        trainer = make_trainer()
        return nemo.exp_manager(trainer, {"exp_dir": str(tmp_path), "name": "tiny", **RESUMED}), trainer

    saved = {}
    for job in ("7", "8"):
        step(job)
        run, trainer = start()
        connector = trainer._checkpoint_connector
        assert connector._hpc_resume_path is None
        saved[job] = Path(connector.hpc_save_path(trainer.default_root_dir))
        assert saved[job] == tmp_path / "tiny" / "requeue" / f"cluster.{job}.0-1" / "hpc_ckpt_1.ckpt"
        assert Path(trainer.default_root_dir) == run
        saved[job].write_bytes(b"checkpoint")
    for job in ("7", "8"):
        step(job, restart="1")
        run, trainer = start()
        connector = trainer._checkpoint_connector
        assert connector._hpc_resume_path == str(saved[job])
        assert Path(connector.hpc_save_path(trainer.default_root_dir)).name == "hpc_ckpt_2.ckpt"
        assert f"requeue/cluster.{job}.0-1/hpc_ckpt_1.ckpt" in (run / "run.json").read_text(encoding="utf-8")
    step("9")
    _, trainer = start()
    assert trainer._checkpoint_connector._hpc_resume_path is None


def test_a_checkpoint_is_saved_elsewhere_where_its_directory_cannot_be_made(
    nemo: Any,
    make_trainer: Callable[..., Any],
    step: Callable[..., None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Something of the user's has the name: the checkpoint goes where stock puts it, and a warning says so."""
    taken = tmp_path / "tiny" / "requeue"
    taken.parent.mkdir()
    taken.write_text("of the user", encoding="utf-8")
    step("7")
    trainer = make_trainer()
    run = nemo.exp_manager(trainer, {"exp_dir": str(tmp_path), "name": "tiny", **RESUMED})

    saved = trainer._checkpoint_connector.hpc_save_path(trainer.default_root_dir)

    assert Path(saved) == Path(run) / "hpc_ckpt_1.ckpt"
    (warned,) = (record.getMessage() for record in caplog.records if "requeue checkpoint" in record.getMessage())
    assert f"is saved in {run}" in warned
    assert "HINT: make it, and move the checkpoint there" in warned
    assert taken.read_text(encoding="utf-8") == "of the user"


def test_outside_of_a_step_the_connector_is_stocks(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """Without Slurm nothing is redirected."""
    trainer = make_trainer()
    before = type(trainer._checkpoint_connector)
    nemo.exp_manager(trainer, {"exp_dir": str(tmp_path), "name": "tiny", **RESUMED})
    assert type(trainer._checkpoint_connector) is before
    assert not (tmp_path / "tiny" / "requeue").exists()
