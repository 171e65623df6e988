"""Show plans and findings: a table for people, one JSON object for programs, a progress bar on a terminal."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

from immutable_logs.catalog import format_seconds
from immutable_logs.cli.plain_text import harmless
from immutable_logs.cli.terminal import cell, new_table, open_console, print_table
from immutable_logs.records import FORMAT, format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from migration.plan import ExperimentPlan, PlannedFile, PlannedRun

_MAX_LINES: Final = 20
_MAX_PLACES: Final = 4
_REFRESH: Final = 200
"""Files between two updates of the progress bar: more often would cost more than the work."""


@contextmanager
def progress(words: str, total: int, *, is_wanted: bool) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr for a `with` block, if that is a terminal; yields what to call for each file."""
    if not is_wanted or not sys.stderr.isatty() or total == 0:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No thread that refreshes it: a process with threads cannot be forked safely, as `apply` does.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(words, total=total)
        seen = 0

        def advance() -> None:
            nonlocal seen
            seen += 1
            if seen % _REFRESH == 0:
                bar.update(task, completed=min(seen, total), refresh=True)

        yield advance


class JsonStream:
    """Print one JSON object with a list in it, an item at a time, since a plan can be larger than the memory."""

    def __init__(self) -> None:
        """Begin the object."""
        self._items = 0
        sys.stdout.write(f'{{"format": {FORMAT}, "experiments": [')

    def write(self, head: dict[str, Any], files: Iterable[dict[str, Any]], tail: Callable[[], dict[str, Any]]) -> None:
        """Print one experiment.

        Args:
            head: Keys that come first.
            files: The items of its list ``files``.
            tail: Called when the files are printed: further keys.
        """
        sys.stdout.write(",\n" if self._items else "\n")
        self._items += 1
        sys.stdout.write(_inside(head) + ', "files": [')
        for number, file in enumerate(files):
            sys.stdout.write((",\n" if number else "\n") + json.dumps(file))
        sys.stdout.write("],\n" + _inside(tail(), is_head=False) + "}")

    def end(self, tail: dict[str, Any]) -> None:
        """End the object with further keys."""
        sys.stdout.write("],\n" + _inside(tail, is_head=False) + "}\n")


def file_document(planned: PlannedFile) -> dict[str, Any]:
    """Return what happens to a file, as JSON values."""
    return {
        "path": planned.evidence.path,
        "kind": planned.evidence.kind.value,
        "runs": [run.id for run in planned.runs],
        "names": list(planned.names),
        "is_uncertain": any(run.launch.is_uncertain for run in planned.runs),
        "is_adopted": bool(planned.runs) and not planned.missing,
        "reason": planned.reason,
    }


def run_document(run: PlannedRun) -> dict[str, Any]:
    """Return a planned run as JSON values."""
    return {
        "run": run.id,
        "state": state_of(run),
        "log_directory": run.log_directory.path or ".",
        "started": format_time(run.launch.start),
        "started_by": run.launch.why,
        "ended": format_time(run.launch.end),
        "ended_by": run.launch.why_end,
        "lineage": run.lineage,
        "resumed_from": run.resumed_from,
        "files": run.files,
        "pending": run.pending,
    }


def state_of(run: PlannedRun) -> str:
    """Return how a run stands: ``pruned``, ``uncertain``, ``adopted``, ``to add`` or ``to complete``."""
    if run.is_pruned:
        return "pruned"
    if not run.pending:
        return "adopted"
    if run.launch.is_uncertain:
        return "uncertain"
    return "to complete" if run.exists else "to add"


def print_plan(plan: ExperimentPlan, *, shows_files: bool) -> Counter[str]:
    """Print the plan of an experiment for people.

    Args:
        plan: The plan.
        shows_files: Whether every file is listed with its evidence.

    Returns:
        Numbers of files by what happens to them: ``pending``, ``adopted``, ``uncertain``, ``left``.
    """
    counts: Counter[str] = Counter()
    sources: dict[str, dict[str, None]] = {}
    uncertain: list[str] = []
    left: list[str] = [f"{item.path}: {item.reason}" for item in plan.left_alone]
    typer.echo(f"{harmless(plan.layout.path)}")
    for planned in plan.files():
        file = planned.evidence
        for run in planned.runs:
            sources.setdefault(run.id, {}).setdefault(file.source or ".", None)
        counts["pending" if planned.missing else "adopted" if planned.runs else "left"] += 1
        if any(run.launch.is_uncertain for run in planned.runs):
            counts["uncertain"] += 1
            _keep(uncertain, f"{file.path}: {planned.reason}")
        if not planned.runs:
            _keep(left, f"{file.path}: {planned.reason}")
        if shows_files:
            runs = ", ".join(f"{run.id}/{name}" for run, name in zip(planned.runs, planned.names, strict=True))
            typer.echo(f"  {harmless(file.path)} -> {harmless(runs) or 'left alone'}: {harmless(planned.reason)}")
    _print_runs(plan, sources)
    _print_lines("Whose launch is not known:", uncertain, counts["uncertain"], is_whole=shows_files)
    _print_lines("Left alone:", left, counts["left"] + len(plan.left_alone), is_whole=False)
    for problem in plan.problems:
        typer.echo(f"  {harmless(problem)}")
    return counts


def _print_runs(plan: ExperimentPlan, sources: dict[str, dict[str, None]]) -> None:
    table = new_table("RUN", "STATE", "LASTED", "FILES", "FROM", "START KNOWN BY", whole=("RUN",), numbers=("FILES",))
    for run in sorted(plan.runs, key=lambda run: (run.launch.start, run.id)):
        if not run.files:
            continue
        places = list(sources.get(run.id, {}))
        shown = ", ".join(places[:_MAX_PLACES])
        if len(places) > _MAX_PLACES:
            shown += f" and {len(places) - _MAX_PLACES} more"
        lasted = "-" if run.launch.is_uncertain else format_seconds(run.launch.end - run.launch.start)
        table.add_row(
            cell(run.id), cell(state_of(run)), cell(lasted), cell(run.files), cell(shown), cell(run.launch.why)
        )
    if table.row_count:
        print_table(open_console(), table)


def _keep(lines: list[str], line: str) -> None:
    if len(lines) < _MAX_LINES:
        lines.append(line)


def _print_lines(heading: str, lines: list[str], count: int, *, is_whole: bool) -> None:
    if not lines:
        return
    typer.echo(heading)
    for line in lines[:_MAX_LINES]:
        typer.echo(f"  {harmless(line)}")
    if count > len(lines[:_MAX_LINES]) and not is_whole:
        typer.echo(f"  ... and {count - len(lines[:_MAX_LINES])} more; --files and --json show each file")


def _inside(document: dict[str, Any], *, is_head: bool = True) -> str:
    text = json.dumps(document)
    return text[:-1] if is_head else text[1:-1]
