"""Lightning's own launcher: the script is rank zero, and is started again for every further rank, inside `fit`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment

if TYPE_CHECKING:
    from tests.nemo.launchers.conftest import Launches


def _lines(log: Path) -> list[str]:
    return [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]


def test_two_ranks_agree_and_the_next_launch_resumes(launches: Launches) -> None:
    """Both ranks return one directory, which `latest` shows; the next launch continues from its checkpoint."""
    first = launches.run("trainer.devices=2", "exp_manager.log_every_rank=true")
    assert first.values("LOG_DIR") == [str(first.run)] * 2
    assert first.values("APP_STATE") == [str(first.run)] * 2
    assert first.values("PROCESS_GROUP") == ["False"] * 2
    assert first.values("STEP") == ["8"] * 2
    (run,) = Experiment(launches.experiment).runs()
    assert (run.path, run.status, run.ranks_joined, run.world_size, run.step) == (first.run, "finished", 2, 2, 8)
    assert os.readlink(launches.experiment / "latest") == f"runs/{run.id}"
    for rank in range(2):
        assert _lines(run.path / f"nemo_log_globalrank-{rank}_localrank-{rank}.txt")[-1].endswith(
            f"rank {rank} says goodbye"
        )
    assert len(list(run.path.glob("nemo_log_globalrank-*"))) == 2

    second = launches.run("trainer.devices=2", "trainer.max_epochs=3")
    assert second.values("STEP") == ["12"] * 2
    earlier, later = Experiment(launches.experiment).runs()
    assert earlier == run
    assert (later.path, later.status, later.ranks_joined, later.step) == (second.run, "finished", 2, 12)
    assert (later.resumed_from, later.lineage) == (run.id, run.id)
    assert os.readlink(launches.experiment / "latest") == f"runs/{later.id}"


@pytest.mark.parametrize(
    ("devices", "steps"),
    [((2, 2, 2), [4, 8, 12]), ((1, 2), [8, 12])],
    ids=["three trainers on two devices", "one device, then two"],
)
def test_each_further_trainer_of_a_script_has_its_run(
    launches: Launches, devices: tuple[int, ...], steps: list[int]
) -> None:
    """The ranks agree on a run for each trainer, though only the first `fit` on several devices starts processes."""
    epochs = list(range(1, len(devices) + 1))
    ended = launches.run(
        f"+devices={list(devices)}",
        f"+epochs={epochs}",
        "exp_manager.log_every_rank=true",
        script="two_trainings.py",
    )
    runs = Experiment(launches.experiment).runs()
    assert [run.status for run in runs] == ["finished"] * len(devices)
    assert [run.step for run in runs] == steps
    for number, run in enumerate(runs):
        # The child runs the whole script, so that it takes part in the trainings before it was started too.
        assert ended.values(f"RUN_{number}") == [str(run.path)] * 2
        assert sorted(entry.name for entry in run.path.glob("ranks/*/*")) == ["rank-000000.json", "rank-000001.json"]
        for rank in range(2):
            (log,) = run.path.glob(f"nemo_log_globalrank-{rank}_localrank-*.txt")
            goodbyes = [line for line in _lines(log) if line.endswith("says goodbye")]
            assert [line.split("training ")[1] for line in goodbyes] == [f"{number} says goodbye"]


def test_two_nodes_agree(launches: Launches, free_port: int) -> None:
    """Two nodes, on each of which Lightning starts the second rank: the address of the first node is the key."""
    nodes = [{"NODE_RANK": str(node), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)} for node in range(2)]
    ended = launches.run_ranks(
        nodes, "trainer.devices=2", "+trainer.num_nodes=2", "trainer.max_epochs=1", "exp_manager.log_every_rank=true"
    )
    (run,) = Experiment(launches.experiment).runs()
    assert [each.values("LOG_DIR") for each in ended] == [[str(run.path)] * 2] * 2
    assert (run.status, run.ranks_joined, run.world_size) == ("finished", 4, 4)
    assert sorted(log.name for log in run.path.glob("nemo_log_globalrank-*")) == [
        f"nemo_log_globalrank-{rank}_localrank-{rank % 2}.txt" for rank in range(4)
    ]


def test_an_experiment_that_is_named_anew_in_each_rank_is_refused(launches: Launches) -> None:
    """`${now:...}` gives each rank another directory: the launch ends with a message instead of splitting."""
    experiment = f"exp_manager.exp_dir={launches.directory}/exp/${{now:%f}}"
    ended = launches.start("trainer.devices=2", experiment).end(status=-signal.SIGKILL)  # by Lightning
    assert "HINT: the experiment must be the same on all ranks; ${now:...}" in ended.output
    assert len(list(launches.directory.glob("exp/*/tiny"))) == 1
