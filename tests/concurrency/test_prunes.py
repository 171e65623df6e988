"""Prunes beside each other, and beside launches that start."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from immutable_logs import Experiment, start_run
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import read_manifest
from immutable_logs.verification import verify_experiment

if TYPE_CHECKING:
    from tests.conftest import Children

PRUNE = """
    from immutable_logs import Experiment
    from immutable_logs.pruning import plan_prune, prune_runs
    from immutable_logs.retention import Conditions
    late = float(sys.argv[2])
    conditions = Conditions(keep_last=int(sys.argv[3]))
    def now(): return late
    gate()
    for _ in range(int(sys.argv[4])):
        experiment = Experiment(sys.argv[1])
        plan = plan_prune(experiment, conditions, now=late)
        results = list(prune_runs(experiment, plan, conditions, now=now))
        report(
            problems=[each.problem for each in results if each.problem],
            pruned=[each.decision.run.id for each in results if each.outcome == "pruned"],
        )
"""

LAUNCH = """
    from immutable_logs import start_run
    gate()
    for _ in range(int(sys.argv[2])):
        with start_run(sys.argv[1]) as run:
            latest = os.readlink(os.path.join(sys.argv[1], "latest"))
            report(run=run.id, is_latest_there=os.path.exists(os.path.join(sys.argv[1], latest, "run.json")))
"""


def statuses(experiment: Path) -> dict[str, str]:
    """Return the status of each run."""
    return {run.id: run.status for run in Experiment(experiment).runs()}


def test_prunes_at_once_do_what_one_does(experiment: Path, children: Children) -> None:
    """Every run goes once, no call fails, and no line is damaged."""
    for _ in range(30):
        start_run(experiment).finish()
    late = time.time() + 40 * 86400
    prunes = [children.start(PRUNE, experiment, late, 5, 1, is_gated=True) for _ in range(6)]
    children.open_gate()
    reports = [child.report() for child in prunes]

    assert [problem for each in reports for problem in each["problems"]] == []
    assert list(statuses(experiment).values()) == ["pruned"] * 25 + ["finished"] * 5
    assert len(list((experiment / "runs").glob("*Z_*"))) == 5
    manifest = read_manifest(ExperimentLayout.of(experiment))
    assert manifest.damaged == 0
    pruned = [record.run for record in manifest.records if record.event == "pruned"]
    assert len(pruned) == len(set(pruned)) == 25
    assert not verify_experiment(Experiment(experiment)).problems


def test_prunes_beside_launches_take_no_new_run(experiment: Path, children: Children) -> None:
    """The runs of today stay, `latest` is always there, and nobody fails."""
    old = []
    for _ in range(20):
        with start_run(experiment) as run:
            old.append(run.id)
    for path in (experiment / "runs").rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    manifest = experiment / "runs" / "manifest.jsonl"
    manifest.write_text(re.sub(r'"time": "....-..-..', '"time": "2001-01-01', manifest.read_text(encoding="utf-8")))
    launches = [children.start(LAUNCH, experiment, 10, is_gated=True) for _ in range(3)]
    prunes = [children.start(PRUNE, experiment, time.time() + 60, 0, 15, is_gated=True) for _ in range(2)]
    children.open_gate()
    started = [line for child in launches for line in child.reports()]
    reports = [line for child in prunes for line in child.reports()]

    assert [problem for each in reports for problem in each["problems"]] == []
    assert all(line["is_latest_there"] for line in started)
    found = statuses(experiment)
    assert {found[line["run"]] for line in started} == {"finished"}
    assert {found[name] for name in old[:-1]} == {"pruned"}
    assert not verify_experiment(Experiment(experiment)).problems
