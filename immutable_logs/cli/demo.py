"""`immutable-logs demo`: the layout at work, seen in a small training."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from immutable_logs.catalog import Experiment
from immutable_logs.cli.command_group import FINDING
from immutable_logs.cli.documents import experiment_document
from immutable_logs.cli.experiment_tree import draw_tree
from immutable_logs.cli.ls import print_runs
from immutable_logs.cli.options import JsonOption
from immutable_logs.cli.plain_text import harmless
from immutable_logs.cli.terminal import cell, note, open_console, print_json

if TYPE_CHECKING:
    from immutable_logs.demo.demonstration import Demonstration

_CLEAR_LINE: Final = "\r\x1b[2K"
_PROGRESS_WIDTH: Final = 76


def run_demo(
    ranks: Annotated[int, typer.Option(min=1, metavar="N", help="How many processes train together.")] = 2,
    directory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new or empty directory.  [default: a temporary one, which is kept]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a small NeMo model three times and see the layout at work.

    The script is an ordinary NeMo script, started with `exp_manager.log_layout=immutable`; the second and the third
    launch resume. All the time a reader in another process lists, opens and reads every file again and again, as
    TensorBoard and rsync do. It must not lose one: if it does, the exit code is 1. Needs NeMo, no GPU and no network.

    \b
    Examples:
      immutable-logs demo
      immutable-logs demo --ranks 4 --directory /shared/scratch/demo
    """
    from immutable_logs.demo.demonstration import STEPS, demonstrate

    begin = time.monotonic()
    is_watched = sys.stderr.isatty()

    def say_launch(number: int) -> None:
        start = f"resumes at step {STEPS[number - 2]}" if number > 1 else "starts from nothing"
        clear()
        note(f"Launch {number} of {len(STEPS)}: {start}, trains to step {STEPS[number - 1]} with ranks: {ranks}")

    def say_line(line: str) -> None:
        if is_watched:
            typer.echo(f"{_CLEAR_LINE}  {harmless(line)[:_PROGRESS_WIDTH]}", nl=False, err=True)

    def clear() -> None:
        if is_watched:
            typer.echo(_CLEAR_LINE, nl=False, err=True)

    try:
        demonstration = demonstrate(directory, ranks=ranks, on_launch=say_launch, on_line=say_line)
    finally:
        clear()
    note(f"Done in {time.monotonic() - begin:.0f} s")
    document = _document(demonstration)
    if as_json:
        print_json(document)
    else:
        _print_demonstration(demonstration, document)
    if demonstration.problems:
        raise typer.Exit(FINDING)


def _document(demonstration: Demonstration) -> dict[str, Any]:
    document = experiment_document(Experiment(demonstration.experiment), now=time.time())
    return {
        **document,
        "directory": str(demonstration.directory),
        "launches": [asdict(launch) for launch in demonstration.launches],
        "reader": demonstration.reader,
        "problems": list(demonstration.problems),
    }


def _print_demonstration(demonstration: Demonstration, document: dict[str, Any]) -> None:
    console = open_console()
    console.print("What was started", style="bold")
    for launch in demonstration.launches:
        console.print(cell(f"  {launch.command}"), soft_wrap=True)
    console.print("\nWhich runs there are (immutable-logs ls)", style="bold")
    print_runs(document, now=time.time())
    console.print("\nWhat lies on disk", style="bold")
    console.print(draw_tree(demonstration.experiment))
    console.print("\nWhat a reader saw meanwhile", style="bold")
    reader = demonstration.reader
    console.print(
        f"  {reader['names']} names, {reader['reads']} reads in {reader['passes']} passes: "
        f"{reader['failure_count']} failures",
        style="red" if reader["failure_count"] else "green",
        soft_wrap=True,
    )
    console.print(
        f"  checkpoints that Lightning itself removed or replaced, as always: {reader['rotated']}", soft_wrap=True
    )
    for failure in reader["failures"]:
        console.print(cell(f"  {failure['path']}: {failure['problem']}"), soft_wrap=True)
    if demonstration.problems:
        console.print("\nWhat is not as promised", style="bold red")
        for problem in demonstration.problems:
            console.print(cell(f"  {problem}"), soft_wrap=True)
    console.print("\nWhat to look at next", style="bold")
    for command in (
        f"cd {demonstration.experiment}",
        "immutable-logs show                    everything known of the latest run",
        "immutable-logs show latest~1           and of the run before it",
        "tensorboard --logdir tensorboard       one curve over the three runs",
        f"less {demonstration.launches[-1].output}",
    ):
        console.print(cell(f"  {command}"), soft_wrap=True)
