"""SIGKILL before, in and after every change that a launch makes to the file system, and what the next launch finds."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment, start_run
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import read_manifest
from tests.conftest import shown_by_latest

if TYPE_CHECKING:
    from collections.abc import Callable


def runs_before(cases: list[Any], state: str) -> set[str]:
    """Return the runs that every experiment of the cases began with."""
    if state != "used":
        return set()
    return {run.id for run in Experiment(cases[0].experiment.parent / "template").runs()}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after", "torn"])
@pytest.mark.parametrize("state", ["first", "used"])
def test_launch_after_a_kill_at_any_step_needs_no_repair(
    disturbed_launches: Callable[..., list[Any]], assert_recovers: Callable[..., None], state: str, how: str
) -> None:
    """No earlier run is lost, `latest` leads to a complete record or is not there, and the next launch works."""
    cases = disturbed_launches(state, how)
    assert len(cases) > (4 if how == "torn" else 25)
    earlier = runs_before(cases, state)

    for case in cases:
        assert case.status == -signal.SIGKILL, case.case
        assert_recovers(case, earlier)


def test_kills_reach_every_kind_of_change(disturbed_launches: Callable[..., list[Any]]) -> None:
    """The steps are not a list in the tests but what the launch really does, from the first directory to the end."""
    cases = disturbed_launches("used", "before")
    names = [case.case for case in cases]

    for part in ("mkdir", "symlink", "write", "fsync", "replace", "run.json", "finished.json", "manifest.jsonl"):
        assert any(part in name for name in names), part


@pytest.mark.slow
@pytest.mark.needs("links")  # a claim that is a file is passed over only when it is a minute old
@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_launch_with_the_same_key_after_a_kill_gets_a_run_without_foreign_traces(
    disturbed_launches: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Either the killed rank had joined, and the next launch passes its run over, or it left no more than a name."""
    cases = disturbed_launches("shared", how)
    for name, value in {"RANK": "0", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)

    for case in cases:
        earlier = [*case.experiment.glob("runs/*/ranks/*/rank-000000.json")]
        records = [*case.experiment.glob("runs/*/run.json")]
        run = start_run(case.experiment)
        run.finish()
        assert run.path not in {path.parent.parent.parent for path in earlier}, case.case
        assert run.path not in {path.parent for path in records}, case.case
        entry = json.loads(ExperimentLayout.of(case.experiment).run(run.id).rank_entry(0).read_bytes())
        assert entry["pid"] == os.getpid(), case.case
        assert shown_by_latest(case.experiment) == run.path, case.case


def test_kill_between_the_line_and_the_switch_leaves_latest_one_run_behind(
    disturbed_launches: Callable[..., list[Any]],
) -> None:
    """The manifest knows better, as documented; and `latest` is never ahead of it."""
    cases = disturbed_launches("used", "before")
    behind = 0
    for case in cases:
        manifest = read_manifest(ExperimentLayout.of(case.experiment))
        started = [record.run for record in manifest.records if record.event == "started"]
        shown = shown_by_latest(case.experiment)
        assert shown is not None
        latest = shown.name
        assert latest in started[-2:], case.case
        behind += latest != started[-1]

    assert behind > 0


def test_killed_run_is_listed_with_what_it_had_reached(disturbed_launches: Callable[..., list[Any]]) -> None:
    """From the first directory on it is a run: unknown without an end record, finished with one."""
    cases = disturbed_launches("first", "after")
    statuses: list[str | None] = []
    for case in cases:
        runs = Experiment(case.experiment).runs() if (case.experiment / "runs").is_dir() else []
        assert len(runs) <= 1, case.case
        statuses.append(runs[0].status if runs else None)

    order = [status for index, status in enumerate(statuses) if index == 0 or status != statuses[index - 1]]
    # A run directory in which nobody's entry is complete yet can only be judged by its last write, just now.
    assert order in ([None, "running", "unknown", "finished"], [None, "running", "unknown", "running", "finished"])
