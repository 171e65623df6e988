"""The demo: three launches of one training, two of which resume, while a reader watches."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from immutable_logs.catalog import Experiment
from immutable_logs.demo.launches import FinishedLaunch, run_launch
from immutable_logs.errors import ConfigurationError, ImmutableLogsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS: Final = (20, 40, 60)
"""Where each launch ends; each but the first resumes where the one before it ended."""

_NEEDED: Final = ("nemo", "lightning", "torch", "hydra")
_EXPERIMENT: Final = Path("nemo_experiments", "demo")
_READER_TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What the demo did and found.

    Attributes:
        directory: Everything that it made.
        experiment: The experiment in there.
        launches: The launches, in order.
        reader: The reader's findings, see `reader.Findings`.
        problems: What is not as promised, in words; empty if all is well.
    """

    directory: Path
    experiment: Path
    launches: tuple[FinishedLaunch, ...]
    reader: dict[str, Any]
    problems: tuple[str, ...]


def demonstrate(
    directory: Path | None,
    *,
    ranks: int,
    on_launch: Callable[[int], None],
    on_line: Callable[[str], None],
) -> Demonstration:
    """Train three times in one experiment, and check what came of it.

    Args:
        directory: Where; an empty or new directory, or None for a temporary one, which is kept too.
        ranks: How many processes train together.
        on_launch: Told the number of each launch, counted from 1, before it starts.
        on_line: Told what a launch last printed, a few times a second.

    Raises:
        ConfigurationError: If there is something in the directory already.
        ImmutableLogsError: If NeMo is not installed, or a launch fails.
    """
    require_nemo()
    directory = _make_directory(directory)
    experiment = directory / _EXPERIMENT
    launches = []
    with _reader(experiment) as stop_reader:
        for number, steps in enumerate(STEPS, start=1):
            on_launch(number)
            overrides = [
                "exp_manager.log_layout=immutable",
                "exp_manager.log_every_rank=true",
                f"trainer.devices={ranks}",
                f"trainer.max_steps={steps}",
            ]
            output = directory / f"output-of-launch-{number}.txt"
            launches.append(run_launch(overrides, directory=directory, output=output, on_line=on_line))
        findings = stop_reader()
    problems = [*_reader_problems(findings), *_run_problems(experiment, ranks)]
    return Demonstration(directory, experiment, tuple(launches), findings, tuple(problems))


def require_nemo() -> None:
    """Raise if NeMo and what it brings along is not installed.

    Raises:
        ImmutableLogsError: Says what is missing and how to install it.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ImmutableLogsError(
            f"the demo trains with NeMo, which is not installed here (not found: {', '.join(missing)})\n"
            "HINT: pip install 'nemo_toolkit[common]'"
        )


def _make_directory(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="immutable-logs-demo-"))
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ConfigurationError(
            "--directory", directory, f"expected a new or an empty directory, found something in {directory}"
        )
    return directory


@contextmanager
def _reader(experiment: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run the reader for a `with` block; yields the function that ends it and returns its findings."""
    process = subprocess.Popen(
        [sys.executable, "-m", "immutable_logs.demo.reader", str(experiment)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the demo, which then ends the reader
    )

    def stop() -> dict[str, Any]:
        output, _ = process.communicate(timeout=_READER_TIMEOUT)
        if process.returncode:
            raise ImmutableLogsError(f"the reader ended with exit code {process.returncode}")
        findings: dict[str, Any] = json.loads(output)
        return findings

    try:
        yield stop
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _reader_problems(findings: dict[str, Any]) -> Iterator[str]:
    if findings["failure_count"]:
        yield f"a reader lost files, failures: {findings['failure_count']}"
    if not findings["reads"]:
        yield "the reader has read nothing, so it proves nothing"


def _run_problems(experiment: Path, ranks: int) -> Iterator[str]:
    runs = Experiment(experiment).runs()
    if len(runs) != len(STEPS):
        yield f"expected {len(STEPS)} runs, found {len(runs)}"
    before = None
    for run, steps in zip(runs, STEPS, strict=False):
        if (run.status, run.ranks_joined, run.step) != ("finished", ranks, steps):
            yield (
                f"expected run {run.id} finished at step {steps} with {ranks} ranks, "
                f"found {run.status} at step {run.step} with {run.ranks_joined}"
            )
        if run.resumed_from != before:
            yield f"expected run {run.id} to resume from {before}, found {run.resumed_from}"
        before = run.id
    latest = Experiment(experiment).latest
    if latest is None or latest.id != before:
        yield f"expected `latest` to show {before}, found {None if latest is None else latest.id}"
