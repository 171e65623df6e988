"""How long `exp_manager` takes under the moving and under the immutable layout, with old files in the way.

Real NeMo, in processes that have imported it already: every measured call is the first of a fresh forked process, as
in a training. The layouts take turns, so that a busy moment of the machine hits both.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

FILES_PER_RUN: Final = 10
SLEEP_OF_STOCK: Final = 5.0

MOVING: Final = "moving"
IMMUTABLE: Final = "immutable"
OLD_FILES: Final = "old files"
OLD_RUNS: Final = "old runs"
CASES: Final = ((MOVING, OLD_FILES), (IMMUTABLE, OLD_FILES), (IMMUTABLE, OLD_RUNS))
"""Layout, and what is there before: plain files in the log directory, or the same number in earlier runs."""


def prepare(experiment: Path, kind: str, count: int) -> None:
    """Fill an experiment with small old files.

    Args:
        experiment: The directory; made.
        kind: `OLD_FILES` or `OLD_RUNS`; the latter with a manifest that names the runs.
        count: How many files.
    """
    experiment.mkdir(parents=True)
    if kind == OLD_FILES:
        for number in range(count):
            (experiment / f"old_{number:06d}.txt").write_bytes(b"a line of an old log\n")
        return
    lines = []
    for number in range(count // FILES_PER_RUN):
        minutes, seconds = divmod(number, 60)
        hours, minutes = divmod(minutes, 60)
        run = experiment / "runs" / f"2026-01-01_{hours:02d}-{minutes:02d}-{seconds:02d}Z_{number:05d}"
        run.mkdir(parents=True)
        for index in range(FILES_PER_RUN):
            (run / f"old_{index}.txt").write_bytes(b"a line of an old log\n")
        stamp = f"2026-01-01T{hours:02d}:{minutes:02d}:{seconds:02d}.000000Z"
        lines.append(json.dumps({"format": 1, "event": "started", "run": run.name, "time": stamp}) + "\n")
    if lines:
        (experiment / "runs" / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")
        (experiment / "latest").symlink_to(Path("runs", json.loads(lines[-1])["run"]))


def measure_here(layout: str, directory: Path) -> float:
    """Call `exp_manager` once, and return its milliseconds; the environment says which rank this is."""
    import lightning.pytorch as pl
    from nemo.utils.exp_manager import exp_manager

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=1,
    )
    cfg: dict[str, Any] = {
        "exp_dir": str(directory),
        "name": "tiny",
        "resume_if_exists": True,
        "resume_ignore_no_checkpoint": True,
    }
    if layout == IMMUTABLE:
        cfg["log_layout"] = IMMUTABLE
    begin = time.perf_counter()
    log_dir = exp_manager(trainer, cfg)
    milliseconds = (time.perf_counter() - begin) * 1000
    expected = directory / "tiny" if layout == MOVING else directory / "tiny" / "runs"
    if (log_dir if layout == MOVING else log_dir.parent) != expected:
        raise RuntimeError(f"expected the {layout} layout, found the log directory {log_dir}")
    return milliseconds


def work() -> None:
    """Be a worker: import NeMo, then fork a process for each request on standard input."""
    # What libraries print goes to the null device; answers go to what was standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    import lightning.pytorch as pl  # noqa: F401 - the import is what is not measured
    import nemo.utils.exp_manager  # noqa: F401 - the same

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        layout, directory = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            # The end of the process is not measured, so nothing is recorded of it either.
            os.write(writing, str(measure_here(layout, Path(directory))).encode("ascii"))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as stream:
            answer = stream.read()
        os.waitpid(pid, 0)
        print(answer or "failed", file=answers, flush=True)


class Worker:
    """A process that has NeMo imported and measures on request."""

    def __init__(self, rank: int) -> None:
        """Start it as one rank of two; it is ready when the first answer comes."""
        launcher = ("SLURM", "PMI", "OMPI", "TORCHELASTIC", "NEMO_", "IMMUTABLE_LOGS", "_IMMUTABLE")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "NODE_RANK": "0"}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={**environment, **ranks, **address},
        )
        self._answer()

    def measure(self, layout: str, directory: Path) -> float:
        """Return the milliseconds of one call in a fresh process."""
        assert self._process.stdin is not None
        print(json.dumps([layout, str(directory)]), file=self._process.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if answer in ("", "failed"):
            raise RuntimeError("the measured call of exp_manager failed")
        return answer


def measure(worker: Worker, case: tuple[str, str], count: int, scratch: Path, *, has_moved: bool) -> float:
    """Measure one call in a fresh experiment, and see that the old files are where the layout says."""
    layout, kind = case
    directory = scratch / "exp"
    prepare(directory / "tiny", kind, count)
    try:
        milliseconds = worker.measure(layout, directory)
        moved = len(list(directory.glob("tiny/run_*/old_*")))
        if moved != (count if has_moved else 0):
            raise RuntimeError(f"{moved} files were moved under the {layout} layout")
    finally:
        shutil.rmtree(directory)
    return milliseconds


def main(
    files: Annotated[list[int] | None, typer.Option(help="How many old files; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(help="Calls for each figure.")] = 9,
    sleeping_repetitions: Annotated[int, typer.Option(help="The same where stock NeMo sleeps five seconds.")] = 3,
    directory: Annotated[Path | None, typer.Option(help="Where to make the experiments.")] = None,
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Measure `exp_manager` on rank zero and on rank one."""
    if worker:
        work()
        return
    counts = files or [0, 1_000, 10_000]
    table = Table("rank", "old files", *(f"{layout}, {kind}\n[ms]" for layout, kind in CASES), "moving / immutable")
    with tempfile.TemporaryDirectory(dir=directory) as scratch, Progress(console=Console(stderr=True)) as progress:
        total = len(counts) * len(CASES) * 2 * repetitions
        task = progress.add_task("measuring", total=total)
        for rank in range(2):
            process = Worker(rank)
            for count in counts:
                figures: dict[tuple[str, str], list[float]] = {case: [] for case in CASES}
                for repetition in range(repetitions):
                    for case in CASES:
                        does_sleep = rank == 1 and case[0] == MOVING
                        if not does_sleep or repetition < sleeping_repetitions:
                            has_moved = rank == 0 and case[0] == MOVING
                            figures[case].append(measure(process, case, count, Path(scratch), has_moved=has_moved))
                        progress.advance(task)
                medians = [statistics.median(figures[case]) for case in CASES]
                table.add_row(
                    str(rank),
                    f"{count:,}",
                    *(
                        f"{median:,.1f} ({min(figures[case]):,.1f} to {max(figures[case]):,.1f})"
                        for case, median in zip(CASES, medians, strict=True)
                    ),
                    f"{medians[0] / medians[1]:.1f}",
                )
            process.close()
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
