"""How quickly `immutable-logs logs` answers on the logs of many ranks, and with how much memory.

Every rank has a log in NeMo's form. One rank fails by itself, all others lose their connection to it in the same
second, as in a training that dies. `--ends` tells how the logs end: with a traceback as a program writes it, so that
every byte must be searched to see that it is the first; with the last words that this package leaves, which the end of
a log tells; or with nothing, as where a training hangs, so that every byte is searched for all kinds of errors.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from immutable_logs import start_run
from immutable_logs.layout import ExperimentLayout

MEGABYTE = 1_000_000
TRACE = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 30, in main\n'
    "    trainer.fit(model, data)\n"
    '  File "model.py", line 15, in training_step\n'
    '    raise {kind}("{text}")\n'
    "{kind}: {text}"
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=1.0, help="of each log")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ends", choices=("traceback", "last-words", "nothing"), default="traceback")
    parser.add_argument("--directory", type=Path, help="where the logs are made; a temporary directory by default")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="logs-", dir=options.directory))
    try:
        guilty = options.ranks * 2 // 3
        run = make_run(directory, options.ranks, options.megabytes, guilty, options.ends)
        expected = "No error in the logs" if options.ends == "nothing" else f"Rank {guilty} failed first"
        size = sum(path.stat().st_size for path in run.iterdir() if path.is_file())
        print(f"{options.ranks} logs, {size / 1e9:.2f} GB, {os.cpu_count()} processors")
        for name, arguments in {
            "--errors": ["--errors"],
            "--since (the last second)": ["--since", "2026-12-01T23:59:59"],
            "-n 100": ["-n", "100"],
            "| head -1000": ["head"],
        }.items():
            measure(name, directory, arguments, options.repeat, size, expected)
    finally:
        shutil.rmtree(directory)


def make_run(experiment: Path, ranks: int, megabytes: float, guilty: int, ends: str) -> Path:
    """Make a run with logs of the wanted size; return its directory."""
    with start_run(experiment) as run:
        layout = ExperimentLayout(run.experiment).run(run.id)
        line = "[NeMo I 2026-12-01 {clock} train:573] epoch 3, step {step}: loss 0.123456, lr 1e-4, 345.6 samples/s\n"
        count = int(megabytes * MEGABYTE / len(line.format(clock="00:00:00", step=100000)))
        body = "".join(
            line.format(clock=time.strftime("%H:%M:%S", time.gmtime(number * 86398 // count)), step=100000 + number)
            for number in range(count)
        )
        for rank in range(ranks):
            own = rank == guilty
            trace = TRACE.format(
                kind="ValueError" if own else "RuntimeError",
                text="the loss is not a number" if own else f"Connection closed by peer [10.0.0.1]:{20000 + rank}",
            )
            where = f"immutable_logs:ended rank:{rank}" if ends == "last-words" else "train:31"
            end = f"[NeMo E 2026-12-01 23:59:59 {where}] The training failed\n{trace}".replace("\n", "\n    ")
            text = body if ends == "nothing" else f"{body}{end}\n"
            layout.rank_log(rank, rank % 8).write_text(text, encoding="utf-8")
    return run.path


def measure(name: str, experiment: Path, arguments: list[str], repeat: int, size: int, expected: str) -> None:
    """Call the command some times, and print the median and the memory of the largest process."""
    program = [sys.executable, "-c", "from immutable_logs.cli import main; main()", "logs", "-e", str(experiment)]
    seconds = []
    for _ in range(repeat):
        begin = time.monotonic()
        if arguments == ["head"]:
            with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                for _line in range(1000):
                    process.stdout.readline()
                process.stdout.close()
        else:
            done = subprocess.run([*program, *arguments], capture_output=True, encoding="utf-8", check=True)
            if arguments == ["--errors"] and not done.stdout.startswith(expected):
                sys.exit(f"expected {expected!r}, found {done.stdout[:200]!r}")
        seconds.append(time.monotonic() - begin)
    median = sorted(seconds)[len(seconds) // 2]
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{name:28} {median:7.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), {size / 1e9 / median:6.2f} GB/s, "
        f"largest process so far {memory:.0f} MiB"
    )


if __name__ == "__main__":
    main()
