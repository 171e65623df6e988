from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from immutable_logs.catalog import Experiment
from immutable_logs.demo.launches import SCRIPT, launch_environment
from immutable_logs.demo.reader import Reader

RunProgram = Callable[..., subprocess.CompletedProcess[str]]

needs_nemo = pytest.mark.skipif(find_spec("nemo") is None, reason="NeMo is not installed")
GUARD = 300


def test_without_nemo_the_message_says_how_to_install_it(plain_environ: dict[str, str], tmp_path: Path) -> None:
    """The demo needs NeMo; where it is missing the exit code is 3 and nothing was made."""
    code = (
        "import sys\n"
        "sys.modules['nemo'] = None\n"  # not to be found, whether it is installed or not
        "from immutable_logs.cli import main\n"
        "main()\n"
    )

    completed = subprocess.run(
        [sys.executable, "-c", code, "demo", "--directory", str(tmp_path / "new")],
        env=plain_environ,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )

    assert (completed.returncode, completed.stdout) == (3, "")
    assert "HINT: pip install 'nemo_toolkit[common]'" in completed.stderr
    assert "Traceback" not in completed.stderr
    assert not (tmp_path / "new").exists()


@needs_nemo
def test_a_directory_with_something_in_it_is_left_alone(run_program: RunProgram, tmp_path: Path) -> None:
    """The demo does not mix with what a user has: exit code 2, nothing added."""
    (tmp_path / "mine.txt").touch()

    completed = run_program("demo", "--directory", tmp_path)

    assert completed.returncode == 2
    assert "expected a new or an empty directory" in completed.stderr
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_no_ranks_is_wrong_use(run_program: RunProgram) -> None:
    """At least one process trains."""
    assert run_program("demo", "--ranks", "0").returncode == 2


def test_the_training_knows_nothing_of_the_layout() -> None:
    """The demo's script and configuration are such as users have, and prove that nothing in them needs a change."""
    for path in (SCRIPT, SCRIPT.with_suffix(".yaml")):
        text = path.read_text(encoding="utf-8")
        assert "immutable_logs" not in text
        assert "log_layout" not in text


@pytest.mark.nemo
@pytest.mark.slow
@pytest.mark.timeout(GUARD)
@needs_nemo
class TestTraining:
    def test_three_launches_are_three_runs_and_no_reader_loses_a_file(
        self, program: str, plain_environ: dict[str, str], tmp_path: Path
    ) -> None:
        """The whole demo: real launches of several ranks, two of which resume, beside a reader that loses nothing."""
        directory = tmp_path / "demo"

        completed = subprocess.run(
            [program, "demo", "--directory", directory, "--json"],
            env=plain_environ,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=GUARD,
        )

        assert completed.returncode == 0, completed.stderr
        document = json.loads(completed.stdout)
        assert document["problems"] == []
        assert document["reader"]["failure_count"] == 0
        assert document["reader"]["reads"] > 1000
        runs = document["runs"]
        assert [(run["status"], run["ranks_joined"], run["world_size"], run["step"]) for run in runs] == [
            ("finished", 2, 2, 20),
            ("finished", 2, 2, 40),
            ("finished", 2, 2, 60),
        ]
        assert [run["resumed_from"] for run in runs] == [None, runs[0]["run"], runs[1]["run"]]
        assert [run["is_latest"] for run in runs] == [False, False, True]
        assert "Launch 3 of 3: resumes at step 40" in completed.stderr
        for number, launch in enumerate(document["launches"], start=1):
            assert launch["output"] == str(directory / f"output-of-launch-{number}.txt")
            assert "`max_steps=" in Path(launch["output"]).read_text(encoding="utf-8")
            assert launch["command"].startswith("python train.py exp_manager.log_layout=immutable ")

    def test_a_file_that_somebody_moves_is_a_finding(
        self, program: str, plain_environ: dict[str, str], tmp_path: Path
    ) -> None:
        """A log that is taken away while the demo trains is named, and the exit code is 1."""
        directory = tmp_path / "demo"
        with subprocess.Popen(
            [program, "demo", "--ranks", "1", "--directory", directory],
            env=plain_environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        ) as process:
            deadline = time.monotonic() + GUARD / 2
            ended: list[Path] = []
            while not ended and time.monotonic() < deadline:
                ended = list(directory.glob("nemo_experiments/demo/runs/*/finished.json"))
                time.sleep(0.1)
            # The reader goes over everything many times a second and has seen the file for long.
            log = ended[0].with_name("cmd-args.log")
            log.rename(tmp_path / "taken.log")
            output, errors = process.communicate(timeout=GUARD / 2)

        assert process.returncode == 1, errors
        assert f"  runs/{log.parent.name}/cmd-args.log: vanished\n" in output
        assert "\nWhat is not as promised\n  a reader lost files, failures: 1\n" in output

    def test_a_reader_beside_the_stock_layout_loses_files(self, tmp_path: Path) -> None:
        """The same training twice without the key moves its files, and the demo's reader notices."""
        reader = Reader(tmp_path / "nemo_experiments" / "demo")
        for steps in (2, 4):
            with subprocess.Popen(
                [sys.executable, str(SCRIPT), "trainer.devices=1", f"trainer.max_steps={steps}"],
                cwd=tmp_path,
                env=launch_environment(os.environ),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
            ) as process:
                output, _ = process.communicate(timeout=GUARD)
            assert process.returncode == 0, output
            reader.list_names()
            reader.read_names()

        lost = {failure["path"] for failure in reader.findings.failures}
        assert {"cmd-args.log", "lightning_logs.txt", "nemo_error_log.txt"} <= lost

    def test_ctrl_c_ends_the_training_and_the_reader(
        self, program: str, plain_environ: dict[str, str], tmp_path: Path
    ) -> None:
        """Interrupting the demo leaves no process behind, and the run that it cut short is not called finished."""
        directory = tmp_path / "demo"
        experiment = directory / "nemo_experiments" / "demo"
        with subprocess.Popen(
            [program, "demo", "--directory", directory],
            env=plain_environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        ) as process:
            deadline = time.monotonic() + GUARD / 2
            while not (experiment / "latest").is_symlink() and time.monotonic() < deadline:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=GUARD / 2)

        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        (run,) = Experiment(experiment).runs()
        assert run.status in ("interrupted", "unknown")
        assert processes_with(str(directory)) == []


def processes_with(text: str) -> list[str]:
    """Return the command lines and working directories of live processes in which a text occurs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            directory = os.readlink(process / "cwd")
        except OSError:
            continue
        if text in command or text in directory:
            found.append(f"{command} in {directory}")
    return found
