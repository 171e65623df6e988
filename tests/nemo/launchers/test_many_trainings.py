"""Trainings that belong to no common launch: started at once, or one from within another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment

if TYPE_CHECKING:
    from tests.nemo.launchers.conftest import Launches


def test_plain_processes_have_a_run_each(launches: Launches) -> None:
    """Four trainings at once in one experiment, with nothing in the environment: none writes into another's logs."""
    started = [
        launches.start(
            "exp_manager.resume_if_exists=false", "exp_manager.log_every_rank=true", f"+note=training-{number}"
        )
        for number in range(4)
    ]
    ended = [each.end() for each in started]
    runs = Experiment(launches.experiment).runs()
    assert len(runs) == 4
    assert sorted(run.path for run in runs) == sorted(each.run for each in ended)
    assert [(run.status, run.ranks_joined, run.step) for run in runs] == [("finished", 1, 16)] * 4
    for number, each in enumerate(ended):
        assert f"note=training-{number}" in (each.run / "cmd-args.log").read_text(encoding="utf-8")
        log = (each.run / "nemo_log_globalrank-0_localrank-0.txt").read_text(encoding="utf-8")
        assert log.count("rank 0 says goodbye") == 1
        assert len(list(each.run.glob("events.out.tfevents.*"))) == 1


@pytest.mark.parametrize("devices", [1, 2])
def test_trainings_started_by_a_training_have_a_run_each(launches: Launches, devices: int) -> None:
    """A child inherits what its parent and Lightning's launcher put into the environment, and is no rank of it."""
    ended = launches.run(
        f"trainer.devices={devices}", "exp_manager.resume_if_exists=false", script="nested_trainings.py"
    )
    assert ended.values("OUTER") == [ended.value("OUTER")] * devices
    inner = ended.values("LOG_DIR")
    assert len(inner) == 2
    runs = Experiment(launches.experiment).runs()
    assert sorted(str(run.path) for run in runs) == sorted([ended.value("OUTER"), *inner])
    assert [run.status for run in runs] == ["finished"] * 3
    assert sorted(run.ranks_joined or 0 for run in runs) == [1, 1, devices]
