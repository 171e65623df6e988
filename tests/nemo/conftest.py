"""Fixtures for tests that need NeMo and torch: where they are missing, the whole directory is skipped, and says so."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
TRAIN_SCRIPT = SCRIPTS / "train.py"


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


@dataclass(frozen=True)
class ForkingServer:
    """A process that has imported NeMo and starts scripts, one after the other, as `forking_server.py` explains."""

    popen: subprocess.Popen[str]

    def start(
        self,
        script: Path,
        *arguments: str,
        directory: Path,
        environment: Mapping[str, str],
        output: Path,
    ) -> None:
        """Start a script with exactly this environment; what it prints goes to a file."""
        assert self.popen.stdin is not None
        request = {
            "script": str(script),
            "arguments": arguments,
            "directory": str(directory),
            "environment": dict(environment),
            "output": str(output),
        }
        self.popen.stdin.write(json.dumps(request) + "\n")
        self.popen.stdin.flush()

    def end(self) -> int:
        """Wait for the end of the script, and return its exit status."""
        assert self.popen.stdout is not None
        return int(self.popen.stdout.readline())


@contextmanager
def serve_forks(*options: str, environment: Mapping[str, str] | None = None) -> Iterator[ForkingServer]:
    """Run a forking server for the time of a `with` block, with options for Python and variables to add."""
    launcher = ("NEMO_", "IMMUTABLE_LOGS", "_IMMUTABLE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    with subprocess.Popen(
        [sys.executable, *options, str(SCRIPTS / "forking_server.py")],
        env={**inherited, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as popen:
        try:
            assert popen.stdout is not None
            assert "ready\n" in iter(popen.stdout.readline, "")
            yield ForkingServer(popen)
        finally:
            popen.kill()


@pytest.fixture(scope="session")
def forking_server() -> Callable[..., AbstractContextManager[ForkingServer]]:
    """The function that runs a forking server for the time of a `with` block: `serve_forks`."""
    return serve_forks


def _is_ours(name: str) -> bool:
    return "immutable_logs" in name or name == "migration"


@pytest.fixture(scope="session")
def stock_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of links to everything that is installed beside Python, except this distribution.

    As the only `PYTHONPATH` of a Python that is started with `-S`, which keeps `.pth` files from adding it, it makes a
    process that cannot see this distribution: genuine stock.
    """
    directory = tmp_path_factory.mktemp("stock-packages")
    for installed in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(installed).iterdir():
            if entry.name == "hydra_plugins":
                (directory / entry.name).mkdir(exist_ok=True)
                for plugin in entry.iterdir():
                    if not _is_ours(plugin.name):
                        (directory / entry.name / plugin.name).symlink_to(plugin)
            elif not _is_ours(entry.name):
                (directory / entry.name).symlink_to(entry)
    return directory


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


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nothing listens on, and that the kernel gives to nobody else meanwhile."""
    with ExitStack() as stack:
        holder = stack.enter_context(socket.socket())
        # Bound, but not listening: who asks for any port is not given this one, who asks for it with the same option
        # gets it.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
