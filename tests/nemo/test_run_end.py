"""How the end of a run is recorded, whatever ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment

LAYOUT = "exp_manager.log_layout=immutable"
RESUMED: dict[str, Any] = {"resume_if_exists": True, "resume_ignore_no_checkpoint": True, "log_layout": "immutable"}


def _only_end(experiment: Path) -> dict[str, Any]:
    (run,) = Experiment(experiment).runs()
    record: dict[str, Any] = json.loads((run.path / "finished.json").read_text(encoding="utf-8"))
    assert record["outcome"] == run.status
    return record


def test_a_normal_end_is_finished_with_its_last_step(train: Callable[..., Any], tmp_path: Path) -> None:
    """A training that runs through is `finished` at its last step."""
    train(LAYOUT)
    end = _only_end(tmp_path / "exp" / "tiny")
    assert (end["outcome"], end["step"], end["ranks_joined"], end["error"]) == ("finished", 16, 1, None)


def test_an_exception_in_a_fit_is_failed_with_its_text(train: Callable[..., Any], tmp_path: Path) -> None:
    """An exception in a training step is recorded with its traceback and the step it happened at."""
    train(LAYOUT, "fail_at=5", expect=1)
    end = _only_end(tmp_path / "exp" / "tiny")
    assert (end["outcome"], end["step"]) == ("failed", 5)
    assert "ValueError: the loss exploded" in end["error"]
    assert "training_step" in end["error"]


def test_an_exception_outside_of_a_fit_is_failed_under_hydra(train: Callable[..., Any], tmp_path: Path) -> None:
    """Hydra turns it into an exit code, which the record must not take for success."""
    train(LAYOUT, "fail_after_fit=true", expect=1)
    end = _only_end(tmp_path / "exp" / "tiny")
    assert (end["outcome"], end["step"]) == ("failed", 16)
    assert "RuntimeError: the evaluation went wrong" in end["error"]


WITHOUT_HYDRA = """
import os, sys, time
import lightning.pytorch as pl
from nemo.utils.exp_manager import exp_manager
trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
cfg = {"explicit_log_dir": sys.argv[1], "resume_if_exists": True, "resume_ignore_no_checkpoint": True}
exp_manager(trainer, {**cfg, "log_layout": "immutable"})
print("READY", flush=True)
"""


@pytest.mark.parametrize(
    ("ending", "code", "outcome", "error"),
    [
        ("", 0, "finished", None),
        ("raise ValueError('later')", 1, "failed", "ValueError: later"),
        ("time.sleep(60)  # SIGTERM", -signal.SIGTERM, "interrupted", "SIGTERM"),
        ("time.sleep(60)  # SIGINT", -signal.SIGINT, "interrupted", "KeyboardInterrupt"),
        (
            "pid = os.fork()\nif pid == 0: sys.exit()\nos.waitpid(pid, 0)\nraise ValueError('later')",
            1,
            "failed",
            "later",
        ),
    ],
    ids=["normal", "exception", "sigterm", "ctrl-c", "forked-child-exits-first"],
)
def test_an_end_outside_of_a_fit_and_hydra(
    clean_environment: dict[str, str],
    tmp_path: Path,
    ending: str,
    code: int,
    outcome: str,
    error: str | None,
) -> None:
    """A plain script: normal end, exception, SIGTERM, Ctrl-C; a forked child's exit is not the run's end."""
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_HYDRA + ending + "\n", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "D")],
        env=clean_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert any(line.strip() == "READY" for line in process.stdout)
        if "SIG" in ending:
            time.sleep(0.3)
            process.send_signal(getattr(signal, ending.rpartition(" ")[2]))
        assert process.wait(60) == code
    finally:
        process.kill()
        process.communicate()
    end = _only_end(tmp_path / "D")
    assert end["outcome"] == outcome
    assert error is None or error in end["error"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_a_fit_is_interrupted(
    clean_environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    """SIGTERM and Ctrl-C during a fit: Lightning ends the fit, and the run is `interrupted` at the step reached."""
    script = Path(__file__).parent / "scripts" / "train.py"
    overrides = [LAYOUT, f"exp_manager.exp_dir={tmp_path / 'exp'}", "seconds_per_step=0.1", "trainer.max_epochs=1000"]
    process = subprocess.Popen(
        [sys.executable, str(script), *overrides],
        env=clean_environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if "saving model" in line:
                break
        process.send_signal(number)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    end = _only_end(tmp_path / "exp" / "tiny")
    assert end["outcome"] == "interrupted", "".join(output) + rest
    assert end["step"] >= 8


def test_a_killed_run_has_no_end_record_and_is_unknown(clean_environment: dict[str, str], tmp_path: Path) -> None:
    """After SIGKILL nothing is recorded; the catalog sees that the process is gone, and says so."""
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_HYDRA + "time.sleep(60)\n", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "D")],
        env=clean_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert any(line.strip() == "READY" for line in process.stdout)
        (run,) = Experiment(tmp_path / "D").runs()
        assert run.status == "running"
        process.kill()
        process.wait(60)
    finally:
        process.kill()
        process.communicate()
    (run,) = Experiment(tmp_path / "D").runs()
    assert run.status == "unknown"
    assert "is gone" in run.evidence


def test_second_and_third_trainer_of_a_process_have_runs_and_logs_of_their_own(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """Three trainers: three runs; a line logged during one is in no log of another, and each is finished in turn."""
    runs = []
    for number in range(3):
        run = nemo.exp_manager(
            make_trainer(), {"exp_dir": str(tmp_path), "name": "tiny", "log_every_rank": True, **RESUMED}
        )
        nemo.logging.error("line of trainer %d", number)
        nemo.lightning.pytorch._logger.warning("lightning line of trainer %d", number)
        runs.append(run)
    assert len(set(runs)) == 3
    for number, run in enumerate(runs):
        for name in ("nemo_log_globalrank-0_localrank-0.txt", "nemo_error_log.txt"):
            text = (run / name).read_text(encoding="utf-8")
            assert [other for other in range(3) if f"line of trainer {other}" in text] == [number], name
        text = (run / "lightning_logs.txt").read_text(encoding="utf-8")
        assert [other for other in range(3) if f"line of trainer {other}" in text] == [number]
    statuses = [run.status for run in Experiment(tmp_path / "tiny").runs()]
    assert statuses == ["finished", "finished", "running"]


def test_sigusr1_keeps_its_default_handler(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """Lightning does not requeue where it finds a handler for SIGUSR1, so none is installed."""
    before = signal.getsignal(signal.SIGUSR1)
    nemo.exp_manager(make_trainer(), {"exp_dir": str(tmp_path), "name": "tiny", **RESUMED})
    assert signal.getsignal(signal.SIGUSR1) == before


def test_the_callback_survives_pickling(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """Strategies that spawn processes pickle the callbacks."""
    import pickle

    trainer = make_trainer()
    run = nemo.exp_manager(trainer, {"exp_dir": str(tmp_path), "name": "tiny", **RESUMED})
    (callback,) = [each for each in trainer.callbacks if type(each).__name__ == "RunCallback"]
    copy = pickle.loads(pickle.dumps(callback))  # noqa: S301 - made here
    assert copy.run_id == run.name


def test_bookkeeping_that_fails_does_not_stop_the_start(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A manifest that cannot be written is a warning, and the training starts."""
    (tmp_path / "tiny" / "runs" / "manifest.jsonl").mkdir(parents=True)
    run = nemo.exp_manager(make_trainer(), {"exp_dir": str(tmp_path), "name": "tiny", **RESUMED})
    assert (run / "run.json").is_file()
    assert "Training goes on" in caplog.text
