"""`immutable-logs report`: one page on an experiment, to look at and to pass on."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from immutable_logs.catalog import Experiment
from immutable_logs.cli.options import HERE, ExperimentArgument
from immutable_logs.cli.plain_text import format_bytes, harmless
from immutable_logs.cli.terminal import note

_STDOUT: Final = Path("-")
_MOST_RUNS: Final = 2000
"""A page with more is too large for a phone."""

_CLEAR_LINE: Final = "\r\x1b[2K"


def write_report(
    experiment: ExperimentArgument = HERE,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write; - is standard output.")
    ] = Path("report.html"),
    last: Annotated[
        int, typer.Option(min=1, max=_MOST_RUNS, metavar="N", help="How many runs are shown, the newest ones.")
    ] = 100,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is no report.")] = False,
) -> None:
    """Write one HTML page on an experiment: when its runs ran, their loss, and what went wrong first.

    The page has the runs on a time axis with their status, the training loss over all resumes, which run continues
    which, the first errors of the newest runs that ended badly, a table of the launches, and how the latest run was
    started. It is one file: it loads nothing, runs no code, and can be read on a phone and printed. It does not have
    the configuration, but it does have names of hosts and users, command lines and what the logs say of errors.

    An older report of that name is replaced; any other file only with --force. The loss needs TensorBoard; without it
    the page has all the rest, and says so.

    \b
    Examples:
      immutable-logs report                            report.html, of the experiment in the current directory
      immutable-logs report exp/asr -o asr.html --last 20
      immutable-logs report exp/asr -o - | ssh desk 'cat > asr.html'
    """
    from immutable_logs.report.contents import collect_contents
    from immutable_logs.report.output import check_output, write_output
    from immutable_logs.report.page import render_page

    opened = Experiment(experiment)
    is_stdout = output == _STDOUT
    if not is_stdout:
        # Before the logs are searched, which can take minutes.
        check_output(output, is_forced=force)
    is_watched = sys.stderr.isatty()

    def say(what: str) -> None:
        if is_watched:
            typer.echo(f"{_CLEAR_LINE}{harmless(what)}", nl=False, err=True)

    try:
        contents = collect_contents(opened, last=last, now=time.time(), on_progress=say)
    finally:
        if is_watched:
            typer.echo(_CLEAR_LINE, nl=False, err=True)
    page = render_page(contents)
    if is_stdout:
        sys.stdout.flush()
        sys.stdout.buffer.write(page)
        sys.stdout.buffer.flush()
        return
    write_output(output, page, is_forced=force)
    note(f"Wrote {output} ({format_bytes(len(page))}): {len(contents.runs)} of {contents.total} runs")
