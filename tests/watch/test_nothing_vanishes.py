"""Nothing that a reader knows vanishes while launches start, end and are killed: seen by the kernel and by readers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import read_manifest
from immutable_logs.verification import verify_experiment

ROOT = Path(__file__).parents[2]
ENDS = ("finished", "failed", "finished", "killed")


@pytest.mark.parametrize(
    ("count", "at_once"),
    [
        pytest.param(50, 10, id="50 launches"),
        pytest.param(1000, 10, id="1,000 launches", marks=[pytest.mark.proof, pytest.mark.timeout(600)]),
    ],
)
def test_nothing_vanishes_while_launches_start_end_and_are_killed(
    experiment: Path, watched: Callable[..., AbstractContextManager[list[Any]]], count: int, at_once: int
) -> None:
    """Zero failed reads; the one name that is ever given up is the private one of the next `latest`."""
    experiment.mkdir()
    hows = ["files", "files", *(["fsspec"] if importlib.util.find_spec("fsspec") else [])]
    onlookers = [("tests.watch.name_watch", experiment), *(("tests.watch.reader", experiment, how) for how in hows)]
    command = [sys.executable, "-m", "tests.concurrency.many_launches", experiment, count, at_once, ",".join(ENDS)]
    with watched(*onlookers) as reports:
        done = subprocess.run(
            list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=500, check=False
        )
    assert done.returncode == 0
    told = [json.loads(line) for line in done.stdout.splitlines()]
    seen, *read = reports

    assert seen["overflows"] == 0
    assert seen["created"] > 5 * count
    assert seen["deleted"] == []
    assert [path for path in seen["moved_away"] if not is_private_link(path)] == []
    assert set(seen["replaced"]) == {"latest"}
    # The first switches can come before the new directory is watched in which they are prepared.
    assert count / 2 < len(seen["moved_away"]) == len(set(seen["moved_away"])) <= len(seen["replaced"]) + 1
    assert [path for path in seen["missing"] if not is_private_link(path)] == []
    assert [each["failures"] for each in read] == [[]] * len(read)
    assert min(each["reads"] for each in read) > 5 * count
    assert min(each["passes"] for each in read) > 5

    experiment_now = Experiment(experiment)
    statuses = {run.id: run.status for run in experiment_now.runs()}
    ends = {each["run"]: each["end"] for each in told}
    assert len({each["launch"] for each in told}) == len(ends)  # both ranks of a launch in one run
    assert {run: statuses[run] for run, end in ends.items() if end != "killed"} == {
        run: end for run, end in ends.items() if end != "killed"
    }
    # Of those that are killed, some tell nothing.
    expected = Counter(ENDS[number % len(ENDS)] for number in range(count) for _ in range(2))
    assert {**Counter(each["end"] for each in told), "killed": 0} == {**expected, "killed": 0}
    # But some have left a run.
    assert sum(ENDS[number % len(ENDS)] != "killed" for number in range(count)) < len(statuses) <= count
    assert verify_experiment(experiment_now).problems == ()
    started = [
        record.run for record in read_manifest(ExperimentLayout.of(experiment)).records if record.event == "started"
    ]
    assert experiment_now.find("latest").id == started[-1]


def is_private_link(path: str) -> bool:
    """Tell whether a path in an experiment is the private name under which a new `latest` is made."""
    return path.startswith("runs/.latest/") and path.count("/") == 2 and path.endswith(".link")
