"""What it costs that the ranks of a launch settle on one run: time, and file-system calls for each rank.

The ranks are forked processes that are let go at once, at most a thousand at a time; neither torch nor NeMo is loaded.
The calls are counted in a second pass under `strace`, which slows everything down, so that the times come from the
first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from immutable_logs.run import begin_run

BEGIN: Final = "/begin-of-joining"
END: Final = "/end-of-joining"
"""Names that are not there: asking for them leaves a mark in the trace."""

AT_A_TIME: Final = 1024
"""Processes: more do not fit into the memory of a small machine. Further ranks come when one of these has ended."""


def simulate(ranks: int, experiment: Path) -> tuple[float, list[float], list[float]]:
    """Let that many processes join one launch at once.

    Returns:
        The seconds from the start signal to the last rank's answer, and for each rank the seconds that it took and
        the seconds of processor time in them.
    """
    gate = os.pipe()
    answers = os.pipe()
    pids = []
    workers = min(ranks, AT_A_TIME)
    for worker in range(workers):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(gate[1])
                os.read(gate[0], 1)
                _be_ranks(range(worker, ranks, workers), ranks, experiment, answers[1])
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(answers[1])
    os.close(gate[0])
    time.sleep(0.2 + workers / 500)  # until all have got to the gate
    begin = time.perf_counter()
    os.close(gate[1])
    with os.fdopen(answers[0]) as stream:
        reports = [json.loads(line) for line in stream]
    wall = time.perf_counter() - begin
    for pid in pids:
        os.waitpid(pid, 0)
    found = Counter(run for run, _, _ in reports)
    if list(found.values()) != [ranks]:
        raise RuntimeError(f"expected {ranks} ranks in one run, found {dict(found)}")
    return wall, [seconds for _, seconds, _ in reports], [processor for _, _, processor in reports]


def _be_ranks(own: range, ranks: int, experiment: Path, answers: int) -> None:
    """Be one rank after the other: the last in this process, each before it in a child, as a process of its own."""
    for rank in own[:-1]:
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, ranks, experiment, answers)
            return
        os.waitpid(pid, 0)
    _be_rank(own[-1], ranks, experiment, answers)


def _be_rank(rank: int, ranks: int, experiment: Path, answers: int) -> None:
    os.environ.update(IMMUTABLE_LOGS_LAUNCH_ID="benchmark", RANK=str(rank), WORLD_SIZE=str(ranks))
    os.path.exists(BEGIN)
    begin, processor_begin = time.perf_counter(), time.process_time()
    run = begin_run(experiment)
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor_begin
    os.path.exists(END)
    os.write(answers, (json.dumps([run.id, seconds, processor]) + "\n").encode("ascii"))


def count_calls(ranks: int, experiment: Path, traces: Path) -> list[Counter[str]]:
    """Return, for each rank, the calls that it made below the experiment, by name."""
    traces.mkdir()
    # `-y` shows the path behind a descriptor, so that calls on open files are counted too.
    command = ["strace", "-f", "-ff", "-y", "-s", "4096", "-e", "trace=%file,%desc", "-o", str(traces / "trace")]
    subprocess.run(
        [*command, sys.executable, __file__, "--ranks", str(ranks), "--simulate-in", str(experiment)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    counted = []
    for trace in traces.iterdir():
        calls: Counter[str] = Counter()
        is_joining = False
        for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
            if BEGIN in line:
                is_joining = True
            elif END in line:
                counted.append(calls)
                break
            elif is_joining and str(experiment) in line and (name := re.match(r"\w+", line)):
                calls[name.group()] += 1
    return counted


def main(
    ranks: Annotated[list[int] | None, typer.Option(help="How many ranks; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(help="Launches for each figure.")] = 5,
    directory: Annotated[Path | None, typer.Option(help="Where to make the experiments.")] = None,
    simulate_in: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure the agreement of simulated ranks."""
    if simulate_in is not None and ranks:
        simulate(ranks[0], simulate_in)
        return
    table = Table(
        "ranks",
        "all ranks [ms]",
        "one rank [ms]\nmedian, worst",
        "its processor time\n[ms] median",
        "its calls: median\n(least to most)",
        "calls of the median rank",
    )
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        for number in ranks or [16, 256, 1024, 10_240]:
            launches = [simulate(number, Path(scratch, f"{number}-{index}")) for index in range(repetitions)]
            each = [seconds * 1000 for _, all_seconds, _ in launches for seconds in all_seconds]
            processor = [seconds * 1000 for _, _, all_seconds in launches for seconds in all_seconds]
            calls = []
            if shutil.which("strace") and number <= AT_A_TIME:
                calls = count_calls(number, Path(scratch, f"{number}-traced"), Path(scratch, f"{number}-traces"))
            totals = sorted(counter.total() for counter in calls)
            middle = next((counter for counter in calls if counter.total() == totals[len(totals) // 2]), Counter())
            table.add_row(
                f"{number:,}",
                f"{statistics.median(wall for wall, _, _ in launches) * 1000:,.0f}",
                f"{statistics.median(each):,.1f}, {max(each):,.1f}",
                f"{statistics.median(processor):.1f}",
                f"{totals[len(totals) // 2]} ({totals[0]} to {totals[-1]})" if totals else "not traced",
                ", ".join(f"{name} {count}" for name, count in sorted(middle.items())),
            )
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
