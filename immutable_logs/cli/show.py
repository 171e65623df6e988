"""`immutable-logs show`: everything known of one run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from immutable_logs.catalog import Experiment
from immutable_logs.cli.columns import Column, lay_out
from immutable_logs.cli.documents import details_document
from immutable_logs.cli.lineage_graph import draw_lineages
from immutable_logs.cli.ls import format_age, format_duration, format_ranks, format_value, shorten_run_id
from immutable_logs.cli.options import HERE, ExperimentOption, JsonOption, MetricsOption, ReferenceArgument
from immutable_logs.cli.plain_text import NOTHING, format_bytes, harmless, harmless_lines
from immutable_logs.cli.terminal import (
    cell,
    new_table,
    open_console,
    print_json,
    print_table,
    status_cell,
    status_style,
)
from immutable_logs.layout import LATEST
from immutable_logs.rank_entries import format_ranges

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_NAME_WIDTH: Final = 14
_MAX_WORLD_SIZE: Final = 1_000_000
"""More ranks than this stand in no true record, and naming those that are absent would use up the memory."""

_MAX_RANKS_SHOWN: Final = 16
"""With more ranks, a line for each host instead of one for each rank."""


def show_run(
    reference: ReferenceArgument = LATEST,
    experiment: ExperimentOption = HERE,
    metrics: MetricsOption = False,
    graph: Annotated[bool, typer.Option("--graph", help="Draw the runs of its lineage.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show everything known of one run.

    That is: how it stands and how that is known, how it was launched and which ranks joined, what it resumed and
    what resumed it, the command, commit, versions and configuration, the files in its directory, how it ended, and
    which of its records cannot be read. Secrets were taken out when the records were written.

    \b
    Examples:
      immutable-logs show                          the latest run of the experiment in the current directory
      immutable-logs show latest~1                 the run before it
      immutable-logs show 2026-12-01_02 -e exp/asr the one run whose id begins so
      immutable-logs show --metrics --graph        with the last values of its curves, and its lineage
      immutable-logs show --json | jq .configuration.trainer
    """
    now = time.time()
    opened = Experiment(experiment)
    document = details_document(opened, reference, now=now, with_metrics=metrics)
    if as_json:
        print_json(document)
        return
    console = open_console()
    _print_details(console, document, now=now)
    if graph:
        _print_heading(console, "Lineage")
        _print_block(console, "\n".join(_draw_lineage(opened, document["run"])))


def _print_details(console: Console, run: dict[str, Any], *, now: float) -> None:
    _print_facts(console, run, now=now)
    if run["end"] and run["end"].get("error"):
        _print_heading(console, "Error")
        _print_block(console, str(run["end"]["error"]))
    if run["problems"]:
        _print_heading(console, "Records that cannot be read")
        _print_block(console, "\n".join(run["problems"]))
    if run["ranks"]:
        _print_heading(console, "Ranks")
        ranks = run["ranks"]
        print_table(console, _ranks(ranks) if len(ranks) <= _MAX_RANKS_SHOWN else _hosts(ranks))
    if run.get("metrics"):
        _print_heading(console, "Curves, at their last steps")
        print_table(console, _values(run["metrics"]["values"]))
        _print_block(console, "\n".join(run["metrics"]["problems"]))
    if run["configuration"] is not None:
        _print_heading(console, "Configuration")
        _print_block(console, "\n".join(_flatten(run["configuration"])))
    if run["files"]:
        _print_heading(console, "Files")
        print_table(console, _files(run["files"]))


def _draw_lineage(experiment: Experiment, run_id: str) -> list[str]:
    """Return the lines of the runs that continue each other, of which this is one."""
    runs = experiment.runs()
    lineage = next((run.lineage for run in runs if run.id == run_id), None)
    related = [run for run in runs if run.id == run_id or (lineage is not None and run.lineage == lineage)]
    drawn = draw_lineages([run.id for run in related], {run.id: run.resumed_from for run in runs})
    columns = [
        Column(""),
        Column("GRAPH"),
        Column("RUN"),
        Column("STATUS", style=status_style),
        Column("STEP", is_number=True),
        Column("FROM"),
    ]
    rows = [
        ("*" if run.id == run_id else "", marks, run.id, run.status, run.step, shorten_run_id(run.resumed_from))
        for marks, run in zip(drawn, related, strict=True)
    ]
    return list(lay_out(columns, rows))


def _print_facts(console: Console, run: dict[str, Any], *, now: float) -> None:
    """Print one fact a line; a terminal wraps what is too long, so that a path or an id can still be copied."""
    status = status_cell(run["status"]).append(f" ({harmless(run['evidence'])})", style="default")
    generation = run["generation"]
    facts: dict[str, object] = {
        "Run": run["run"] + (" (latest)" if run["is_latest"] else ""),
        "Path": run["path"],
        "Status": status,
        "Started": f"{_format_moment(run['started'])} ({format_age(run, now)} ago)",
        "Ended": _format_moment(run["ended"]),
        "Duration": format_duration(run),
        "Last step": run["step"] if run["step"] is not None else run.get("metrics", {}).get("step"),
        "Job": run["job"],
        "Launch": run["launch_key"],
        "Known from": run["launch_source"] or run["source"],
        "Generation": None if generation in (None, 1) else f"{generation} (earlier launches had the same key)",
        "Ranks joined": f"{format_ranks(run)}{_absent(run)}",
        "Resumed from": run["resumed_from"],
        "Checkpoint": run["checkpoint"],
        "Resumed by": ", ".join(run["resumed_by"]),
        "Lineage": run["lineage"],
        "Checkpoints": run["checkpoints"],
        "Adopted from": _adopted_from(run["adopted_from"]),
        "User": run["user"],
        "Command": shlex.join(str(each) for each in run["arguments"] or ()),
        "Directory": run["working_directory"],
        "Git commit": run["git_commit"],
        "Versions": ", ".join(f"{name} {version}" for name, version in (run["versions"] or {}).items()),
    }
    for name, value in facts.items():
        if value not in (None, ""):
            text = value if value is status else cell(value)
            console.print(cell(name.ljust(_NAME_WIDTH), "bold"), text, sep="", soft_wrap=True)


def _adopted_from(origin: object) -> object:
    """Return where a migration found the files of a run, and how it knows, in words; the JSON output has the rest."""
    if not isinstance(origin, Mapping):
        return origin
    words = f"{origin.get('log_directory')}, {origin.get('file_count')} files, {origin.get('certainty')}"
    told = [f"{name}: {origin[name]}" for name in ("start", "end") if origin.get(name)]
    return "; ".join([words, *told])


def _format_moment(moment: str | None) -> str | None:
    """Return a recorded time to the second; the JSON output has the rest."""
    return None if moment is None else f"{moment[:19].replace('T', ' ')} UTC"


def _absent(run: dict[str, Any]) -> str:
    """Return which of the expected ranks have no entry, in words; nothing where all joined or nobody knows."""
    if not isinstance(run["world_size"], int) or run["world_size"] > _MAX_WORLD_SIZE or not run["ranks"]:
        return ""
    absent = sorted(set(range(run["world_size"])) - {rank["global_rank"] for rank in run["ranks"]})
    return f" (without {format_ranges(absent)})" if absent else ""


def _ranks(ranks: list[dict[str, Any]]) -> Table:
    headers = ("RANK", "NODE", "LOCAL", "HOST", "PID", "JOINED")
    table = new_table(*headers, numbers=("RANK", "NODE", "LOCAL", "PID"))
    for rank in ranks:
        keys = ("global_rank", "node_rank", "local_rank", "host", "pid", "joined")
        table.add_row(*(cell(rank[key]) for key in keys))
    return table


def _hosts(ranks: list[dict[str, Any]]) -> Table:
    table = new_table("HOST", "RANKS", "COUNT", "FIRST JOINED", "LAST JOINED", numbers=("COUNT",))
    by_host: dict[str, list[dict[str, Any]]] = {}
    for rank in ranks:
        by_host.setdefault(str(rank["host"]), []).append(rank)
    for host, on_host in by_host.items():
        joined = sorted(str(rank["joined"]) for rank in on_host)
        numbers = format_ranges(sorted(rank["global_rank"] for rank in on_host))
        table.add_row(cell(host), cell(numbers), cell(len(on_host)), cell(joined[0]), cell(joined[-1]))
    return table


def _values(values: dict[str, Any]) -> Table:
    table = new_table("TAG", "VALUE", numbers=("VALUE",))
    for tag, value in values.items():
        table.add_row(cell(tag), cell(format_value(value)))
    return table


def _files(files: list[dict[str, Any]]) -> Table:
    table = new_table("SIZE", "NAME", "", numbers=("SIZE",))
    for each in files:
        size = NOTHING if each["bytes"] is None else format_bytes(each["bytes"])
        remark = ""
        if each["kind"] == "directory":
            count = f"{each['files']}{'' if each['is_complete'] else ' or more'}"
            remark = f"{count} file{'' if count == '1' else 's'}"
        elif each["kind"] == "link":
            remark = f"-> {each['target']}"
        table.add_row(cell(size), cell(each["name"] + ("/" if each["kind"] == "directory" else "")), cell(remark))
    return table


def _flatten(value: object, name: str = "") -> Iterator[str]:
    """Yield a configuration as lines ``a.b.c=value``, the form in which Hydra takes it on the command line."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flatten(item, f"{name}.{key}" if name else str(key))
    else:
        yield f"{name or '(value)'}={'null' if value is None else value}"


def _print_heading(console: Console, text: str) -> None:
    console.print()
    console.print(text, style="bold")


def _print_block(console: Console, text: str) -> None:
    """Print lines as they are, neither wrapped nor cut."""
    from rich.text import Text

    console.print(Text(harmless_lines(text)), soft_wrap=True)
