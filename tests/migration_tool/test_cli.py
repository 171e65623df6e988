from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.migration_tool.conftest import Contents, OldTree

Migrate = Callable[..., subprocess.CompletedProcess[str]]
RunProgram = Callable[..., subprocess.CompletedProcess[str]]


def test_the_default_is_a_plan_that_changes_nothing(
    unpack: Callable[[str], Path], migrate: Migrate, contents: Callable[[Path], Contents]
) -> None:
    """A table of the runs to be made, and what is left alone."""
    path = unpack("3.0.0_torchrun_testing")
    before = contents(path)

    shown = migrate(path).stdout

    assert shown == migrate("plan", path).stdout
    assert contents(path) == before
    assert shown.count(" to add ") == 4
    assert "checkpoints: checkpoints stay where they are" in shown
    assert "32 files to add" in shown


def test_a_plan_tells_each_file_its_run_and_why(unpack: Callable[[str], Path], migrate: Migrate) -> None:
    """With `--files` for people, and always in JSON."""
    path = unpack("3.0.0_torchrun_testing")

    lines = migrate(path, "--files").stdout.splitlines()
    document = json.loads(migrate("--json", path).stdout)

    (line,) = [line for line in lines if line.startswith("  run_0/")]
    assert "during the launch of 2026-12-01 02:43:56Z" in line
    assert document["format"] == 1
    (experiment,) = document["experiments"]
    assert experiment["experiment"] == str(path)
    (file,) = [file for file in experiment["files"] if file["path"].startswith("run_0/")]
    assert file["runs"] == [experiment["runs"][0]["run"]]
    assert len([file for file in experiment["files"] if file["runs"]]) == 32
    assert all(file["reason"] for file in experiment["files"])


def test_the_whole_way(unpack: Callable[[str], Path], migrate: Migrate) -> None:
    """Plan, apply, apply again, verify, finalize, verify; then `undo` is refused."""
    path = unpack("3.0.0_single")

    assert "24 files added, 4 new runs" in migrate("apply", path).stdout
    assert "nothing to do" in migrate("apply", path).stdout
    planned = migrate(path).stdout
    assert " to add " not in planned
    assert planned.endswith("Nothing to add: every file that belongs to a run is in it already\n")
    assert "24 old files are in their runs" in migrate("verify", path).stdout
    assert "24 old names would be removed" in migrate("finalize", path).stdout
    assert (path / "run_0").exists()
    assert "24 old names removed" in migrate("finalize", "--yes", path).stdout
    assert not (path / "run_0").exists()
    assert "24 whose old names were removed" in migrate("verify", path).stdout
    refused = migrate("undo", path, status=3)
    assert "`finalize` has removed old names" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_adopted_run_says_where_it_comes_from(
    unpack: Callable[[str], Path], migrate: Migrate, run_program: RunProgram
) -> None:
    """In words that can be read at night; the JSON output has the whole record."""
    path = unpack("3.0.0_single")
    migrate("apply", path)

    shown = run_program("show", "-e", path, "latest").stdout

    (line,) = [each for each in shown.splitlines() if each.startswith("Adopted from")]
    assert line.startswith("Adopted from  ., 6 files, by evidence; start: cmd-args.log was written then; end: ")
    assert "{" not in line


def test_json_of_every_command(unpack: Callable[[str], Path], migrate: Migrate) -> None:
    """One object with its format number, on stdout, and nothing else there."""
    path = unpack("3.0.0_single")

    for command in ("plan", "apply", "verify", "finalize", "undo"):
        document = json.loads(migrate(command, "--json", path).stdout)
        assert document["format"] == 1, command
        assert [each["experiment"] for each in document["experiments"]] == [str(path)], command
        assert document["problems"] == [], command


def test_exit_codes_tell_findings_from_wrong_use(
    old_tree: OldTree, start: float, migrate: Migrate, tmp_path: Path
) -> None:
    """1: somebody should look; 2: no such directory, no such option."""
    old_tree.launch(start, end=start + 50)
    migrate("verify", old_tree.path, status=1)
    old_tree.write("nemo_log_globalrank-3_localrank-3.txt", old_tree.log([start + 9000]), start + 9000)
    shown = migrate("plan", old_tree.path, status=1)
    assert "Whose launch is not known" in shown.stdout
    assert "expected a directory, found nothing" in migrate(tmp_path / "nowhere", status=2).stderr
    migrate("apply", "--force", tmp_path, status=2)
    (tmp_path / "empty").mkdir()
    assert "No log directory of NeMo was found" in migrate(tmp_path / "empty").stderr


def test_help_names_every_command_and_exit_code(migrate: Migrate) -> None:
    """`--help` explains the program: examples and codes a line each, and no command but its own."""
    shown = migrate("--help").stdout

    for word in ("plan", "apply", "verify", "undo", "finalize", "Exit codes"):
        assert word in shown
    lines = shown.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("    migrate-nemo-logs ")][1:] == [
        *("apply", "verify", "undo", "finalize")
    ]
    assert [line.split()[0] for line in lines if line.startswith(("    0 ", "    1 ", "    2 ", "    3 "))] == [
        *"0123"
    ]
    assert "\\b" not in shown
    commands = [line.split()[0] for line in lines[lines.index("Commands:") + 1 :]]
    assert commands == ["plan", "apply", "verify", "undo", "finalize"]


def test_it_is_a_command_of_immutable_logs_too(unpack: Callable[[str], Path], migrate: Migrate) -> None:
    """`immutable-logs migrate` is the same program."""
    path = unpack("3.0.0_single")

    shown = subprocess.run(
        [str(Path(sys.executable).with_name("immutable-logs")), "migrate", str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, "COLUMNS": "200"},
    )

    assert shown.stdout == migrate(path).stdout


def test_names_cannot_act_on_the_terminal(old_tree: OldTree, start: float, migrate: Migrate) -> None:
    """Control characters in file names are shown, not sent."""
    old_tree.launch(start, end=start + 50)
    old_tree.write("\x1b]0;title\x07.txt", "x", start + 10)

    shown = migrate(old_tree.path, "--files").stdout

    assert "\x1b" not in shown
    assert "title" in shown


@pytest.mark.parametrize("command", ["apply", "verify"])
def test_a_terminal_gets_a_progress_bar_and_a_pipe_none(
    old_tree: OldTree, start: float, migrate: Migrate, command: str
) -> None:
    """The bar is on stderr and gone at the end; stdout has the result only."""
    old_tree.launch(start, end=start + 50)
    for number in range(500):
        old_tree.write(f"extra_{number}", "x", start + 10)
    migrate("apply", old_tree.path)
    master, slave = pty.openpty()
    with os.fdopen(slave, "wb") as terminal:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("migrate-nemo-logs")), command, str(old_tree.path)],
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            timeout=100,
            check=False,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
    with os.fdopen(master, "rb", buffering=0) as reader:
        drawn = b""
        try:
            while data := reader.read(65536):
                drawn += data
        except OSError:
            # Linux says so when the other end of a terminal is closed.
            pass

    assert done.returncode == 0
    assert b"/50" in drawn
    assert "\x1b" not in done.stdout
    assert migrate(command, old_tree.path).stderr == ""
