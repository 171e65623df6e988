"""Mounts that have no symbolic links, no locks, or a lock for each host."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment, start_run
from immutable_logs import run as run_module
from immutable_logs.launchers.detection import ProcessLaunch
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import read_manifest
from tests.conftest import shown_by_latest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Children

WEAK = """
    import errno, fcntl
    def refuse_links(*_, **__):
        raise OSError(errno.EPERM, "no links here")
    def refuse_locks(*_):
        raise OSError(errno.ENOLCK, "no locks here")
    if "links" in sys.argv[2]:
        os.symlink = refuse_links
    if "locks" in sys.argv[2]:
        fcntl.flock = refuse_locks
    if "each host" in sys.argv[2]:
        fcntl.flock = lambda *_: None
    from immutable_logs import start_run
    gate()
    for _ in range(int(sys.argv[3])):
        run = start_run(sys.argv[1])
        run.finish()
        report(run=run.id)
"""


@pytest.mark.parametrize("lacking", ["links", "locks", "links and locks", "a lock for each host"])
def test_launches_at_once_lose_nothing_and_latest_rests_on_the_last(
    experiment: Path, children: Children, lacking: str
) -> None:
    """Whatever the mount lacks: a run for each launch, every line readable, and `latest` on the last started run."""
    processes = [children.start(WEAK, experiment, lacking, 8, is_gated=True) for _ in range(4)]
    children.open_gate()
    names = [line["run"] for child in processes for line in child.reports()]

    assert len(set(names)) == 32
    found = Experiment(experiment)
    assert {run.id for run in found.runs()} == set(names)
    manifest = read_manifest(ExperimentLayout.of(experiment))
    assert manifest.damaged == 0
    started = [record.run for record in manifest.records if record.event == "started"]
    assert sorted(started) == sorted(names)
    assert found.find("latest").id == started[-1]
    if "links" in lacking:
        assert not os.path.lexists(experiment / "latest")
    else:
        assert shown_by_latest(experiment) == experiment.resolve() / "runs" / started[-1]


def test_ranks_agree_without_links(experiment: Path, children: Children) -> None:
    """Claims are files there, and the ranks of a launch share a run all the same."""
    ranks = [
        children.start(
            WEAK,
            experiment,
            "links",
            1,
            environ={"IMMUTABLE_LOGS_LAUNCH_ID": "launch", "RANK": str(rank)},
            is_gated=True,
        )
        for rank in range(8)
    ]
    children.open_gate()

    assert len({rank.report()["run"] for rank in ranks}) == 1


def test_user_is_told_once_where_the_newest_run_is_named(
    experiment: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank zero names the file that stands for `latest`; a rank that merely joins says nothing."""

    def refuse(*_: object) -> None:
        raise OSError(95, "no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "launch")
    with caplog.at_level(logging.WARNING):
        start_run(experiment)
        texts = [record.getMessage() for record in caplog.records]
        caplog.clear()
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setattr(run_module, "_process_launch", ProcessLaunch())
        start_run(experiment)

    assert sum("latest.txt" in text for text in texts) == 1
    assert caplog.records == []
