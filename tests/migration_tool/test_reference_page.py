"""The page on `migrate-nemo-logs` has its commands, their options and the keys of their JSON objects."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from migration.cli import app
from tests.reference_pages import REFERENCE, first_column, options_in_help, section

Migrate = Callable[..., subprocess.CompletedProcess[str]]

PAGE = REFERENCE / "cli-migration.md"
COMMANDS = [str(command.name) for command in app.registered_commands]


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_the_page_has_the_options_that_help_has(migrate: Migrate, command: str | None) -> None:
    """Every option of the help is on the page under its command, and no other."""
    documented = first_column(section(PAGE, "Options of the program" if command is None else f"`{command}`"), "option")

    found = options_in_help(migrate(*([command] if command else []), "--help").stdout)

    assert "--help" in found
    assert sorted(documented) == sorted(found)


def test_the_page_has_every_command_and_no_other() -> None:
    """A command that is added must be documented."""
    assert re.findall(r"^## `([\w-]+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == COMMANDS


def test_the_page_has_the_keys_of_the_json_objects(unpack: Callable[[str], Path], migrate: Migrate) -> None:
    """Of every command, in order, in a tree with all that a plan can hold."""
    path = unpack("3.0.0_torchrun_testing")
    for command in ["plan", "apply", "verify", "undo", "apply", "finalize"]:
        document = json.loads(migrate(command, "--json", path).stdout)
        assert list(document) == first_column(section(PAGE, "The JSON object"), "key")
        (experiment,) = document["experiments"]
        keys = list(experiment)
        if command == "plan":
            keys += [*experiment["files"][0], *experiment["runs"][0]]
            assert list(experiment["left_alone"][0]) == ["path", "reason", "is_conflict"]
        assert keys == ["experiment", *first_column(section(PAGE, f"`{command}`"), "key")], command
