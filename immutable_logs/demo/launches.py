"""Start the demo's training as a user does, and wait for its end."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from immutable_logs.errors import ImmutableLogsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCRIPT: Final = Path(__file__).with_name("train.py")

_TIMEOUT: Final = 300.0

_LOOK_EVERY: Final = 0.2
_GRACE: Final = 5.0
_TAIL_BYTES: Final = 2000
_TAIL_LINES: Final = 25

# What a launcher or a cluster leaves in the environment: the demo is started by hand, whatever it is started from.
_FOREIGN_PREFIXES: Final = (
    "SLURM_",
    "TORCHELASTIC_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "PALS_",
    "FLUX_",
    "JSM_",
    "LSB_",
    "PET_",
    "_IMMUTABLE_LOGS_",
)
_FOREIGN_NAMES: Final = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "NODE_RANK",
        "GROUP_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "IMMUTABLE_LOGS_LAUNCH_ID",
        "NEMO_EXPM_VERSION",
        "NEMO_LOG_LAYOUT",
        "NEMO_TESTING",
    }
)


@dataclass(frozen=True, slots=True)
class FinishedLaunch:
    """A launch that ended well.

    Attributes:
        command: What a user would type.
        output: The file with everything that it printed.
        seconds: How long it took.
    """

    command: str
    output: Path
    seconds: float


class LaunchFailedError(ImmutableLogsError, RuntimeError):
    """A launch of the demo's training failed.

    Attributes:
        output: The file with everything that it printed.
    """

    def __init__(self, reason: str, output: Path) -> None:
        """Name the reason and show the end of the output."""
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        super().__init__(
            "\n".join([f"the training {reason}; the end of {output}", *(f"  | {line}" for line in lines)])
        )
        self.output = output


def run_launch(
    overrides: list[str],
    *,
    directory: Path,
    output: Path,
    on_line: Callable[[str], None],
    script: Path = SCRIPT,
    timeout: float = _TIMEOUT,
) -> FinishedLaunch:
    """Run the training to its end.

    Args:
        overrides: Its arguments.
        directory: Where it is started.
        output: The file for everything it prints.
        on_line: Told the last line printed, a few times a second.
        script: What to run.
        timeout: Seconds until it counts as hanging.

    Raises:
        LaunchFailedError: If it ends with an error, or not at all.
    """
    begin = time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(script), *overrides],
            cwd=directory,
            env=launch_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            if time.monotonic() - begin > timeout:
                raise LaunchFailedError(f"did not end within {timeout:.0f} s", output)
            on_line(_last_line(output))
            time.sleep(_LOOK_EVERY)
    finally:
        _end_session(process)
    if process.returncode:
        raise LaunchFailedError(f"ended with exit code {process.returncode}", output)
    return FinishedLaunch(f"python {script.name} {shlex.join(overrides)}", output, round(time.monotonic() - begin, 1))


def launch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a training on this machine alone, on its processors and without a network."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _FOREIGN_NAMES and not name.startswith(_FOREIGN_PREFIXES)
    }
    kept |= {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "MASTER_ADDR": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
    }
    kept.setdefault("OMP_NUM_THREADS", "1")
    loopback = _loopback()
    if loopback:
        # Otherwise the ranks look for each other at the address of the host's name, which need not lead anywhere.
        kept["GLOO_SOCKET_IFNAME"] = loopback
    return kept


def _loopback() -> str | None:
    with suppress(OSError):
        return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    return None


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End whatever is left of a launch: its other ranks too, which are in its session.

    They get a moment to end by themselves if the first rank did, then SIGTERM, then SIGKILL.
    """
    signals = (signal.SIGTERM, signal.SIGKILL) if process.poll() is None else (0, signal.SIGTERM, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        for number in signals:
            os.killpg(process.pid, number)
            deadline = time.monotonic() + _GRACE
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(_LOOK_EVERY / 4)
    process.wait()
