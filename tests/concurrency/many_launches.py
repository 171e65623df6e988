"""Start many launches of two ranks each, some of them at once, and let each come to the end that it is told.

Started by the tests as a program, so that the ranks are forked from a process without threads and cost no start of an
interpreter each. Prints one JSON object for each rank that was not killed before it had its run.

    python -m tests.concurrency.many_launches EXPERIMENT COUNT AT_ONCE ENDS

AT_ONCE is how many launches are let go by one signal; the next ones follow when all of these have ended. ENDS are
words with commas between them, which the launches take in turn: ``finished``, ``failed``, or ``killed``, which is
SIGKILL to both ranks, each before an operation of its own choice, so that all steps of a launch are hit.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

from immutable_logs.run import start_run
from tests.concurrency.simulated_launch import fork

RANKS = 2
OPERATIONS = (40, 10)
"""About how many operations on files, of those that Python reports, each of the ranks makes from start to end."""


def die_before_operation(number: int) -> None:
    """Kill this process when it is about to make its `number`-th operation on files from now on."""
    made = 0

    def count(event: str, _: object) -> None:
        nonlocal made
        if event == "open" or event.startswith("os."):
            made += 1
            if made == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def be_rank(number: int, rank: int, experiment: Path, end: str, gate: tuple[int, int]) -> int:
    """Wait for the signal, start, write a log, and end as told; return the exit status."""
    os.environ.update(IMMUTABLE_LOGS_LAUNCH_ID=f"launch-{number}", RANK=str(rank), WORLD_SIZE=str(RANKS))
    os.environ["PATH"] = "/nowhere"  # git is not asked for the commit
    os.close(gate[1])
    os.read(gate[0], 1)  # ends when nobody has the other end any more: all ranks are there, and the parent let go
    if end == "killed":
        die_before_operation(random.Random(f"{number} {rank}").randint(1, OPERATIONS[rank]))
    run = start_run(experiment)
    told = {"launch": number, "rank": rank, "run": run.id, "end": end}
    os.write(1, json.dumps(told).encode("ascii") + b"\n")  # one write: all share the pipe
    with (run.path / f"nemo_log_globalrank-{rank}_localrank-{rank}.txt").open("a", encoding="utf-8") as log:
        for line in range(3):
            log.write(f"line {line}\n")
            log.flush()
    if end == "killed":
        run.finish()
        os.kill(os.getpid(), signal.SIGKILL)
    run.finish(end, error="the loss exploded" if end == "failed" else None)
    return 0


def launch_at_once(numbers: range, experiment: Path, ends: list[str]) -> int:
    """Let some launches go by one signal and wait for all of them; return the highest exit status of a rank."""
    gate = os.pipe()
    pids = [
        fork(be_rank, number, rank, experiment, ends[number % len(ends)], gate)
        for number in numbers
        for rank in range(RANKS)
    ]
    for descriptor in gate:
        os.close(descriptor)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return max((status for status in statuses if status != -signal.SIGKILL), default=0)


def main() -> int:
    """Start all launches."""
    experiment, count, at_once = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ends = sys.argv[4].split(",")
    return max(
        launch_at_once(range(first, min(count, first + at_once)), experiment, ends)
        for first in range(0, count, at_once)
    )


if __name__ == "__main__":
    sys.exit(main())
