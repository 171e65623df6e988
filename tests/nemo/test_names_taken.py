"""Real trainings where something of the user's has a name of ours, or a name that leads out of `exp_dir`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment
from tests.hostile.conftest import take_name
from tests.hostile.test_names_taken import identity_of


@pytest.mark.parametrize("kind", ["file", "dangling link", "pipe"])
def test_a_training_goes_on_where_tensorboard_and_requeue_are_taken(
    train: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    """One warning tells that there is no continuous curve; the curve itself is in the run, and resuming works."""
    experiment = tmp_path / "exp" / "tiny"
    taken = [experiment / name for name in ("tensorboard", "requeue")]
    for path in taken:
        take_name(path, kind, tmp_path / f"elsewhere-{path.name}")
    before = [identity_of(path) for path in taken]

    first = train("exp_manager.log_layout=immutable", "trainer.max_epochs=1")
    second = train("exp_manager.log_layout=immutable", "trainer.max_epochs=2")

    assert [each.values("STEP") for each in (first, second)] == [["8"], ["16"]]
    runs = Experiment(experiment).runs()
    assert [run.status for run in runs] == ["finished", "finished"]
    assert runs[1].resumed_from == runs[0].id
    for finished, run in zip((first, second), runs, strict=True):
        (warning,) = [line for line in finished.output.splitlines() if "could not be linked" in line]
        assert f"The event files of run {run.id} could not be linked" in warning
        assert list(run.path.glob("events.out.tfevents.*"))
    assert [identity_of(path) for path in taken] == before


def test_a_name_that_leads_out_of_exp_dir_is_where_stock_puts_it(train: Callable[..., Any], tmp_path: Path) -> None:
    """``name=../../elsewhere``: runs and checkpoints lie where stock has logs and checkpoints, and nothing else does.

    Stock puts the name into that of each checkpoint too, so that it finds none when it resumes; this is no different.
    """
    launches = [("stock", 1, "moving"), ("ours", 1, "immutable"), ("ours", 2, "immutable")]
    for home, epochs, layout in launches:
        train(
            f"exp_manager.exp_dir={tmp_path / home / 'exp' / 'deep'}",
            "exp_manager.name=../../elsewhere",
            f"exp_manager.log_layout={layout}",
            f"trainer.max_epochs={epochs}",
        )

    assert (tmp_path / "stock" / "elsewhere" / "cmd-args.log").is_file()
    assert list((tmp_path / "stock").glob("*.ckpt"))
    experiment = tmp_path / "ours" / "elsewhere"
    runs = Experiment(experiment).runs()
    assert [run.status for run in runs] == ["finished", "finished"]
    assert Experiment(experiment).latest == runs[1]
    assert {path.name for path in experiment.iterdir()} == {"runs", "latest", "checkpoints", "tensorboard"}
    left = {path.name for path in (tmp_path / "ours").iterdir()}
    assert {name for name in left if not name.endswith(".ckpt")} <= {"elsewhere", "exp"}
    assert not [path for path in (tmp_path / "ours" / "exp").rglob("*") if path.is_file()]


def test_checkpoints_are_found_through_a_directory_that_is_not_there(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    """``exp_dir=missing/../exp``: stock makes ``missing`` on the way; without it no checkpoint would be found."""
    options = ["exp_manager.log_layout=immutable", f"exp_manager.exp_dir={tmp_path / 'missing' / '..' / 'exp'}"]

    for epochs in (1, 2):
        train(f"trainer.max_epochs={epochs}", *options)

    runs = Experiment(tmp_path / "exp" / "tiny").runs()
    assert [run.step for run in runs] == [8, 16]
    assert runs[1].resumed_from == runs[0].id
