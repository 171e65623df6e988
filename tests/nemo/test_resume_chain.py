"""Chains of resumed launches: checkpoints, lineage, and that nothing is ever moved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment


@pytest.mark.slow
def test_four_launches_resume_from_each_other_and_move_nothing(
    train: Callable[..., Any], snapshot: Callable[[Path], dict[str, tuple[int, bytes]]], tmp_path: Path
) -> None:
    """Four launches with `save_top_k=2`: each goes on where the last ended, and every earlier path stays as it was.

    Same inode and same bytes, but for Lightning's rotation inside `checkpoints/`, the growing manifest and `latest`.
    """
    experiment = tmp_path / "exp" / "tiny"
    before: dict[str, tuple[int, bytes]] = {}
    for launch in range(1, 5):
        finished = train("exp_manager.log_layout=immutable", f"trainer.max_epochs={launch}")
        assert finished.values("STEP") == [str(8 * launch)]
        after = snapshot(experiment)
        for name, (inode, content) in before.items():
            if name.startswith("checkpoints/") or name == "latest":
                continue
            assert name in after, f"{name} vanished at launch {launch}"
            assert after[name][0] == inode, name
            if name == "runs/manifest.jsonl":
                assert after[name][1].startswith(content)
            else:
                assert after[name][1] == content, name
        before = after
        checkpoints = sorted(path.name for path in (experiment / "checkpoints").iterdir())
        assert sum(name.endswith("-last.ckpt") for name in checkpoints) == 1, checkpoints
        assert len(checkpoints) <= 3, checkpoints
    runs = Experiment(experiment).runs()
    assert [run.status for run in runs] == ["finished"] * 4
    assert [run.step for run in runs] == [8, 16, 24, 32]
    assert [run.resumed_from for run in runs] == [None, *(run.id for run in runs[:-1])]
    assert {run.lineage for run in runs} == {runs[0].id}
    assert not list(experiment.glob("run_*"))
    record = json.loads((runs[3].path / "run.json").read_text(encoding="utf-8"))
    assert record["checkpoint"].startswith("checkpoints/")
    assert record["checkpoints"] == "checkpoints"


def test_stock_moves_files_at_the_second_launch(train: Callable[..., Any], tmp_path: Path) -> None:
    """The control: under the moving layout the same two launches leave a `run_0`."""
    for launch in (1, 2):
        train(f"trainer.max_epochs={launch}")
    assert (tmp_path / "exp" / "tiny" / "run_0" / "cmd-args.log").is_file()
    assert not (tmp_path / "exp" / "tiny" / "runs").exists()


def test_a_colleague_without_the_layout_loses_us_nothing(
    train: Callable[..., Any], snapshot: Callable[[Path], dict[str, tuple[int, bytes]]], tmp_path: Path
) -> None:
    """A moving launch between two immutable ones sweeps only its own files; runs, manifest and links stay."""
    experiment = tmp_path / "exp" / "tiny"
    train("exp_manager.log_layout=immutable", "trainer.max_epochs=1")
    before = snapshot(experiment)
    for launch in (2, 3):
        train(f"trainer.max_epochs={launch}")
    after = snapshot(experiment)
    ours = {name for name in before if not name.startswith("checkpoints")}
    assert {name: after.get(name) for name in ours} == {name: before[name] for name in ours}
    finished = train("exp_manager.log_layout=immutable", "trainer.max_epochs=4")
    assert finished.values("STEP") == ["32"]
    assert [run.status for run in Experiment(experiment).runs()] == ["finished", "finished"]


def test_a_fresh_version_resumes_nothing_and_stands_alone(train: Callable[..., Any], tmp_path: Path) -> None:
    """Without resuming, each launch starts at step 0, with checkpoints and a lineage of its own."""
    for _ in range(2):
        finished = train(
            "exp_manager.log_layout=immutable", "exp_manager.resume_if_exists=false", "trainer.max_epochs=1"
        )
        assert finished.values("STEP") == ["8"]
    runs = Experiment(tmp_path / "exp" / "tiny").runs()
    assert [run.resumed_from for run in runs] == [None, None]
    assert [run.lineage for run in runs] == [run.id for run in runs]
    assert all(list((run.path / "checkpoints").glob("*-last.ckpt")) for run in runs)
