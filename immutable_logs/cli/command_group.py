"""How commands end: the one place that maps errors to exit codes, and that finds commands of other packages."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup

from immutable_logs.cli.plain_text import harmless_lines
from immutable_logs.errors import (
    ConfigurationError,
    ImmutableLogsError,
    InvalidRunIdError,
    NotAnExperimentError,
    UnknownRunError,
    describe_os_error,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FINDING: Final = 1
WRONG_USE: Final = 2
COULD_NOT: Final = 3
_INTERRUPTED: Final = 130
_READER_GONE: Final = 141
"""What the shell reports for a program that SIGPIPE ended, as `ls` in ``ls | head``."""

COMMANDS_GROUP: Final = "immutable_logs.commands"
"""The entry-point group in which another package offers a Typer application as a command."""

_WRONG_USE_ERRORS: Final = (ConfigurationError, InvalidRunIdError, NotAnExperimentError, UnknownRunError)

_NO_PATH: Final = frozenset((errno.ENAMETOOLONG, errno.ELOOP))
"""No file can be at such a path, so that it was given by mistake."""


class CommandGroup(TyperGroup):
    """A group of commands that ends with the exit codes of this program, and finds commands of other packages.

    Attributes:
        places: For each command that is loaded when it is asked for, its module and the name in there, as in an
            entry point: a function, or a Typer application with one command.
    """

    places: Mapping[str, str] = MappingProxyType({})

    # The type of `ctx` belongs to click, which is a package of its own or a part of Typer, by Typer's version.

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error becomes a message on stderr and an exit code."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            # What is still buffered must not raise again when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_READER_GONE) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except (ImmutableLogsError, OSError) as error:
            typer.echo(f"Error: {harmless_lines(describe_error(error))}", err=True)
            is_wrong_use = isinstance(error, _WRONG_USE_ERRORS) or getattr(error, "errno", None) in _NO_PATH
            raise typer.Exit(WRONG_USE if is_wrong_use else COULD_NOT) from None

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, those of other packages last."""
        return [*super().list_commands(ctx), *self.places, *_commands_elsewhere()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; another package is loaded only when one of its own is asked for."""
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in self.places:
            return _load_own(cmd_name, self.places[cmd_name])
        if command is None and cmd_name in (elsewhere := _commands_elsewhere()):
            return _load(elsewhere[cmd_name])
        return command


def run_reporting_bugs(application: typer.Typer, program: str) -> None:
    """Run an application; an error that nobody foresaw ends with its traceback and `COULD_NOT`.

    Python would end with 1, which scripts take for a finding. A stream that the caller has closed is no error: what
    would go there goes nowhere.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open to the end
    try:
        application(prog_name=program)
    except Exception:  # noqa: BLE001 - the last resort
        traceback.print_exc()
        typer.echo("Error: this is a fault of the program; please report it with the lines above", err=True)
        sys.exit(COULD_NOT)


def describe_error(error: Exception) -> str:
    """Return the message for an error, with what may help."""
    if isinstance(error, NotAnExperimentError):
        from immutable_logs.cli.nearby import describe_nearby

        return "\n".join([str(error), *describe_nearby(error.path)])
    return describe_os_error(error) if isinstance(error, OSError) else str(error)


def _commands_elsewhere() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in sorted(entry_points(group=COMMANDS_GROUP), key=lambda entry: entry.name)}


def _load_own(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        application = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        application.command(name)(found)
        found = application
    command = typer.main.get_command(found)
    command.name = name
    return command


def _load(entry: EntryPoint) -> Any:
    """Return the command of another package; if that is broken, one that says so, for the help must list the rest."""
    try:
        application = entry.load()
    except Exception as error:  # noqa: BLE001 - other people's code
        application = _unavailable(
            f"the command {entry.name!r} cannot be loaded from {entry.value}: {type(error).__name__}: {error}"
        )
    command = typer.main.get_command(application)
    command.name = entry.name
    return command


def _unavailable(message: str) -> typer.Typer:
    application = typer.Typer(add_completion=False)

    @application.command(help=message, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def fail() -> None:
        raise ImmutableLogsError(message)

    return application
