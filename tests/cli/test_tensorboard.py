from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from immutable_logs.layout import ExperimentLayout
from immutable_logs.run import Run
from tests.conftest import keeps_links_back

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Run]
WriteEvents = Callable[..., Path]

START_TIME = 90.0
"""Seconds until a server that does not start is given up."""


def link(experiment: Path, *runs: Run) -> None:
    """Link the event files of runs that continue each other, as their trainings do."""
    directory = ExperimentLayout.of(experiment).lineage(runs[0].id)
    directory.mkdir(parents=True)
    files = [path for run in runs for path in sorted(run.path.glob("events.out.tfevents.*"))]
    for ordinal, path in enumerate(files, start=1):
        (directory / f"{ordinal:04d}_{path.name}").symlink_to(os.path.relpath(path, directory))


@pytest.fixture
def resumed(start: Start, experiment: Path, write_events: WriteEvents) -> list[Run]:
    """Three runs: the second resumed the first from step 20 when that had reached 25, the third is independent."""
    first = start(experiment)
    second = start(experiment, resumed_from=first)
    third = start(experiment)
    write_events(first.path, {"loss": dict.fromkeys(range(26), 1.0)}, start=0)
    write_events(second.path, {"loss": dict.fromkeys(range(20, 31), 2.0)}, start=20)
    write_events(third.path, {"loss": {0: 3.0}}, start=0)
    link(experiment, first, second)
    link(experiment, third)
    return [first, second, third]


class TestDirectory:
    def test_the_directory_of_the_curves_is_all_that_is_printed(
        self, run_program: RunProgram, resumed: list[Run], experiment: Path
    ) -> None:
        """A script gets one absolute path, from the current directory too."""
        completed = run_program("tensorboard", cwd=experiment)

        assert (completed.returncode, completed.stdout, completed.stderr) == (0, f"{experiment}/tensorboard\n", "")
        assert run_program("tensorboard", experiment, "--per-run").stdout == f"{experiment}/runs\n"

    def test_json_tells_which_runs_are_behind_each_curve(
        self, run_program: RunProgram, resumed: list[Run], experiment: Path
    ) -> None:
        """No run is behind two curves; with --per-run each has its own."""
        first, second, third = (run.id for run in resumed)

        document = json.loads(run_program("tensorboard", experiment, "--json").stdout)
        per_run = json.loads(run_program("tensorboard", experiment, "--json", "--per-run").stdout)

        assert list(document) == ["format", "experiment", "directory", "curves"]
        assert (document["format"], document["experiment"]) == (1, str(experiment))
        assert document["directory"] == f"{experiment}/tensorboard"
        assert {each["name"]: each["runs"] for each in document["curves"]} == {first: [first, second], third: [third]}
        assert per_run["directory"] == f"{experiment}/runs"
        assert [each["runs"] for each in per_run["curves"]] == [[first], [second], [third]]

    def test_no_event_files_yet_is_said_beside_the_path(
        self, run_program: RunProgram, start: Start, experiment: Path
    ) -> None:
        """TensorBoard may be started before the training, so it is no error."""
        start(experiment)

        completed = run_program("tensorboard", experiment)

        assert (completed.returncode, completed.stdout) == (0, f"{experiment}/tensorboard\n")
        assert completed.stderr == f"No run has event files yet: {experiment}\n"

    def test_event_files_that_no_lineage_links_are_pointed_to(
        self, run_program: RunProgram, start: Start, experiment: Path, write_events: WriteEvents
    ) -> None:
        """A program that logs without exp_manager has curves in its runs only."""
        write_events(start(experiment).path, {"loss": {0: 1.0}})

        assert "--per-run shows them" in run_program("tensorboard", experiment).stderr
        assert run_program("tensorboard", experiment, "--per-run").stderr == ""

    @pytest.mark.proof
    @pytest.mark.skipif(not keeps_links_back(), reason="this SSHFS follows every link")
    def test_links_that_the_mount_does_not_follow_are_told(
        self, run_on_mount: RunProgram, program: str, resumed: list[Run], experiment: Path, tmp_path: Path
    ) -> None:
        """SSHFS keeps back where a link leads that goes up, unless it is told otherwise; `runs/` can be read."""
        script = 'cp -a "$1" "$2/exp" && "$0" tensorboard "$2/exp" && "$0" tensorboard "$2/exp" --per-run --json'
        mount = tmp_path / "mount"
        completed = run_on_mount("sshfs", mount, "bash", "-c", script, program, experiment, mount, timeout=100)

        directory, _, document = completed.stdout.partition("\n")
        assert (completed.returncode, directory) == (0, f"{mount}/exp/tensorboard"), completed.stderr
        assert "does not follow the links" in completed.stderr
        assert "-o no_contain_symlinks" in completed.stderr
        assert [each["runs"] for each in json.loads(document)["curves"]] == [[run.id] for run in resumed]

    def test_a_directory_that_is_no_experiment_is_wrong_use(self, run_program: RunProgram, tmp_path: Path) -> None:
        """Nothing is printed that a script could pass on."""
        completed = run_program("tensorboard", tmp_path, "--start")

        assert (completed.returncode, completed.stdout) == (2, "")

    def test_an_experiment_of_any_name_is_printed_byte_for_byte(
        self, program: str, plain_environ: dict[str, str], start: Start, tmp_path: Path
    ) -> None:
        """A script can open what was printed, although the name is no text and has an escape sequence in it."""
        experiment = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9 \x1b[31m"))
        start(experiment)

        completed = subprocess.run(
            [program, "tensorboard", experiment], env=plain_environ, capture_output=True, check=True, timeout=60
        )

        assert completed.stdout == bytes(experiment) + b"/tensorboard\n"
        assert b"\x1b" not in completed.stderr


@contextmanager
def server(command: list[str], environ: dict[str, str]) -> Iterator[str]:
    """Start TensorBoard through the command line and yield its address; ends it and its helpers afterwards."""
    with subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        encoding="utf-8",
    ) as process:
        try:
            assert process.stdout is not None
            output = ""
            while not (found := re.search(r"http://\S+?:\d+/", output)):
                line = process.stdout.readline()
                assert line, output
                output += line
            yield found.group()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def ask(address: str, path: str) -> Any:
    """Return what the server answers; None if it does not know yet what it is asked for."""
    try:
        with urllib.request.urlopen(f"{address}data/{path}", timeout=30) as answer:  # noqa: S310 - an address of ours
            return json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        return None


class TestStart:
    @pytest.mark.slow
    @pytest.mark.parametrize("fast", ["false", "true"])
    def test_the_server_shows_one_curve_without_doubled_steps_and_no_run_twice(
        self, program: str, plain_environ: dict[str, str], resumed: list[Run], experiment: Path, fast: str
    ) -> None:
        """Python's loader and the quick one show a curve for each lineage; steps 20 to 25 are the later run's."""
        if fast == "true":
            pytest.importorskip("tensorboard_data_server", reason="needs TensorBoard's quick loader")
        first, _, third = (run.id for run in resumed)
        host = ["--port", "0", "--host", "127.0.0.1"]
        command = [program, "tensorboard", str(experiment), "--", "--load_fast", fast, *host]
        shown: dict[str, list[tuple[int, float]]] = {}
        with server(command, plain_environ) as address:
            deadline = time.monotonic() + START_TIME
            while len(shown) < 2 or shown[first][-1][0] < 30:
                assert time.monotonic() < deadline, shown
                time.sleep(0.2)
                for run in ask(address, "runs") or ():
                    points = ask(address, f"plugin/scalars/scalars?tag=loss&run={run}")
                    if points:
                        shown[run] = [(step, value) for _, step, value in points]

        assert shown == {first: [(step, 1.0 if step < 20 else 2.0) for step in range(31)], third: [(0, 3.0)]}

    @pytest.mark.usefixtures("resumed")
    def test_what_stands_after_the_dashes_is_passed_on(self, run_program: RunProgram, experiment: Path) -> None:
        """TensorBoard itself answers, in place of this program, and its exit code is the exit code."""
        version = run_program("tensorboard", experiment, "--", "--version")
        wrong = run_program("tensorboard", experiment, "--start", "--", "--no-such-option")

        assert (version.returncode, version.stdout.count("\n")) == (0, 1)
        assert re.match(r"\d+\.\d+", version.stdout)
        assert wrong.returncode != 0
        assert "--no-such-option" in wrong.stderr

    def test_without_the_program_it_is_said_what_to_install(
        self, plain_environ: dict[str, str], start: Start, experiment: Path, tmp_path: Path
    ) -> None:
        """The exit code is 3 and no traceback is shown."""
        start(experiment)
        empty = tmp_path / "bin"
        empty.mkdir()
        code = f"import sys\nsys.executable = {str(empty / 'python')!r}\nfrom immutable_logs.cli import main\nmain()"

        completed = subprocess.run(
            [sys.executable, "-c", code, "tensorboard", "--start"],
            cwd=experiment,
            env=plain_environ | {"PATH": str(empty)},
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=60,
        )

        assert (completed.returncode, completed.stdout) == (3, "")
        assert "HINT: pip install tensorboard" in completed.stderr
        assert "Traceback" not in completed.stderr

    def test_json_and_a_start_exclude_each_other(
        self, run_program: RunProgram, start: Start, experiment: Path
    ) -> None:
        """A server prints no object: wrong use."""
        start(experiment)

        completed = run_program("tensorboard", experiment, "--json", "--start")

        assert (completed.returncode, completed.stdout) == (2, "")
