"""One continuous TensorBoard curve over resumed runs, read with TensorBoard's own loaders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment


def _steps_of_server(directory: Path, tag: str) -> dict[str, list[int]]:
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
def test_a_lineage_is_one_curve_without_doubled_steps(train: Callable[..., Any], tmp_path: Path) -> None:
    """Resumed from step 16 after an earlier run had reached 20: one curve, steps strictly increasing, none lost."""
    experiment = tmp_path / "exp" / "tiny"
    layout = "exp_manager.log_layout=immutable"
    train(layout, "trainer.max_epochs=2")
    train(layout, "trainer.max_epochs=4", "fail_at=20", expect=1)
    train(layout, "trainer.max_epochs=3")
    runs = Experiment(experiment).runs()
    assert [run.status for run in runs] == ["finished", "failed", "finished"]
    assert [run.step for run in runs] == [16, 20, 24]
    lineage = experiment / "tensorboard" / runs[0].id
    links = sorted(lineage.iterdir())
    assert [link.name[:5] for link in links] == ["0001_", "0002_", "0003_"]
    for link, run in zip(links, runs, strict=True):
        text = os.readlink(link)
        assert not os.path.isabs(text)
        assert link.resolve().parent == run.path
    for tag, expected in (("loss", list(range(24))), ("val_loss", [7, 15, 23])):
        curves = _steps_of_server(experiment / "tensorboard", tag)
        assert list(curves) == [runs[0].id]
        assert curves[runs[0].id] == expected, tag
    assert set(_steps_of_server(experiment / "runs", "loss")) == {run.id for run in runs}


def test_a_checkpoint_saved_during_validation_keeps_the_validation_point(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    """A run that died at step 20 is resumed from the validation at 16, whose point must not be purged.

    Lightning counts the step after the validation and so logs one training step again, on that same number.
    """
    layout = "exp_manager.log_layout=immutable"
    train(layout, "trainer.max_epochs=4", "fail_at=20", expect=1)
    train(layout, "trainer.max_epochs=3")
    (loss,) = _steps_of_server(tmp_path / "exp" / "tiny" / "tensorboard", "loss").values()
    (val_loss,) = _steps_of_server(tmp_path / "exp" / "tiny" / "tensorboard", "val_loss").values()
    assert loss == [*range(16), *range(15, 24)]
    assert val_loss == [7, 15, 23]


def test_independent_runs_have_a_lineage_each(train: Callable[..., Any], tmp_path: Path) -> None:
    """Runs that do not resume each other do not purge each other's curves."""
    for _ in range(2):
        train("exp_manager.log_layout=immutable", "exp_manager.resume_if_exists=false", "trainer.max_epochs=1")
    curves = _steps_of_server(tmp_path / "exp" / "tiny" / "tensorboard", "loss")
    assert curves == {run.id: list(range(8)) for run in Experiment(tmp_path / "exp" / "tiny").runs()}


def test_links_are_numbered_after_those_that_are_there(tmp_path: Path) -> None:
    """Each event file gets one link, with the next ordinal, and a second call adds none."""
    from immutable_logs.layout import ExperimentLayout
    from immutable_logs.nemo_integration.event_files import link_event_files

    layout = ExperimentLayout(tmp_path)
    first, second = "2026-01-01_00-00-00Z_aaaaa", "2025-01-01_00-00-00Z_bbbbb"
    for run, number in ((first, 2), (second, 1)):
        layout.run(run).path.mkdir(parents=True)
        (layout.run(run).path / f"events.out.tfevents.{number}.host.1.0").write_bytes(b"x")
        for _ in range(2):
            link_event_files(layout, first, run)
    names = sorted(path.name for path in layout.lineage(first).iterdir())
    assert names == ["0001_events.out.tfevents.2.host.1.0", "0002_events.out.tfevents.1.host.1.0"]
    assert all(path.is_file() for path in layout.lineage(first).iterdir())


def test_a_run_without_event_files_has_no_lineage_directory(tmp_path: Path) -> None:
    """No logger, no directory: nothing dangles and nothing is empty."""
    from immutable_logs.layout import ExperimentLayout
    from immutable_logs.nemo_integration.event_files import link_event_files

    layout = ExperimentLayout(tmp_path)
    run = "2026-01-01_00-00-00Z_aaaaa"
    layout.run(run).path.mkdir(parents=True)
    link_event_files(layout, run, run)
    assert not layout.tensorboard.exists()
