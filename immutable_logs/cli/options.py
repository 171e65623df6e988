"""Arguments and options that several commands share."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from immutable_logs.catalog import Experiment
from immutable_logs.errors import ImmutableLogsError
from immutable_logs.layout import LATEST

HERE: Final = Path()


def complete_reference(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the run references that begin with a text, the newest first; for the shell's completion."""
    with suppress(ImmutableLogsError, OSError):
        runs = Experiment(ctx.params.get("experiment") or HERE).runs()
        return [name for name in (LATEST, *(run.id for run in reversed(runs))) if name.startswith(incomplete)]
    return []


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
