from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from immutable_logs.run import Run

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
FinishRuns = Callable[[Path, int], list[Run]]


def test_the_absolute_path_is_all_that_is_printed(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
) -> None:
    """A script gets one line and nothing beside it, from a relative experiment too."""
    runs = finish_runs(experiment, 2)

    completed = run_program("path", "-e", "experiment", cwd=experiment.parent)

    assert (completed.returncode, completed.stdout, completed.stderr) == (0, f"{runs[1].path}\n", "")
    assert run_program("path", "latest~1", cwd=experiment).stdout == f"{runs[0].path}\n"


def test_the_path_of_latest_stays_with_its_run(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
) -> None:
    """What a script was given for `latest` means the same run after the next one has started."""
    (first,) = finish_runs(experiment, 1)
    path = run_program("path", cwd=experiment).stdout.rstrip("\n")
    finish_runs(experiment, 1)

    assert Path(path).resolve() == first.path.resolve()


def test_an_experiment_of_any_name_is_printed_byte_for_byte(
    program: str, plain_environ: dict[str, str], finish_runs: FinishRuns, tmp_path: Path
) -> None:
    """A script can open what was printed, although the name is no text and has an escape sequence in it."""
    experiment = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9 \x1b[31m"))
    (run,) = finish_runs(experiment, 1)

    output = subprocess.run(
        [program, "path", "-e", experiment], env=plain_environ, capture_output=True, check=True, timeout=60
    ).stdout

    assert output == bytes(run.path) + b"\n"
    assert os.stat(output.rstrip(b"\n"))


def test_without_a_run_nothing_is_printed_on_stdout(run_program: RunProgram, experiment: Path) -> None:
    """`cd "$(immutable-logs path)"` goes nowhere by mistake: stdout is empty and the exit code is 2."""
    (experiment / "runs").mkdir(parents=True)

    completed = run_program("path", "-e", experiment)

    assert (completed.returncode, completed.stdout) == (2, "")
    assert "there is no link 'latest' that shows a run" in completed.stderr


def test_json_has_the_id_beside_the_path(run_program: RunProgram, finish_runs: FinishRuns, experiment: Path) -> None:
    """A script that needs both asks once."""
    runs = finish_runs(experiment, 2)

    completed = run_program("path", "latest~1", "-e", experiment, "--json")

    assert json.loads(completed.stdout) == {"format": 1, "run": runs[0].id, "path": str(runs[0].path)}
