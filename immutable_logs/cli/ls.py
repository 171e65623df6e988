"""`immutable-logs ls`: the runs of an experiment, in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from immutable_logs.catalog import RUNNING, Experiment, format_seconds
from immutable_logs.cli.documents import experiment_document
from immutable_logs.cli.options import HERE, ExperimentArgument, JsonOption
from immutable_logs.cli.plain_text import NOTHING
from immutable_logs.cli.terminal import cell, new_table, note, open_console, print_json, print_table, status_cell
from immutable_logs.records import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_NUMBERS: Final = ("AGE", "DURATION", "RANKS", "STEP")
_ROOM_FOR_WHOLE_IDS: Final = 140
_ROOM_FOR_EVERY_COLUMN: Final = 110
_RUN_ID_END: Final = 5


def list_runs(experiment: ExperimentArgument = HERE, as_json: JsonOption = False) -> None:
    """List the runs of an experiment, the newest last.

    The order is that in which they started. The run with a * is the one that the link `latest` shows. STATUS is
    running, finished, failed, interrupted, unknown (no end recorded and no sign of life), adopted (by a migration),
    pruned, or missing (its directory is gone). AGE counts from the start; the DURATION of a run that goes on ends
    with a +. RANKS are those that joined, of those expected. WHERE is the scheduler's job or the host. A narrow
    terminal gets fewer columns.

    \b
    Examples:
      immutable-logs ls                          the experiment in the current directory
      immutable-logs ls nemo_experiments/asr
      immutable-logs ls --json | jq -r '.runs[] | select(.status == "failed") | .path'
    """
    now = time.time()
    document = experiment_document(Experiment(experiment), now=now)
    if as_json:
        print_json(document)
        return
    print_runs(open_console(), document, now=now)
    if document["damaged_lines"]:
        note(
            f"Lines of the manifest that cannot be read: {document['damaged_lines']}. "
            "No run is lost by it: runs are found by their directories too"
        )


def print_runs(console: Console, document: dict[str, Any], *, now: float) -> None:
    """Print the table of runs.

    Args:
        console: Where to.
        document: What `experiment_document` returned.
        now: Unix time, for the ages.
    """
    if not document["runs"]:
        note(f"No runs yet in {document['experiment']}")
        return
    print_table(console, _table(document["runs"], now=now, width=console.width))
    if document["latest"] is None:
        note("No link `latest` shows one of these runs")


def _table(runs: list[dict[str, Any]], *, now: float, width: int) -> Table:
    """Return the table of runs; where there is little room, with less in it rather than with torn cells."""
    columns: dict[str, Callable[[dict[str, Any]], Text]] = {
        "": lambda run: cell("*" if run["is_latest"] else ""),
        "RUN": lambda run: cell(run["run"]),
        "STATUS": lambda run: status_cell(run["status"]),
        "AGE": lambda run: cell(format_age(run, now)),
        "DURATION": lambda run: cell(format_duration(run)),
        "RANKS": lambda run: cell(format_ranks(run)),
        "STEP": lambda run: cell(run["step"]),
        "WHERE": lambda run: cell(run["host"] if run["job"] is None else f"job {run['job']}"),
        "RESUMED FROM": lambda run: cell(run["resumed_from"]),
    }
    if width < _ROOM_FOR_WHOLE_IDS:
        del columns["RESUMED FROM"]
        columns["FROM"] = lambda run: cell(_shorten(run["resumed_from"]))
    if width < _ROOM_FOR_EVERY_COLUMN:
        del columns["AGE"], columns["WHERE"]
    table = new_table(*columns, whole=("", "RUN", "STATUS", *_NUMBERS, "FROM", "RESUMED FROM"), numbers=_NUMBERS)
    for run in runs:
        table.add_row(*(show(run) for show in columns.values()))
    return table


def _shorten(run_id: object) -> str | None:
    """Return the random end of a run id, which is enough to find it in the same table."""
    return None if run_id is None else f"..{str(run_id)[-_RUN_ID_END:]}"


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
