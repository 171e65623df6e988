"""How long `migrate-nemo-logs` takes on very many small files, beside `cp -al` of the same tree in the same run.

`cp -al` makes a directory for a directory and a hard link for a file and does nothing else, so that it is the least
that can be had. It neither judges a file nor keeps a journal, and it reads no file.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

START: Final = 1_740_830_400.0
PER_LAUNCH: Final = 1000
COMMANDS: Final = ("plan", "apply", "apply again", "verify", "undo")


class Cost(NamedTuple):
    """What a program cost.

    Attributes:
        wall: Seconds.
        processor: Seconds of processor time, of all its processes.
        memory: Bytes, of the largest of its processes.
    """

    wall: float
    processor: float
    memory: int


def make_tree(directory: Path, shape: str, files: int) -> None:
    """Make a log directory as stock NeMo leaves it.

    Args:
        directory: The log directory.
        shape: ``ranks``: launches of 996 ranks, in an archive each; ``others``: launches of 8 ranks that left further
            small files; ``flat``: one launch, all at the top.
        files: How many.
    """
    directory.mkdir()
    if shape == "flat":
        _make_launch(directory, START, ranks=8, others=files - 12)
        return
    launches = max(1, files // PER_LAUNCH)
    ranks = PER_LAUNCH - 4 if shape == "ranks" else 8
    for number in range(launches):
        is_last = number == launches - 1
        place = directory if is_last else directory / f"run_{number}"
        place.mkdir(exist_ok=True)
        start = START + 100 * number
        _make_launch(place, start, ranks=ranks, others=PER_LAUNCH - 4 - ranks)
        if not is_last:
            os.utime(place, (start + 100, start + 100))


def _make_launch(directory: Path, start: float, *, ranks: int, others: int) -> None:
    stamps = [time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start + seconds)) for seconds in (0, 50)]
    log = "".join(f"[NeMo I {stamp} exp_manager:1] Experiments will be logged at /data\n" for stamp in stamps[:1])
    log += f"[NeMo I {stamps[1]} model:1] a line\n"
    _write(directory / "cmd-args.log", "train.py", start)
    _write(directory / "git-info.log", "commit hash: 0123456789abcdef0123456789abcdef01234567", start + 0.01)
    _write(directory / "nemo_error_log.txt", f"[NeMo W {stamps[0]} nemo:1] a line\n", start)
    _write(directory / "lightning_logs.txt", "a line\n", start + 50)
    for rank in range(ranks):
        _write(directory / f"nemo_log_globalrank-{rank}_localrank-{rank % 8}.txt", log, start + 50)
    for number in range(others):
        _write(directory / f"prediction_{number:07d}.json", "{}\n", start + 20)


def _write(path: Path, text: str, when: float) -> None:
    path.write_text(text, encoding="ascii")
    os.utime(path, (when, when))


def measure(*command: str | Path) -> Cost:
    """Run a program, with what was written before on storage, and return what it cost."""
    os.sync()
    begin = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"expected status 0, found {process.returncode}: {' '.join(map(str, command))}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def measure_once(tree: Path) -> dict[str, Cost]:
    """Return what `cp -al` and each command cost on a tree, which is then as before."""
    copy = tree.with_name("copy")
    costs = {"cp -al": measure("cp", "-al", tree, copy)}
    shutil.rmtree(copy)
    for name in COMMANDS:
        program = Path(sys.executable).with_name("migrate-nemo-logs")
        costs[name] = measure(program, name.split()[0], tree)
    return costs


def main(
    files: Annotated[int, typer.Option(help="How many small files.")] = 100_000,
    shape: Annotated[list[str] | None, typer.Option(help="ranks, others or flat; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(help="Measurements for each figure.")] = 3,
    directory: Annotated[Path | None, typer.Option(help="Where to make the trees.")] = None,
) -> None:
    """Measure the migration of very many small files."""
    for each in shape or ["ranks", "others", "flat"]:
        table = Table("tree", "files", "command", "seconds", "of cp -al", "processor time, of cp -al", "memory [MB]")
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            tree = Path(scratch, "tiny")
            make_tree(tree, each, files)
            measured = [measure_once(tree) for _ in range(repetitions)]
        for name in ("cp -al", *COMMANDS):
            walls = [costs[name].wall for costs in measured]
            ratios = [costs[name].wall / costs["cp -al"].wall for costs in measured]
            processor = [costs[name].processor / costs["cp -al"].processor for costs in measured]
            table.add_row(
                each,
                f"{files:,}",
                name,
                f"{statistics.median(walls):.1f} ({min(walls):.1f} to {max(walls):.1f})",
                f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})",
                f"{statistics.median(processor):.1f}",
                f"{max(costs[name].memory for costs in measured) / 1e6:.0f}",
            )
        Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
