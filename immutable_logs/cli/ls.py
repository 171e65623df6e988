"""`immutable-logs ls`: the runs of an experiment, or of several, in order."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from immutable_logs.catalog import RUNNING, Experiment, Listing, RunSummary, format_seconds
from immutable_logs.cli.columns import Column, lay_out, paint
from immutable_logs.cli.documents import listing_document
from immutable_logs.cli.filters import RunFilter
from immutable_logs.cli.lineage_graph import draw_lineages
from immutable_logs.cli.nearby import find_experiments, is_experiment
from immutable_logs.cli.options import HERE, JsonOption, MetricsOption, complete_status
from immutable_logs.cli.plain_text import NOTHING, harmless
from immutable_logs.cli.terminal import has_colours, note, print_json, status_style, terminal_width
from immutable_logs.errors import ConfigurationError
from immutable_logs.layout import ExperimentLayout
from immutable_logs.records import parse_time

_ROOM_FOR_WHOLE_IDS: Final = 140
_ROOM_FOR_EVERY_COLUMN: Final = 110
_RUN_ID_END: Final = 5

ExperimentsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="EXPERIMENT",
        help="Directories that hold `runs/`, or below which there are some.  [default: .]",
        show_default=False,
    ),
]


def list_runs(
    experiments: ExperimentsArgument = None,
    *,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "-s",
            "--status",
            metavar="STATUS",
            help="Only runs with this status; may be repeated.",
            autocompletion=complete_status,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only runs that started since: 90m, 6h, 2d, 1w ago, or 2026-12-01T08:30 UTC."
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only runs with rank zero on such a host, as in 'gpu-*'.")
    ] = None,
    metrics: MetricsOption = False,
    graph: Annotated[bool, typer.Option("--graph", help="Draw which run continues which.")] = False,
    long: Annotated[bool, typer.Option("-l", "--long", help="Every column, and what each status rests on.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Draw again every few seconds, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the runs of experiments, the newest last.

    The order is that in which they started. The run with a * is the one that the link `latest` shows. STATUS is
    running, finished, failed, interrupted, unknown (no end recorded and no sign of life), adopted (by a migration),
    pruned, or missing (its directory is gone). AGE counts from the start; the DURATION of a run that goes on ends
    with a +. RANKS are those that joined, of those expected. WHERE is the scheduler's job or the host. A narrow
    terminal gets fewer columns.

    A directory that is no experiment stands for the experiments below it.

    \b
    Examples:
      immutable-logs ls                           the experiment in the current directory
      immutable-logs ls nemo_experiments          all experiments below a directory
      immutable-logs ls --status failed --status unknown --since 2d
      immutable-logs ls --graph --metrics         which run continues which, with the last loss
      immutable-logs ls --watch                   see how a training stands
      immutable-logs ls --json | jq -r '.runs[] | select(.status == "failed") | .path'
    """
    run_filter = RunFilter.of(status or (), since, host, now=time.time())
    opened = [Experiment(path) for path in _resolve(experiments or [HERE])]

    def look() -> tuple[dict[str, Any], list[Listing]]:
        listings = [experiment.listing() for experiment in opened]
        progress = _Progress(is_shown=not watch and sys.stderr.isatty()) if metrics else None
        document = listing_document(
            list(zip(opened, listings, strict=True)), now=time.time(), run_filter=run_filter, on_reading=progress
        )
        if progress is not None:
            progress.clear()
        return document, listings

    def draw(document: dict[str, Any], listings: Sequence[Listing]) -> tuple[list[str], list[str]]:
        return _lines(document, opened, listings, is_graph=graph, is_long=long)

    if metrics:
        # Before anything is listed: what is missing is missing for all runs.
        from immutable_logs.curves import require_tensorboard

        require_tensorboard()
    if watch:
        if as_json or not sys.stdout.isatty():
            found = "--json" if as_json else "a pipe or a file"
            raise ConfigurationError(
                "--watch",
                found,
                f"expected a terminal for --watch, found {found}; without it the runs are listed once",
            )
        from immutable_logs.cli.watching import watch_lines

        watch_lines(lambda: [line for lines in draw(*look()) for line in lines])
    document, listings = look()
    if as_json:
        print_json(document)
        return
    lines, notes = draw(document, listings)
    if lines:
        typer.echo("\n".join(lines), color=True)
    for each in notes:
        note(each)


def print_runs(document: dict[str, Any], *, now: float) -> None:
    """Print the table of runs.

    Args:
        document: What `experiment_document` returned.
        now: Unix time, for the ages.
    """
    lines = _table(document["runs"], now=now, is_graph=False, is_long=False, parents={})
    typer.echo("\n".join(lines), color=True)


def _resolve(paths: Sequence[Path]) -> list[Path]:
    """Return the experiments that are meant: those named, and those below a directory that is none."""
    found: dict[Path, None] = {}
    for path in paths:
        below: list[Path] = []
        if not is_experiment(path):
            below, is_complete = find_experiments(path)
            if below and not is_complete:
                note(f"There are too many directories to look at all of them: {path}. Experiments may be missing here")
        found.update(dict.fromkeys(below or [ExperimentLayout.of(path).path]))
    return list(found)


def _lines(
    document: dict[str, Any],
    experiments: Sequence[Experiment],
    listings: Sequence[Listing],
    *,
    is_graph: bool,
    is_long: bool,
) -> tuple[list[str], list[str]]:
    """Return the lines of the tables, one for each experiment, and what is to be said beside them."""
    now = time.time()
    lines: list[str] = []
    notes: list[str] = []
    by_experiment: dict[str, list[dict[str, Any]]] = {}
    for run in document["runs"]:
        by_experiment.setdefault(run["experiment"], []).append(run)
    for experiment, listing in zip(experiments, listings, strict=True):
        runs = by_experiment.get(str(experiment.path), [])
        if not runs:
            notes.append(f"{'No run is like that' if listing.runs else 'No runs yet'} in {experiment.path}")
            continue
        if len(experiments) > 1:
            heading = harmless(experiment.path)
            lines += [*([""] if lines else []), paint(heading, "bold") if has_colours() else heading]
        parents = {run.id: run.resumed_from for run in listing.runs} if is_graph else {}
        lines += _table(runs, now=now, is_graph=is_graph, is_long=is_long, parents=parents)
        if listing.latest is None:
            notes.append(
                "No link `latest` shows one of these runs" + (f": {experiment.path}" if len(experiments) > 1 else "")
            )
    if document["damaged_lines"]:
        notes.append(
            f"Lines of the manifest that cannot be read: {document['damaged_lines']}. "
            "No run is lost by it: runs are found by their directories too"
        )
    notes += [problem for run in document["runs"] for problem in run.get("metrics", {}).get("problems", ())]
    return lines, [harmless(each) for each in notes]


def _table(
    runs: Sequence[dict[str, Any]], *, now: float, is_graph: bool, is_long: bool, parents: dict[str, str | None]
) -> list[str]:
    """Return the table of runs; where there is little room, with less in it rather than with torn cells."""
    width = terminal_width()
    room = _ROOM_FOR_WHOLE_IDS if width is None or is_long else width
    has_every_column = room >= _ROOM_FOR_EVERY_COLUMN
    columns: list[tuple[Column, Callable[[dict[str, Any]], object]]] = [
        (Column(""), lambda run: "*" if run["is_latest"] else "")
    ]
    if is_graph:
        drawn = dict(
            zip((run["run"] for run in runs), draw_lineages([run["run"] for run in runs], parents), strict=True)
        )
        columns.append((Column("GRAPH"), lambda run: drawn[run["run"]]))
    columns += [
        (Column("RUN"), lambda run: run["run"]),
        (Column("STATUS", style=status_style), lambda run: run["status"]),
    ]
    if has_every_column:
        columns.append((Column("AGE", is_number=True), lambda run: format_age(run, now)))
    columns += [
        (Column("DURATION", is_number=True), format_duration),
        (Column("RANKS", is_number=True), format_ranks),
        (Column("STEP", is_number=True), _step),
    ]
    if any("metrics" in run for run in runs):
        columns.append((Column("LOSS", is_number=True), lambda run: format_value(run["metrics"]["loss"])))
    if has_every_column:
        columns.append((Column("WHERE", can_be_cut=not is_long), format_place))
    if room >= _ROOM_FOR_WHOLE_IDS:
        columns.append((Column("RESUMED FROM"), lambda run: run["resumed_from"]))
    else:
        columns.append((Column("FROM"), lambda run: shorten_run_id(run["resumed_from"])))
    if is_long:
        columns.append((Column("EVIDENCE"), lambda run: run["evidence"]))
    shows = [show for _, show in columns]
    return list(
        lay_out(
            [column for column, _ in columns],
            [[show(run) for show in shows] for run in runs],
            width=width,
            has_colours=has_colours(),
        )
    )


class _Progress:
    """Says on a terminal how many runs have been read."""

    def __init__(self, *, is_shown: bool) -> None:
        self._count = 0
        self._is_shown = is_shown

    def __call__(self, run: RunSummary) -> None:
        self._count += 1
        if self._is_shown:
            typer.echo(f"\r\x1b[2KReading the event files of run {self._count}: {run.id}", nl=False, err=True)

    def clear(self) -> None:
        if self._is_shown and self._count:
            typer.echo("\r\x1b[2K", nl=False, err=True)


def shorten_run_id(run_id: object) -> str | None:
    """Return the random end of a run id, which is enough to find it in the same table."""
    return None if run_id is None else f"..{str(run_id)[-_RUN_ID_END:]}"


def _step(run: dict[str, Any]) -> int | None:
    """Return the last step: as recorded at the end, else as in the event files, if they were read."""
    step: int | None = run["step"]
    return run.get("metrics", {}).get("step") if step is None else step


def format_age(run: dict[str, Any], now: float) -> str:
    """Return how long ago a run started."""
    started = parse_time(run["started"])
    return NOTHING if started is None else format_seconds(now - started)


def format_duration(run: dict[str, Any]) -> str:
    """Return how long a run took, with a plus sign while it goes on."""
    if run["duration_seconds"] is None:
        return NOTHING
    return format_seconds(run["duration_seconds"]) + ("+" if run["status"] == RUNNING else "")


def format_ranks(run: dict[str, Any]) -> str:
    """Return how many ranks joined, of how many expected."""
    joined, expected = (NOTHING if run[key] is None else run[key] for key in ("ranks_joined", "world_size"))
    return f"{joined}/{expected}"


def format_place(run: dict[str, Any]) -> str | None:
    """Return the scheduler's job, or the host of rank zero."""
    host: str | None = run["host"]
    return host if run["job"] is None else f"job {run['job']}"


def format_value(value: object) -> str:
    """Return a scalar with as many digits as say something."""
    return NOTHING if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
