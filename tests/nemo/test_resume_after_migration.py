"""A training goes on from what stock NeMo left, after `migrate-nemo-logs` has made runs of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment
from immutable_logs.verification import verify_experiment
from migration.finalize import finalize_migration
from migration.legacy_search import find_experiments

IMMUTABLE = "exp_manager.log_layout=immutable"


def _migrate(command: str, experiment: Path) -> str:
    program = Path(sys.executable).with_name("migrate-nemo-logs")
    done = subprocess.run(
        [str(program), command, str(experiment)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _curves(directory: Path, tag: str) -> dict[str, list[int]]:
    """Return the steps of a tag by run, as TensorBoard's Python server keeps them."""
    from tensorboard.backend.event_processing import plugin_event_multiplexer

    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(directory))
    multiplexer.Reload()
    return {
        run: [event.step for event in multiplexer.Tensors(run, tag)]
        for run, tags in multiplexer.Runs().items()
        if tag in tags["tensors"]
    }


@pytest.mark.slow
def test_a_training_goes_on_from_the_checkpoint_of_an_adopted_run(
    train: Callable[..., Any], snapshot: Callable[[Path], dict[str, tuple[int, bytes]]], tmp_path: Path
) -> None:
    """Two launches of stock NeMo, a migration, then one with the layout: one line of work.

    The steps go on, checkpoints are read and written where they were, the lineage crosses the migration, TensorBoard
    shows one curve, and no old name has moved.
    """
    experiment = tmp_path / "exp" / "tiny"
    for launch in (1, 2):
        assert train(f"trainer.max_epochs={launch}").values("STEP") == [str(8 * launch)]
    assert (experiment / "run_0" / "cmd-args.log").is_file()
    old = snapshot(experiment)
    checkpoints = {name for name in old if name.endswith(".ckpt")}

    assert "2 new runs" in _migrate("apply", experiment)
    first, second = Experiment(experiment).runs()
    assert [first.status, second.status] == ["adopted"] * 2
    assert {name: snapshot(experiment)[name] for name in old} == old
    third = train(IMMUTABLE, "trainer.max_epochs=3")

    assert third.values("STEP") == ["24"]
    restored = [line for line in third.output.splitlines() if "Restoring states from the checkpoint path at" in line]
    assert any(str(experiment / "checkpoints" / "tiny--") in line for line in restored), third.output[-4000:]
    runs = Experiment(experiment).runs()
    assert [run.id for run in runs][:2] == [first.id, second.id]
    assert [run.resumed_from for run in runs] == [None, *(run.id for run in runs[:-1])]
    assert {run.lineage for run in runs} == {first.id}
    record = json.loads((runs[2].path / "run.json").read_text(encoding="utf-8"))
    assert record["checkpoint"] in checkpoints
    assert record["checkpoints"] == "checkpoints"
    assert os.readlink(experiment / "latest") == f"runs/{runs[-1].id}"
    now = snapshot(experiment)
    assert {name: now.get(name) for name in old if not name.startswith("checkpoints")} == {
        name: what for name, what in old.items() if not name.startswith("checkpoints")
    }
    assert [path.name for path in experiment.glob("run_*")] == ["run_0"]
    for tag, expected in (("loss", list(range(24))), ("val_loss", [7, 15, 23])):
        assert _curves(experiment / "tensorboard", tag) == {first.id: expected}, tag
    assert verify_experiment(Experiment(experiment)).findings == ()
    assert "old files are in their runs" in _migrate("verify", experiment)


def test_a_training_goes_on_after_finalize(train: Callable[..., Any], tmp_path: Path) -> None:
    """With the old names gone, the checkpoint is still where it was, and the adopted run is the one that wrote it."""
    experiment = tmp_path / "exp" / "tiny"
    train("trainer.max_epochs=1")
    _migrate("apply", experiment)
    (old,) = find_experiments([experiment], [])

    assert finalize_migration(old, now=time.time() + 3600).objections == []
    assert not (experiment / "cmd-args.log").exists()
    assert train(IMMUTABLE, "trainer.max_epochs=2").values("STEP") == ["16"]

    first, second = Experiment(experiment).runs()
    assert (first.path / "cmd-args.log").is_file()
    assert (second.resumed_from, second.lineage) == (first.id, first.id)
