from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from immutable_logs.cli import app
from immutable_logs.cli.app import COMMANDS
from immutable_logs.run import Run
from tests.reference_pages import REFERENCE, first_column, options_in_help, section

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
FinishRuns = Callable[[Path, int], list[Run]]

PAGE = REFERENCE / "cli.md"
PROGRAM_SECTION = "Options of the program"
OWN_COMMANDS = list(COMMANDS)


@pytest.mark.parametrize("command", [None, *OWN_COMMANDS])
def test_the_page_has_the_options_that_help_has(run_program: RunProgram, command: str | None) -> None:
    """Every option of the help is on the page under its command, and no other."""
    arguments = [] if command is None else [command]
    documented = first_column(section(PAGE, PROGRAM_SECTION if command is None else f"`{command}`"), "option")

    found = options_in_help(run_program(*arguments, "--help", COLUMNS="200").stdout)

    assert "--help" in found
    assert sorted(documented) == sorted(found)


def test_the_page_has_every_command_and_no_other() -> None:
    """A command that is added must be documented."""
    documented = re.findall(r"^## `([\w-]+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert documented == OWN_COMMANDS


@pytest.mark.parametrize("command", OWN_COMMANDS)
def test_the_page_shows_the_arguments_that_a_command_takes(command: str) -> None:
    """The line under the heading has the arguments of the usage line."""
    group: Any = typer.main.get_command(app)
    parameters = group.get_command(None, command).params
    arguments = [
        (parameter.metavar if parameter.required else f"[{parameter.metavar}]")
        + ("..." if parameter.nargs == -1 else "")
        for parameter in parameters
        if parameter.param_type_name == "argument"
    ]

    (usage,) = re.findall(r"^    immutable-logs (.+)$", section(PAGE, f"`{command}`"), re.MULTILINE)

    assert usage.partition(" [-- ")[0].split() == [command, *arguments]


def test_the_page_has_the_keys_of_the_json_output(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
) -> None:
    """Every key of `ls --json` and `show --json` is on the page, in order, and no other."""
    finish_runs(experiment, 1)
    listed = json.loads(run_program("ls", experiment, "--json").stdout)
    shown = json.loads(run_program("show", "-e", experiment, "--json").stdout)
    keys_of_a_run = list(listed["runs"][0])

    assert first_column(section(PAGE, "`ls`"), "key") == [*listed, *keys_of_a_run]
    assert ["format", *keys_of_a_run, *first_column(section(PAGE, "`show`"), "key")] == list(shown)


def test_the_page_has_the_columns_of_the_table(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
) -> None:
    """Every heading of the table is explained; `LOSS`, which needs TensorBoard, is looked at in the tests of `ls`."""
    finish_runs(experiment, 1)
    heading = run_program("ls", experiment, "--graph", "--long").stdout.splitlines()[0].strip()

    names = first_column(section(PAGE, "`ls`"), "column")

    assert re.split(r"  +", heading) == [name for name in names if name not in ("*", "FROM", "LOSS")]


def test_the_page_has_the_keys_of_the_json_output_of_check_filesystem(run_program: RunProgram, tmp_path: Path) -> None:
    """Every key of the object and of a finding."""
    found = json.loads(run_program("check-filesystem", tmp_path, "--json").stdout)

    assert first_column(section(PAGE, "`check-filesystem`"), "key") == [*found, *found["findings"][0]]
