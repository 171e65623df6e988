"""Fixtures for tests that need NeMo and torch: where they are missing, the whole directory is skipped, and says so."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TRAIN_SCRIPT = Path(__file__).parent / "scripts" / "train.py"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Collect nothing here without NeMo; `make test` runs this directory where NeMo is installed."""
    return True if importlib.util.find_spec("nemo") is None else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test below this directory."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("nemo")


@dataclass(frozen=True)
class Finished:
    """What a training process left: its exit code and everything it printed."""

    code: int
    output: str

    def values(self, name: str) -> list[str]:
        """Return the rest of every line of the output that begins with a name and `=`."""
        return [line.partition("=")[2] for line in self.output.splitlines() if line.startswith(f"{name}=")]


@pytest.fixture
def clean_environment(tmp_path: Path) -> dict[str, str]:
    """An environment without any launcher's variables, for real trainings on loopback."""
    launcher = ("SLURM", "PMI", "OMPI", "TORCHELASTIC", "GROUP_", "ROLE_", "NEMO_", "IMMUTABLE_LOGS", "_IMMUTABLE")
    exact = {"RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"}
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(launcher) and name not in exact
    }
    return {**environment, "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def train(tmp_path: Path, clean_environment: dict[str, str]) -> Callable[..., Finished]:
    """Run the training script as a user would, and wait for its end.

    Arguments: Hydra overrides; `launcher` stands before the script (default: this Python), `environment` is added.
    The experiment is `tmp_path / "exp" / "tiny"` unless an override says otherwise.
    """

    def run(
        *overrides: str,
        launcher: Sequence[str] = (sys.executable,),
        environment: Mapping[str, str] | None = None,
        script: Path = TRAIN_SCRIPT,
        expect: int | None = 0,
    ) -> Finished:
        command = [*launcher, str(script), f"exp_manager.exp_dir={tmp_path / 'exp'}", *overrides]
        finished = subprocess.run(
            command,
            env={**clean_environment, **(environment or {})},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        if expect is not None:
            assert finished.returncode == expect, finished.stdout[-6000:]
        return Finished(finished.returncode, finished.stdout)

    return run


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, tuple[int, bytes]]]:
    """Return inode and bytes of every file below a directory, and the text of every link."""

    def take(directory: Path) -> dict[str, tuple[int, bytes]]:
        found: dict[str, tuple[int, bytes]] = {}
        for path in sorted(directory.rglob("*")):
            name = str(path.relative_to(directory))
            if path.is_symlink():
                found[name] = (path.lstat().st_ino, os.fsencode(os.readlink(path)))
            elif path.is_file():
                found[name] = (path.stat().st_ino, path.read_bytes())
            else:
                found[name] = (path.stat().st_ino, b"")
        return found

    return take


@pytest.fixture
def nemo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """NeMo's module `exp_manager`, steered, in this process, with nothing left over from another test."""
    from immutable_logs import enable, run
    from immutable_logs.nemo_integration import session
    from immutable_logs.nemo_integration.log_handlers import detach_handlers

    launcher = ("SLURM", "PMI", "OMPI", "TORCHELASTIC", "NEMO_", "IMMUTABLE_LOGS", "_IMMUTABLE")
    for name in list(os.environ):
        if name.startswith(launcher) or name in {"RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR"}:
            monkeypatch.delenv(name)
    monkeypatch.setattr(run, "_process_launch", type(run._process_launch)())
    module = enable()
    yield module
    run.finish_open_runs("finished")
    previous = session._state.previous_run
    if previous is not None:
        detach_handlers(module.logging, module.lightning.pytorch._logger, previous.path)
        session._state.previous_run = None
    os.environ.pop("NEMO_EXPM_VERSION", None)
    os.environ.pop("_IMMUTABLE_LOGS_PARENT_LAUNCH", None)


@pytest.fixture
def make_trainer() -> Callable[..., Any]:
    """Make a quiet CPU trainer."""

    def make(**arguments: Any) -> Any:
        import lightning.pytorch as pl

        defaults: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "max_epochs": 1,
        }
        return pl.Trainer(**{**defaults, **arguments})

    return make
