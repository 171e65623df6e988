"""`immutable-logs prune`: remove the directories of runs that nobody needs; the plan first."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from immutable_logs.catalog import Experiment, format_seconds
from immutable_logs.cli.columns import Column, lay_out
from immutable_logs.cli.command_group import COULD_NOT
from immutable_logs.cli.filters import parse_length
from immutable_logs.cli.options import HERE, ExperimentArgument, JsonOption
from immutable_logs.cli.plain_text import format_bytes
from immutable_logs.cli.terminal import has_colours, note, print_json, status_style
from immutable_logs.errors import ConfigurationError
from immutable_logs.pruning import KEPT, UNFINISHED, Result, plan_prune, prune_runs
from immutable_logs.records import FORMAT, PRUNED, format_time
from immutable_logs.retention import Conditions, Decision

_TAKE: Final = "take"
_KEEP: Final = "keep"

_ACTION_STYLES: Final = {_TAKE: "bold red", PRUNED: "bold red", UNFINISHED: "magenta"}


def prune(
    experiment: ExperimentArgument = HERE,
    *,
    keep_last: Annotated[
        int | None,
        typer.Option("--keep-last", metavar="N", min=0, help="Only runs that are not among the N last ones."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="TIME", help="Only runs that ended, and were last written in, before: 30d, 12w."
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only runs that have failed.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove what the plan takes. Without it nothing is changed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the directories of runs that nobody needs any more.

    Without --yes it shows the plan: which runs would go and which stay, each with the reason, and changes nothing. At
    least one of --keep-last, --older-than and --failed is needed; a run goes only if all that are given hold.

    Whatever is asked for, these stay: the run that `latest` shows and the one that started last; a run with a sign of
    life; one that ended, or in which anything was written, less than a day ago; one with checkpoints in its directory
    from which a run was resumed that stays. A run that is removed stays in the manifest, and `ls` shows it as pruned.
    Checkpoints go only if they lie in the run directory; the plan says so.

    If it is interrupted, the next call with --yes finishes what was begun.

    \b
    Examples:
      immutable-logs prune --keep-last 20                  the plan, for the experiment in the current directory
      immutable-logs prune exp/asr --keep-last 20 --yes    act
      immutable-logs prune --failed --older-than 30d       failed runs that are older than 30 days
      immutable-logs prune --older-than 90d --json | jq '[.runs[] | select(.action == "take").bytes] | add'
    """
    conditions = Conditions(
        keep_last, None if older_than is None else parse_length("--older-than", older_than), failed
    )
    if conditions.is_empty:
        raise ConfigurationError(
            "prune",
            None,
            "expected at least one condition, found none\n"
            "HINT: say which runs may go, with --keep-last N, --older-than 30d or --failed; without --yes the plan is "
            "shown and nothing is removed",
        )
    opened = Experiment(experiment)
    now = time.time()
    plan = plan_prune(opened, conditions, now=now)
    results: dict[str, Result] = {}
    if yes:
        try:
            for result in prune_runs(opened, plan, conditions):
                results[result.decision.run.id] = result
                _show_progress(len(results), plan)
        finally:
            # Also if it had to stop: what is gone is gone, and must be told.
            _clear_progress()
            _print(opened, plan, results, now=now, is_acting=True, as_json=as_json)
    else:
        _print(opened, plan, results, now=now, is_acting=False, as_json=as_json)
    if any(result.problem for result in results.values()):
        raise typer.Exit(COULD_NOT)


def _print(
    experiment: Experiment,
    plan: Sequence[Decision],
    results: dict[str, Result],
    *,
    now: float,
    is_acting: bool,
    as_json: bool,
) -> None:
    rows = [_row(decision, results.get(decision.run.id), is_acting=is_acting) for decision in plan]
    if as_json:
        print_json({"format": FORMAT, "experiment": str(experiment.path), "is_plan": not is_acting, "runs": rows})
        return
    columns = [
        Column("DONE" if is_acting else "PLAN", style=lambda text: _ACTION_STYLES.get(text, "")),
        Column("RUN"),
        Column("STATUS", style=status_style),
        Column("QUIET FOR", is_number=True),
        Column("BYTES", is_number=True),
        Column("WHY"),
    ]
    cells = [
        (
            row["action"],
            row["run"],
            row["status"],
            None if decision.quiet_since is None else format_seconds(now - decision.quiet_since),
            row["bytes"],
            row["problem"] or row["reason"],
        )
        for row, decision in zip(rows, plan, strict=True)
    ]
    if cells:
        typer.echo("\n".join(lay_out(columns, cells, has_colours=has_colours())), color=True)
    for line in _summary(rows, is_acting=is_acting):
        note(line)


def _row(decision: Decision, result: Result | None, *, is_acting: bool) -> dict[str, Any]:
    final = decision if result is None else result.decision
    action = _TAKE if decision.is_taken else _KEEP
    if is_acting:
        action = result.outcome if result is not None else KEPT
    problem = result.problem if result is not None else None
    if is_acting and decision.is_taken and result is None:
        problem = "its turn did not come"
    contents = decision.contents
    return {
        "run": decision.run.id,
        "status": decision.run.status,
        "action": action,
        "reason": final.reason,
        "problem": problem,
        "path": str(decision.run.path),
        "quiet_since": None if decision.quiet_since is None else format_time(decision.quiet_since),
        "bytes": contents.size if contents else None,
        "freed_bytes": contents.freed if contents else None,
        "has_checkpoints": contents.has_checkpoints if contents else None,
    }


def _summary(rows: Sequence[dict[str, Any]], *, is_acting: bool) -> list[str]:
    going = [row for row in rows if row["action"] in (_TAKE, PRUNED)]
    unfinished = sum(row["action"] == UNFINISHED for row in rows)
    stay = len(rows) - len(going) - unfinished
    size = sum(row["bytes"] for row in going)
    freed = sum(row["freed_bytes"] for row in going)
    space = f", {format_bytes(size)}" if going else ""
    if freed < size:
        space += f", of which {format_bytes(freed)} become free: the rest has other names"
    if is_acting:
        lines = [f"Removed: {len(going)}{space}. Kept: {stay}"]
        if unfinished:
            lines.append(f"Not removed to the end: {unfinished}. The next call with --yes goes on with them")
        return lines
    lines = [f"To remove: {len(going)}{space}. To keep: {stay}"]
    if going:
        lines.append("Nothing has been removed. With --yes it is")
    return lines


def _show_progress(count: int, plan: Sequence[Decision]) -> None:
    if sys.stderr.isatty():
        total = sum(decision.is_taken for decision in plan)
        typer.echo(f"\r\x1b[2KRemoving runs: {count} of {total}", nl=False, err=True)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        typer.echo("\r\x1b[2K", nl=False, err=True)
