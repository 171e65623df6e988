"""No rank waits for another inside `exp_manager`: no sleep, no process group, no barrier; and ranks may be late."""

from __future__ import annotations

import ast
import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.nemo.launchers.conftest import Launches

LAUNCH_ID = {"IMMUTABLE_LOGS_LAUNCH_ID": "job 7"}
STOP = ("stop_before_fit=true", "exp_manager.log_every_rank=true")


def _rank(rank: int, world_size: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}


def test_no_rank_sleeps_or_talks_to_another(launches: Launches) -> None:
    """Stock lets every other rank sleep for five seconds; collectives begin with Lightning's own, in `fit`.

    Nor does any but rank zero read a record of a run, also of a training that goes on.
    """
    ended = launches.run("trainer.devices=2", "trainer.max_epochs=1", script="watched_train.py")
    assert len(ended.values("LOG_DIR")) == 2
    assert ended.value("SLEEPS_1") == "[]"
    # Rank zero asks git, and Python polls for the end of a child process.
    assert sum(json.loads(ended.value("SLEEPS_0"))) < 1
    assert ended.values("COLLECTIVES") == ["[]"] * 2
    # The recorders do see what Lightning does.
    assert all("'init_process_group'" in names for names in ended.values("COLLECTIVES_OF_FIT"))
    assert len(ended.values("COLLECTIVES_OF_FIT")) == 2

    resumed = launches.run("trainer.devices=2", "trainer.max_epochs=2", script="watched_train.py")
    assert Experiment(launches.experiment).runs()[1].resumed_from == ended.run.name
    # Rank zero looks for the run that wrote the checkpoint, and writes the record.
    assert {"manifest.jsonl", "run.json"} <= set(ast.literal_eval(resumed.value("RECORDS_0")))
    assert resumed.value("RECORDS_1") == "[]"


def test_a_sleep_that_the_user_asks_for_is_honoured(launches: Launches) -> None:
    """Whoever sets `seconds_to_sleep` gets it, on every rank but rank zero."""
    started = [
        launches.start(
            "+exp_manager.seconds_to_sleep=1",
            "trainer.devices=2",
            "stop_before_fit=true",
            environment={**LAUNCH_ID, **_rank(rank, 2)},
            script="watched_train.py",
        )
        for rank in range(2)
    ]
    zero, one = (each.end() for each in started)
    assert zero.run == one.run
    assert one.value("SLEEPS_1") == "[1.0]"
    assert sum(json.loads(zero.value("SLEEPS_0"))) < 1


@pytest.mark.parametrize("is_id_set", [False, True], ids=["master address", "launch id"])
def test_rank_zero_may_come_after_all_others(launches: Launches, free_port: int, *, is_id_set: bool) -> None:
    """Rank one has returned, and ended, before rank zero even starts; it comes to the same directory."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    environments: list[Mapping[str, str]] = [
        {**(LAUNCH_ID if is_id_set else address), **_rank(rank, 2)} for rank in range(2)
    ]
    begin = time.monotonic()
    one = launches.run(*STOP, environment=environments[1])
    (seen_before,) = Experiment(launches.experiment).runs()
    assert (seen_before.path, seen_before.ranks_joined) == (one.run, 1)
    assert seen_before.status in {"running", "unknown"}
    assert not os.path.lexists(launches.experiment / "latest")
    # Less than the time for which stock lets it sleep, and far less than the time that rank zero is behind.
    assert float(one.value("SECONDS")) < 4

    time.sleep(max(0.0, 8.0 - (time.monotonic() - begin)))
    zero = launches.run(*STOP, environment=environments[0])
    assert zero.run == one.run
    (run,) = Experiment(launches.experiment).runs()
    assert (run.path, run.status, run.ranks_joined, run.world_size) == (zero.run, "finished", 2, 2)
    assert os.readlink(launches.experiment / "latest") == f"runs/{run.id}"
    assert sorted(log.name for log in run.path.glob("nemo_log_globalrank-*")) == [
        f"nemo_log_globalrank-{rank}_localrank-{rank}.txt" for rank in range(2)
    ]


def test_rank_zero_may_never_come(launches: Launches) -> None:
    """The others' logs are kept, the run is listed without any record, and the next launch works."""
    orphans = launches.run_ranks([{**LAUNCH_ID, **_rank(rank, 3)} for rank in (1, 2)], *STOP)
    lost = orphans[0].run
    assert orphans[1].run == lost
    for rank in (1, 2):
        log = lost / f"nemo_log_globalrank-{rank}_localrank-{rank}.txt"
        assert f"Experiments will be logged at {lost}" in log.read_text(encoding="utf-8")

    following = launches.run(*STOP, environment={"IMMUTABLE_LOGS_LAUNCH_ID": "job 8", **_rank(0, 1)})
    first, second = Experiment(launches.experiment).runs()
    assert (first.path, first.ranks_joined) == (lost, 2)
    assert first.status in {"running", "unknown"}
    assert not (lost / "run.json").exists()
    assert (second.path, second.status) == (following.run, "finished")
    assert os.readlink(launches.experiment / "latest") == f"runs/{second.id}"
