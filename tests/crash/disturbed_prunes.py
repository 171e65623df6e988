"""Prune once for every change that a prune makes to the file system, and disturb that one change.

Started by the tests as a program, as `disturbed_launches.py`, whose stand-in for `os` it uses. Prints one JSON object
for each prune: the case in words, the experiment, how the process ended, and the problems if it lived to tell.

    python -m tests.crash.disturbed_prunes DIRECTORY HOW [ERRNO]

HOW is ``before``, ``after``, ``torn``, ``error`` or ``errors``. The experiment has a chain of two runs with
checkpoints of their own, which go, and a latest one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from immutable_logs import Experiment
from immutable_logs.layout import ExperimentLayout
from immutable_logs.lineage import Origin
from immutable_logs.nemo_integration.event_files import link_event_files
from immutable_logs.pruning import plan_prune, prune_runs
from immutable_logs.retention import Conditions
from immutable_logs.run import begin_run
from tests.crash.disturbed_launches import DisturbedOs

CONDITIONS = Conditions(keep_last=1)


def later() -> float:
    """The time in forty days."""
    return time.time() + 40 * 86400


def make_template(path: Path) -> None:
    """Make the experiment."""
    origin = None
    for number in range(3):
        run = begin_run(path)
        (run.path / "checkpoints").mkdir()
        (run.path / "checkpoints" / "last.ckpt").write_text("weights")
        run.record(origin=origin, checkpoints=run.path / "checkpoints", git_commit="c0ffee")
        run.publish()
        (run.path / f"events.out.tfevents.{run.id}").write_text("events")
        link_event_files(ExperimentLayout.of(path), run.origin.lineage, run.id)
        run.finish()
        origin = Origin(run.origin.lineage, run.id) if number == 0 else None


def prune(path: Path, *, disturbed: DisturbedOs | None = None) -> dict[str, Any]:
    """Prune, and tell the problems and the operations."""
    experiment = Experiment(path, now=later)
    plan = plan_prune(experiment, CONDITIONS, now=later())
    if disturbed is not None:
        for name, module in list(sys.modules.items()):
            if name.startswith("immutable_logs") and getattr(module, "os", None) is os:
                module.os = disturbed  # type: ignore[attr-defined]
    problems = []
    try:
        problems += [result.problem for result in prune_runs(experiment, plan, CONDITIONS, now=later)]
    except OSError as error:
        problems.append(str(error))
    return {"problems": [each for each in problems if each], "operations": disturbed.done if disturbed else []}


def prune_in_child(path: Path, at: int, how: str, number: int) -> tuple[int, Any]:
    """Return the exit status of a forked prune and what it told, if it lived to tell."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            told = prune(path, disturbed=DisturbedOs(at, how, number))
            with os.fdopen(writing, "w") as file:
                json.dump(told, file)
            os._exit(0)
        finally:
            os._exit(70)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(text) if text else None


def main() -> None:
    """Prune undisturbed to learn the operations, then once for each of them."""
    directory, how = Path(sys.argv[1]), sys.argv[2]
    number = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    template = directory / "template"
    make_template(template)

    def prepare(name: str) -> Path:
        # With its times: a file that is new is a reason to keep a run.
        return shutil.copytree(template, directory / name, symlinks=True)

    status, told = prune_in_child(prepare("undisturbed"), -1, how, number)
    assert status == 0, told
    for at, (operation, path) in enumerate(told["operations"]):
        if how == "torn" and operation != "write":
            continue
        experiment = prepare(f"{at:03d}")
        status, result = prune_in_child(experiment, at, how, number)
        case = f"{how} step {at}: {operation} {path.removeprefix(str(directory))}"
        told_problems = result["problems"] if result else None
        print(json.dumps({"case": case, "experiment": str(experiment), "status": status, "problems": told_problems}))


if __name__ == "__main__":
    main()
