"""How long it takes to list runs: this program beside mlflow's file store, aim and guildai, with as many runs.

Each tool lists, on its own command line, runs that its own library has made: each with a name or id, a start, an end
and one value. The tools take turns within one run of the benchmark, and every listing is looked at: fewer runs in it
than were made end the benchmark. Each of the other tools is installed in an environment of its own, since their
dependencies exclude each other; those that are not given are left out.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

RUNS_PER_PROCESS: Final = 500

MAKE_OURS: Final = """
import sys
from immutable_logs import start_run
for number in range(int(sys.argv[2])):
    run = start_run(sys.argv[1])
    run.note_step(number)
    run.finish()
"""

MAKE_MLFLOW: Final = """
import sys
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri="file://" + sys.argv[1])
for number in range(int(sys.argv[2])):
    run = client.create_run("0", run_name=f"run-{number}")
    client.log_metric(run.info.run_id, "loss", 1.0 / (number + 1), step=number)
    client.set_terminated(run.info.run_id)
"""

MAKE_AIM: Final = """
import os, sys
import aim
os.makedirs(sys.argv[1], exist_ok=True)
for number in range(int(sys.argv[2])):
    run = aim.Run(
        repo=sys.argv[1], system_tracking_interval=None, log_system_params=False, capture_terminal_logs=False
    )
    run.track(1.0 / (number + 1), name="loss", step=number)
    run.close()
"""

MAKE_GUILD: Final = """
import os, sys
from guild import opref, run as runs
for number in range(int(sys.argv[2])):
    run = runs.for_dir(os.path.join(sys.argv[1], "runs", os.urandom(16).hex()))
    run.init_skel()
    run.write_opref(opref.OpRef("script", "", "", "", "train.py"))
    started = runs.timestamp()
    for name, value in (("started", started), ("stopped", started + 1), ("exit_status", 0), ("flags", {"n": number})):
        run.write_attr(name, value)
"""


@dataclass(frozen=True)
class Tool:
    """A program that lists runs.

    Attributes:
        name: What it is called in the table.
        python: The interpreter of its environment.
        make: The script that makes runs in a directory.
        command: The listing, for a directory; the program stands beside the interpreter.
        listed: What every listed run leaves in the output.
        environ: Variables, for a directory.
        limit: More runs than this are not made with it.
    """

    name: str
    python: Path
    make: str
    command: Callable[[Path], list[str]]
    listed: re.Pattern[str]
    environ: Callable[[Path], dict[str, str]] = field(default=lambda directory: {})
    limit: int | None = None

    def prepare(self, directory: Path, count: int) -> None:
        """Make the runs, unless an earlier call has made them all."""
        done = directory.with_name(f"{directory.name}.done")
        if done.exists():
            return
        for begin in range(0, count, RUNS_PER_PROCESS):
            number = min(RUNS_PER_PROCESS, count - begin)
            command = [str(self.python), "-c", self.make, str(directory), str(number)]
            subprocess.run(command, env=os.environ | self.environ(directory), check=True, stdout=subprocess.DEVNULL)
        done.touch()

    def list_runs(self, directory: Path, count: int) -> float:
        """Return the seconds of one listing, from the start of the program to its end."""
        program, *arguments = self.command(directory)
        begin = time.perf_counter()
        finished = subprocess.run(
            [str(self.python.parent / program), *arguments],
            env=os.environ | self.environ(directory),
            check=True,
            capture_output=True,
            encoding="utf-8",
        )
        seconds = time.perf_counter() - begin
        found = len(self.listed.findall(finished.stdout + finished.stderr))
        if found < count:
            raise RuntimeError(f"{self.name}: expected {count} runs in the listing, found {found}")
        return seconds


def tools(mlflow: Path | None, aim: Path | None, guild: Path | None, *, aim_limit: int | None = None) -> list[Tool]:
    """Return the tools whose interpreters are given, this program first."""
    found = [
        Tool(
            "immutable-logs",
            Path(sys.executable),
            MAKE_OURS,
            lambda directory: ["immutable-logs", "ls", str(directory)],
            re.compile(r"^\*? +\d{4}-\d\d-\d\d_\S+ +finished ", re.MULTILINE),
        )
    ]
    if mlflow:
        found.append(
            Tool(
                "mlflow",
                mlflow,
                MAKE_MLFLOW,
                # `mlflow runs list` ends after the first thousand.
                lambda directory: ["mlflow", "experiments", "csv", "--experiment-id", "0"],
                re.compile(r"^[0-9a-f]{32},", re.MULTILINE),
                # Since mlflow 3 the file store has to be asked for.
                lambda directory: {
                    "MLFLOW_TRACKING_URI": f"file://{directory}",
                    "MLFLOW_ALLOW_FILE_STORE": "true",
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                },
            )
        )
    if aim:
        found.append(
            Tool(
                "aim",
                aim,
                MAKE_AIM,
                lambda directory: ["aim", "runs", "--repo", str(directory), "ls"],
                re.compile(r"\b[0-9a-f]{24}\b"),
                limit=aim_limit,
            )
        )
    if guild:
        found.append(
            Tool(
                "guildai",
                guild,
                MAKE_GUILD,
                lambda directory: ["guild", "runs", "list", "--all"],
                re.compile(r"^\[\d+:", re.MULTILINE),
                lambda directory: {"GUILD_HOME": str(directory)},
            )
        )
    return found


def _describe(seconds: list[float] | None) -> str:
    if seconds is None:
        return "-"
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def main(
    directory: Annotated[Path, typer.Option(help="Where the runs are made, and kept for another time.")],
    mlflow: Annotated[Path | None, typer.Option(metavar="PYTHON", help="An interpreter that has mlflow.")] = None,
    aim: Annotated[Path | None, typer.Option(metavar="PYTHON", help="An interpreter that has aim.")] = None,
    guild: Annotated[Path | None, typer.Option(metavar="PYTHON", help="An interpreter that has guildai.")] = None,
    runs: Annotated[list[int] | None, typer.Option(help="How many runs; may be repeated.")] = None,
    aim_limit: Annotated[
        int | None, typer.Option(help="More runs than this are not made with aim, which takes longest for it.")
    ] = None,
    repetitions: Annotated[int, typer.Option(help="Listings for each figure.")] = 5,
) -> None:
    """Measure the listing of runs."""
    found = tools(mlflow, aim, guild, aim_limit=aim_limit)
    table = Table("runs", *(f"{tool.name}, s" for tool in found), *(f"{tool.name} / ours" for tool in found[1:]))
    for count in runs or [100, 1000, 10_000]:
        places = {tool.name: (directory / f"{tool.name}-{count}").absolute() for tool in found}
        seconds: dict[str, list[float]] = {
            tool.name: [] for tool in found if tool.limit is None or count <= tool.limit
        }
        taking_part = [tool for tool in found if tool.name in seconds]
        for tool in taking_part:
            places[tool.name].parent.mkdir(parents=True, exist_ok=True)
            tool.prepare(places[tool.name], count)
            tool.list_runs(places[tool.name], count)  # the files are in the cache from here on, for all
        for _ in range(repetitions):
            for tool in taking_part:
                seconds[tool.name].append(tool.list_runs(places[tool.name], count))
        ours = statistics.median(seconds[found[0].name])
        table.add_row(
            f"{count:,}",
            *(_describe(seconds.get(tool.name)) for tool in found),
            *(
                f"{statistics.median(seconds[tool.name]) / ours:.1f}" if tool.name in seconds else "-"
                for tool in found[1:]
            ),
        )
    Console(width=200).print(table)


if __name__ == "__main__":
    typer.run(main)
