"""Arguments and options that several commands share."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from immutable_logs.catalog import MISSING, Experiment
from immutable_logs.cli.filters import STATUSES
from immutable_logs.cli.plain_text import harmless
from immutable_logs.errors import ImmutableLogsError
from immutable_logs.layout import LATEST
from immutable_logs.records import PRUNED

HERE: Final = Path()


_MAX_DISTANCE_OFFERED: Final = 20


def complete_reference(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the run references that begin with a text, with a word on each, the newest first; for the shell.

    `latest~N` is offered only from its `~` on: until then `latest` itself is what is meant.
    """
    with suppress(ImmutableLogsError, OSError):
        listing = Experiment(ctx.params.get("experiment") or HERE).listing()
        runs = listing.runs[::-1]
        offered = [(run.id, run.status) for run in runs]
        if incomplete.startswith(f"{LATEST}~"):
            there = [run for run in runs if run.status not in (PRUNED, MISSING)]
            position = next((index for index, run in enumerate(there) if run.id == listing.latest), len(there))
            earlier = there[position + 1 : position + 1 + _MAX_DISTANCE_OFFERED]
            offered = [
                (f"{LATEST}~{number}", f"{run.id}, {run.status}") for number, run in enumerate(earlier, start=1)
            ]
        elif listing.latest is not None:
            offered.insert(0, (LATEST, listing.latest))
        return [(name, harmless(word)) for name, word in offered if name.startswith(incomplete)]
    return []


def complete_status(incomplete: str) -> list[str]:
    """Return the statuses that begin with a text; for the shell."""
    return [status for status in STATUSES if status.startswith(incomplete)]


ReferenceArgument = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="A run id, the unique beginning of one, `latest`, or `latest~N`.",
        autocompletion=complete_reference,
        show_default=True,
    ),
]
ExperimentArgument = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT", help="The directory that holds `runs/`.", show_default=True)
]
ExperimentOption = Annotated[
    Path,
    typer.Option("-e", "--experiment", metavar="DIR", help="The directory that holds `runs/`.", show_default=True),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
MetricsOption = Annotated[
    bool, typer.Option("--metrics", help="Read the event files too, for the last step and loss. Needs TensorBoard.")
]
