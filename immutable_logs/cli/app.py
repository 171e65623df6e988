"""The commands of `immutable-logs`, and its entry."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Final

import typer

from immutable_logs.cli.command_group import CommandGroup, run_reporting_bugs
from immutable_logs.cli.demo import run_demo
from immutable_logs.cli.ls import list_runs
from immutable_logs.cli.path import print_path
from immutable_logs.cli.show import show_run
from immutable_logs.cli.verify import verify

PROGRAM: Final = "immutable-logs"

app: Final = typer.Typer(
    name=PROGRAM,
    cls=CommandGroup,
    no_args_is_help=True,
    # Plain help: quicker than rich's panels, since rich is not loaded, and it can be piped and searched.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command("ls")(list_runs)
app.command("show")(show_run)
app.command("path")(print_path)
app.command("verify")(verify)
app.command("demo")(run_demo)


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
      immutable-logs verify                        is everything on disk as it should be
      tail -F "$(immutable-logs path)"/nemo_log_*  for scripts

    \b
    Exit codes:
      0  done
      1  a finding, such as a file that vanished
      2  wrong use: unknown option, run or experiment
      3  could not: a file that cannot be read, NeMo not installed
    """
