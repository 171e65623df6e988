"""Many launches in one experiment at the same moment, and many that switch `latest` under the eyes of readers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import read_manifest
from immutable_logs.verification import verify_experiment

if TYPE_CHECKING:
    from tests.conftest import Children

ROOT = Path(__file__).parents[2]


def started_runs(experiment: Path) -> list[str]:
    """Return the runs in the order of their lines in the manifest, all of whose lines can be read."""
    manifest = read_manifest(ExperimentLayout.of(experiment))
    assert manifest.damaged == 0
    return [record.run for record in manifest.records if record.event == "started"]


def test_sixty_four_launches_at_once_have_a_run_each(experiment: Path) -> None:
    """128 ranks are let go by one signal, where nothing is yet: the two of a launch agree, and no launch is lost."""
    command = [sys.executable, "-m", "tests.concurrency.many_launches", str(experiment), "64", "64", "finished"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=100, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]

    pairs = Counter((each["launch"], each["run"]) for each in told)
    assert len(pairs) == 64
    assert set(pairs.values()) == {2}
    assert len({run for _, run in pairs}) == 64
    started = started_runs(experiment)
    assert sorted(started) == sorted(run for _, run in pairs)
    runs = Experiment(experiment).runs()
    assert [run.id for run in runs] == started
    assert {(run.status, run.ranks_joined, run.world_size) for run in runs} == {("finished", 2, 2)}
    assert os.readlink(experiment / "latest") == f"runs/{started[-1]}"
    assert verify_experiment(Experiment(experiment)).problems == ()


WRITER = """
    import fcntl
    from immutable_logs import start_run
    if sys.argv[3] == "refused":
        def refuse(*_):
            raise OSError(37, "no locks here")
        fcntl.flock = refuse
    os.environ["PATH"] = ""
    gate()
    for _ in range(int(sys.argv[2])):
        start_run(sys.argv[1])
    os._exit(0)  # thousands of ends to record are not what is looked at
"""

READER = """
    latest = os.path.join(sys.argv[1], "latest")
    gate()
    while not os.path.lexists(latest):
        time.sleep(0.001)
    failures, looks, seen = [], 0, []
    is_wanted = True
    while is_wanted:
        is_wanted = not os.path.exists(sys.argv[2])
        try:
            shown = os.readlink(latest).removeprefix("runs/")
            with open(os.path.join(latest, "run.json"), "rb") as record:
                json.loads(record.read())
            os.listdir(latest)
        except (OSError, ValueError) as error:
            failures.append(repr(error))
        if seen[-1:] != [shown]:
            seen.append(shown)
        looks += 1
        time.sleep(0.001)
    report(looks=looks, failures=failures, seen=seen)
"""


@pytest.mark.parametrize("locks", ["held", "refused"])
@pytest.mark.parametrize(
    ("writers", "readers", "switches"),
    [
        pytest.param(4, 2, 200, id="few"),
        pytest.param(16, 8, 5008, id="many", marks=[pytest.mark.proof, pytest.mark.timeout(600)]),
    ],
)
def test_latest_always_leads_to_a_complete_run_while_many_switch_it(
    experiment: Path, children: Children, tmp_path: Path, writers: int, readers: int, switches: int, locks: str
) -> None:
    """No reader ever misses it, and it rests on the run that started last.

    With locks it never goes back: what a reader has seen one after the other is in the order of the starts. Without
    them launches may pass it back and forth, and readers see that it is always there.
    """
    stop = tmp_path / "stop"
    looking = [children.start(READER, experiment, stop, is_gated=True) for _ in range(readers)]
    writing = [children.start(WRITER, experiment, switches // writers, locks, is_gated=True) for _ in range(writers)]
    children.open_gate()
    for child in writing:
        child.popen.wait(timeout=500)
        assert child.reports() == []
    stop.touch()
    reports = [child.report() for child in looking]

    assert [each["failures"] for each in reports] == [[]] * readers
    assert min(each["looks"] for each in reports) > switches / 10
    assert min(len(each["seen"]) for each in reports) > switches / 50
    started = started_runs(experiment)
    assert len(set(started)) == len(started) == switches
    assert os.readlink(experiment / "latest") == f"runs/{started[-1]}"
    assert {each["seen"][-1] for each in reports} == {started[-1]}
    assert list((experiment / "runs" / ".latest").glob("*.link")) == []
    if locks == "held":
        order = {run: number for number, run in enumerate(started)}
        for each in reports:
            assert [pair for pair in pairwise(each["seen"]) if order[pair[0]] >= order[pair[1]]] == []
