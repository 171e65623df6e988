"""The commands of `immutable-logs`, and its entry."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Final

import typer

from immutable_logs.cli.command_group import CommandGroup, run_reporting_bugs

PROGRAM: Final = "immutable-logs"

COMMANDS: Final = {
    "ls": "immutable_logs.cli.ls:list_runs",
    "show": "immutable_logs.cli.show:show_run",
    "path": "immutable_logs.cli.path:print_path",
    "logs": "immutable_logs.cli.logs:show_logs",
    "diff": "immutable_logs.cli.diff:compare",
    "tensorboard": "immutable_logs.cli.tensorboard:app",
    "verify": "immutable_logs.cli.verify:verify",
    "check-filesystem": "immutable_logs.cli.check_filesystem:check",
    "prune": "immutable_logs.cli.prune:prune",
    "report": "immutable_logs.cli.report:write_report",
    "demo": "immutable_logs.cli.demo:run_demo",
}
"""Where the function, or the Typer application, of each command is. Loaded when the command is called or listed, so
that none has to wait for what the others need."""


class _Commands(CommandGroup):
    places = COMMANDS


app: Final = typer.Typer(
    name=PROGRAM,
    cls=_Commands,
    no_args_is_help=True,
    # Plain help: quicker than rich's panels, since rich is not loaded, and it can be piped and searched.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def main() -> None:
    """Run the command line: the entry of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A file name that is no text, or a terminal without UTF-8, must not end the listing with an error.
            stream.reconfigure(errors="backslashreplace")
    run_reporting_bugs(app, PROGRAM)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from immutable_logs import __version__

        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _describe(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Look at runs that are kept in the immutable layout: every launch has a directory of its own.

    An EXPERIMENT is the directory that holds `runs/`; for NeMo, exp_dir/name or explicit_log_dir. Without one, the
    current directory is meant.

    A REF names a run: its id, the unique beginning of its id, `latest`, or `latest~N` for N runs before it.

    \b
    Examples:
      immutable-logs demo                          see the layout at work, with a small training
      immutable-logs ls nemo_experiments/asr       which runs there are, and how each stands
      cd nemo_experiments/asr
      immutable-logs show                          everything known of the latest run
      immutable-logs show latest~1                 ... and of the one before
      immutable-logs logs --errors                 which rank failed first, and with what
      immutable-logs logs --follow                 what all ranks write now
      immutable-logs diff                          what has changed since the run before
      immutable-logs tensorboard --start           look at the curves
      immutable-logs verify                        is everything on disk as it should be
      immutable-logs check-filesystem /scratch     does this mount give what the layout needs
      immutable-logs prune --keep-last 20          which runs could go, and which not
      less "$(immutable-logs path)"/nemo_error_log.txt

    \b
    Exit codes:
      0  done
      1  a finding, such as a file that vanished
      2  wrong use: unknown option, run or experiment
      3  could not: a file that cannot be read, NeMo not installed
    """
