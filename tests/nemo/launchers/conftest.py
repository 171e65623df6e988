"""Start real launches: several processes at once, from any launcher, none of which outlives its test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
HANG_GUARD = 240.0
_MARK = "TEST_LAUNCHES_MARK"


@dataclass(frozen=True)
class Ended:
    """What a launch left: everything that its processes printed."""

    output: str

    def values(self, name: str) -> list[str]:
        """Return the rest of every line of the output that begins with a name and `=`."""
        return [line.partition("=")[2] for line in self.output.splitlines() if line.startswith(f"{name}=")]

    def value(self, name: str) -> str:
        """Return the only value of a name; all of its lines must agree."""
        (only,) = set(self.values(name))
        return only

    @property
    def run(self) -> Path:
        """The run directory, on which all ranks agree."""
        return Path(self.value("LOG_DIR"))


@dataclass
class Started:
    """A process that was started, with whatever processes it starts."""

    popen: subprocess.Popen[bytes]
    output: Path

    def end(self, *, status: int = 0) -> Ended:
        """Wait for the end of the process."""
        self.popen.wait(timeout=HANG_GUARD)
        text = self.output.read_text(encoding="utf-8", errors="replace")
        assert self.popen.returncode == status, f"status {self.popen.returncode}, expected {status}:\n{text[-6000:]}"
        return Ended(text)


@dataclass
class Launches:
    """Starts trainings as a user would.

    Attributes:
        directory: The directory of the experiments; the script's default experiment is `experiment`.
        environment: The environment of every launch, without any launcher's variables.
    """

    directory: Path
    environment: dict[str, str]
    started: list[Started] = field(default_factory=list)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def experiment(self) -> Path:
        """The experiment that the scripts write into."""
        return self.directory / "exp" / "tiny"

    def command(self, *overrides: str, launcher: Sequence[str] = (), script: str = "train.py") -> list[str]:
        """Return the command that starts a script; arguments as for `start`."""
        layout = ("exp_manager.log_layout=immutable", f"exp_manager.exp_dir={self.directory / 'exp'}")
        return [sys.executable, *launcher, str(SCRIPTS / script), *layout, *overrides]

    def start(
        self,
        *overrides: str,
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        script: str = "train.py",
        program: Sequence[str] = (),
    ) -> Started:
        """Start a script of the folder `scripts` under the immutable layout.

        Args:
            overrides: Hydra overrides.
            launcher: A module of Python and its arguments, which start the script; by default Python alone does.
            environment: Variables to add.
            script: The name of the script.
            program: A program and its arguments, which start Python, as `srun` and `mpirun` do.
        """
        command = [*program, *self.command(*overrides, launcher=launcher, script=script)]
        return self.start_command(command, environment=environment)

    def copy_scripts(self) -> Path:
        """Put the scripts where commands start, so that `python train.py` runs as on a page; return the configuration.

        Its experiment is `experiment` and it knows `num_nodes`, as a configuration for a cluster does.
        """
        shutil.copytree(SCRIPTS, self.directory, dirs_exist_ok=True)
        configuration = self.directory / "train.yaml"
        text = configuration.read_text(encoding="utf-8").replace("exp_dir: ???", "exp_dir: exp")
        configuration.write_text(text.replace("devices: 1", "devices: 1\n  num_nodes: 1"), encoding="utf-8")
        return configuration

    def start_command(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Started:
        """Start any command in the directory of the experiments, with variables added."""
        output = self.directory / f"output_{len(self.started)}.txt"
        temporary = self.directory / "tmp"  # torchrun leaves a directory behind
        temporary.mkdir(exist_ok=True)
        with output.open("wb") as stream:
            popen = subprocess.Popen(
                command,
                env={**self.environment, **(environment or {}), "TMPDIR": str(temporary), _MARK: self.mark},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        started = Started(popen, output)
        self.started.append(started)
        return started

    def run(
        self,
        *overrides: str,
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        script: str = "train.py",
        program: Sequence[str] = (),
    ) -> Ended:
        """Start a script and wait for its end; arguments as for `start`."""
        started = self.start(*overrides, launcher=launcher, environment=environment, script=script, program=program)
        return started.end()

    def run_ranks(self, environments: Sequence[Mapping[str, str]], *overrides: str) -> list[Ended]:
        """Start one process for each environment, all at once, and wait for all."""
        started = [self.start(*overrides, environment=environment) for environment in environments]
        return [each.end() for each in started]

    def reap(self) -> None:
        """End what still runs, and wait for everything."""
        # Workers of torchrun have sessions of their own and outlive a killed agent: the mark finds them all.
        for pid in self._marked():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for each in self.started:
            each.popen.kill()
            each.popen.wait()
        deadline = time.monotonic() + 10
        while self._marked() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _marked(self) -> list[int]:
        needle = f"{_MARK}={self.mark}".encode("ascii")
        found = []
        for entry in os.scandir("/proc") if Path("/proc").is_dir() else ():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if needle in Path(entry.path, "environ").read_bytes():
                        found.append(int(entry.name))
        return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test below this directory: each starts several processes that import NeMo."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slow")
            item.add_marker(pytest.mark.timeout(2 * HANG_GUARD))


@pytest.fixture
def launches(tmp_path: Path, clean_environment: dict[str, str]) -> Iterator[Launches]:
    """Starts trainings; none of their processes outlives the test."""
    started = Launches(tmp_path, clean_environment)
    try:
        yield started
    finally:
        started.reap()
