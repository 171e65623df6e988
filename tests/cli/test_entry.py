from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from immutable_logs.cli import app
from immutable_logs.cli.app import COMMANDS
from immutable_logs.cli.command_group import run_reporting_bugs
from immutable_logs.run import Run

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
FinishRuns = Callable[[Path, int], list[Run]]

HEAVY = {"torch", "nemo", "lightning", "pytorch_lightning", "omegaconf", "hydra", "tensorboard"}


def test_version_is_that_of_the_distribution(run_program: RunProgram) -> None:
    """`--version` names the program and its version."""
    completed = run_program("--version")

    assert (completed.returncode, completed.stdout) == (0, f"immutable-logs {version('immutable-logs')}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_teaches_references_examples_and_exit_codes(run_program: RunProgram, flag: str) -> None:
    """The help says what a REF is, shows commands to copy on lines of their own, and names the exit codes."""
    completed = run_program(flag)

    assert completed.returncode == 0
    assert "`latest~N`" in completed.stdout
    assert "\n    immutable-logs show latest~1 " in completed.stdout
    assert "\n    2  wrong use" in completed.stdout


@pytest.mark.parametrize("command", list(COMMANDS))
def test_each_command_has_help_with_examples(run_program: RunProgram, command: str) -> None:
    """Every command shows how it is called."""
    completed = run_program(command, "--help")

    assert completed.returncode == 0
    assert f"\n    immutable-logs {command}" in completed.stdout.partition("Examples:")[2]


@pytest.mark.parametrize("arguments", [["--nonsense"], ["nonsense"], ["ls", "--nonsense"], ["path", "a", "b"]])
def test_wrong_use_is_exit_code_2_on_stderr(run_program: RunProgram, arguments: list[str]) -> None:
    """An unknown option or command, or too many arguments, is explained on stderr."""
    completed = run_program(*arguments)

    assert (completed.returncode, completed.stdout) == (2, "")
    assert "--help" in completed.stderr


def test_a_reader_that_stops_early_is_no_error(program: str, plain_environ: dict[str, str], experiment: Path) -> None:
    """`immutable-logs ls | head -1` is silent, however long the list is."""
    for number in range(3000):
        (experiment / "runs" / f"2026-12-01_02-28-15Z_{number:05d}").mkdir(parents=True)
    with subprocess.Popen(
        [program, "ls", experiment, "--json"], env=plain_environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"{\n"
        process.stdout.close()
        errors = process.stderr.read()

    assert errors == b""
    assert process.returncode == 128 + signal.SIGPIPE


def test_ctrl_c_is_exit_code_130_without_a_traceback(
    program: str, plain_environ: dict[str, str], start: Callable[[Path], Run], experiment: Path
) -> None:
    """Interrupting a command that waits for something ends it quietly."""
    log = start(experiment).path / "nemo_log_globalrank-0_localrank-0.txt"
    log.write_text("the first line\n", encoding="utf-8")
    with subprocess.Popen(
        [program, "logs", "--follow", "--experiment", experiment],
        env=plain_environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert b"the first line" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)

    assert (process.returncode, output) == (130, b"")
    assert b"Traceback" not in errors


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_fault_of_the_program(
    program: str, plain_environ: dict[str, str], finish_runs: FinishRuns, experiment: Path, closed: str
) -> None:
    """What would go there goes nowhere, and the exit code is that of the command."""
    finish_runs(experiment, 1)
    completed = subprocess.run(
        ["sh", "-c", f'"$0" verify "$1" {closed}', program, experiment],
        env=plain_environ,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )

    assert completed.returncode == 0
    assert "Traceback" not in completed.stderr


def test_an_unforeseen_error_is_not_taken_for_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    """A fault of the program ends with 3 and its traceback, since Python's own 1 means a finding."""
    broken = typer.Typer(pretty_exceptions_enable=False)

    @broken.command()
    def fail() -> None:
        raise ZeroDivisionError("nobody thought of it")

    arguments = sys.argv
    sys.argv = ["broken"]
    try:
        with pytest.raises(SystemExit) as ended:
            run_reporting_bugs(broken, "broken")
    finally:
        sys.argv = arguments

    assert ended.value.code == 3
    assert "nobody thought of it" in capsys.readouterr().err


def test_errors_end_with_the_same_codes_inside_another_program(tmp_path: Path) -> None:
    """The mapping belongs to the application, so that Typer's own runner sees it too."""
    result = CliRunner().invoke(app, ["ls", str(tmp_path)])

    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "may_draw"),
    [(["ls", "--json"], False), (["path"], False), (["show", "--json"], False), (["ls"], False), (["show"], True)],
)
def test_no_heavy_package_is_loaded(
    finish_runs: FinishRuns, plain_environ: dict[str, str], experiment: Path, arguments: list[str], may_draw: bool
) -> None:
    """No command loads torch, NeMo or TensorBoard, and only those that need it load rich."""
    finish_runs(experiment, 1)
    code = (
        "import sys, immutable_logs.cli as cli\n"
        "try:\n    cli.main()\n"
        "except SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )

    completed = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=experiment,
        env=plain_environ,
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )

    loaded = {name.partition(".")[0] for name in completed.stderr.split()}
    assert "immutable_logs" in loaded
    assert not loaded & HEAVY
    assert ("rich" in loaded) == may_draw


def test_a_command_loads_nothing_that_only_others_need(
    finish_runs: FinishRuns, plain_environ: dict[str, str], experiment: Path
) -> None:
    """`ls` starts without the modules of the other commands."""
    finish_runs(experiment, 1)
    code = (
        "import sys, immutable_logs.cli as cli\n"
        "try:\n    cli.main()\n"
        "except SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )

    completed = subprocess.run(
        [sys.executable, "-c", code, "ls"],
        cwd=experiment,
        env=plain_environ,
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )

    loaded = set(completed.stderr.split())
    others = {place.partition(":")[0] for name, place in COMMANDS.items() if name != "ls"}
    assert "immutable_logs.cli.ls" in loaded
    assert not loaded & (others | {"immutable_logs.run", "immutable_logs.verification", "immutable_logs.demo"})


def test_an_ascii_terminal_gets_escapes_instead_of_an_error(
    run_program: RunProgram, finish_runs: FinishRuns, tmp_path: Path
) -> None:
    """A name that the terminal's encoding does not know does not end the listing."""
    (run,) = finish_runs(tmp_path / "übung", 1)

    completed = run_program("show", "-e", tmp_path / "übung", PYTHONUTF8="0", PYTHONIOENCODING="ascii")

    assert completed.returncode == 0, completed.stderr
    assert f"\\xfcbung/runs/{run.id}" in completed.stdout


class TestCommandsOfOtherPackages:
    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> Path:
        """A directory with a distribution that offers two commands, of which one cannot be loaded."""
        metadata = tmp_path / "other" / "greeting-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n", encoding="utf-8")
        (metadata / "entry_points.txt").write_text(
            "[immutable_logs.commands]\ngreet = greeting:app\nlost = greeting_that_is_gone:app\n", encoding="utf-8"
        )
        (metadata.parent / "greeting.py").write_text(
            "import typer\n"
            "from immutable_logs import ImmutableLogsError\n"
            "app = typer.Typer()\n"
            "@app.command()\n"
            "def greet(name: str, fail: bool = False) -> None:\n"
            "    '''Say hello.'''\n"
            "    if fail:\n"
            "        raise ImmutableLogsError('nobody is there')\n"
            "    print('hello', name)\n",
            encoding="utf-8",
        )
        return metadata.parent

    def test_a_command_is_found_by_its_entry_point(self, run_program: RunProgram, elsewhere: Path) -> None:
        """It is in the help, runs with its arguments, and its errors end with the same exit codes."""
        path = {"PYTHONPATH": str(elsewhere)}

        assert run_program("greet", "you", **path).stdout == "hello you\n"
        assert "Usage: immutable-logs greet " in run_program("greet", "--help", **path).stdout
        failed = run_program("greet", "you", "--fail", **path)
        assert (failed.returncode, failed.stderr) == (3, "Error: nobody is there\n")

    def test_help_lists_it_even_if_another_cannot_be_loaded(self, run_program: RunProgram, elsewhere: Path) -> None:
        """A broken package does not break the help."""
        completed = run_program("--help", PYTHONPATH=str(elsewhere))

        assert completed.returncode == 0, completed.stderr
        assert "\n  greet " in completed.stdout
        assert "Say hello." in completed.stdout

    def test_a_command_that_cannot_be_loaded_says_so(self, run_program: RunProgram, elsewhere: Path) -> None:
        """The message names the command and where it should have come from; other commands work."""
        completed = run_program("lost", PYTHONPATH=str(elsewhere))

        assert completed.returncode == 3
        assert "the command 'lost' cannot be loaded from greeting_that_is_gone:app" in completed.stderr
        assert "Traceback" not in completed.stderr

    def test_it_is_not_loaded_for_the_commands_of_this_package(
        self, run_program: RunProgram, elsewhere: Path, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """A package that fails when it is loaded does not stand in the way of `ls`."""
        (elsewhere / "greeting.py").write_text("raise SystemExit(9)\n", encoding="utf-8")
        (run,) = finish_runs(experiment, 1)

        completed = run_program("ls", experiment, "--json", PYTHONPATH=str(elsewhere))

        assert completed.returncode == 0
        assert json.loads(completed.stdout)["latest"] == run.id
