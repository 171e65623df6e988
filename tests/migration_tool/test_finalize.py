from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from immutable_logs import durable_files, start_run
from immutable_logs.catalog import Experiment
from migration.apply import apply_plan
from migration.finalize import Finalization, finalize_migration, plan_finalization
from migration.legacy_search import find_experiments
from migration.verify import verify_migration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Children
    from tests.migration_tool.conftest import Contents, OldTree

NOW = 2e9
"""Long after every tree was written."""


def apply(path: Path) -> None:
    """Apply the plan for one log directory."""
    (experiment,) = find_experiments([path], [])
    apply_plan(experiment)


def finalize(path: Path, *, now: float = NOW) -> Finalization:
    """Remove the old names of one log directory, if nothing speaks against it."""
    (experiment,) = find_experiments([path], [])
    return finalize_migration(experiment, now=now)


def test_old_names_go_and_every_byte_stays(
    corpus_name: str, unpack: Callable[[str], Path], contents: Callable[[Path], Contents]
) -> None:
    """Of a real tree, what NeMo wrote or moved is in the runs only; checkpoints and all else is where it was."""
    path = unpack(corpus_name)
    old = contents(path)
    apply(path)

    done = finalize(path)

    assert done.objections == []
    assert done.names > 0
    new = contents(path)
    gone = {name for name in old if name not in new and old[name] != "directory"}
    assert len(gone) == done.names
    assert not any(name.endswith(b".ckpt") or name.startswith(b"wandb/") for name in gone)
    assert {old[name] for name in gone} <= {what for name, what in new.items() if name.startswith(b"runs/")}
    assert not any(b"tfevents" in name for name in new if not name.startswith((b"runs/", b"tensorboard/")))
    (experiment,) = find_experiments([path], [])
    verified = verify_migration(experiment)
    assert (verified.problems, verified.finalized) == ([], done.names)
    assert all(link.exists() for link in (path / "tensorboard").rglob("*"))


def test_the_plan_changes_nothing(unpack: Callable[[str], Path], contents: Callable[[Path], Contents]) -> None:
    """It counts what would be removed."""
    path = unpack("3.0.0_single")
    apply(path)
    before = contents(path)
    (experiment,) = find_experiments([path], [])

    planned = plan_finalization(experiment, now=NOW)

    assert (planned.names, planned.kept, planned.objections) == (24, 0, [])
    assert contents(path) == before


def test_files_at_the_top_that_are_not_nemos_stay(old_tree: OldTree, start: float) -> None:
    """A file of the user's that was written during a launch is in the run, but its name is not removed."""
    old_tree.launch(start, end=start + 50)
    mine = old_tree.write("mine.csv", "x", start + 20)
    apply(old_tree.path)

    done = finalize(old_tree.path)

    assert done.kept == 1
    assert mine.exists()
    assert not (old_tree.path / "cmd-args.log").exists()


def test_it_refuses_before_everything_is_adopted(unpack: Callable[[str], Path]) -> None:
    """Nothing was applied, so that nothing has a second name."""
    path = unpack("3.0.0_single")

    done = finalize(path)

    assert any("not in the new layout yet" in reason for reason in done.objections)
    assert (path / "run_0" / "cmd-args.log").exists()


def test_it_refuses_when_a_file_was_replaced(unpack: Callable[[str], Path]) -> None:
    """An old name leads to another file than the one in the run: bytes would be lost."""
    path = unpack("3.0.0_single")
    apply(path)
    log = path / "run_0" / "nemo_error_log.txt"
    text = log.read_bytes()
    times = (log.stat().st_atime, log.stat().st_mtime)
    log.unlink()
    log.write_bytes(text + b"more\n")
    os.utime(log, times)

    done = finalize(path)

    assert any("run_0/nemo_error_log.txt" in reason for reason in done.objections)
    assert log.exists()


def test_it_refuses_while_a_process_has_a_file_open(old_tree: OldTree, start: float, children: Children) -> None:
    """The process is named."""
    old_tree.launch(start)
    apply(old_tree.path)
    holder = children.start("file = open(sys.argv[1])\ngate()\n", old_tree.path / "lightning_logs.txt", is_gated=True)
    holder.wait_until_ready()
    holder.is_gated = False

    done = finalize(old_tree.path)

    assert any(f"process {holder.popen.pid} " in reason for reason in done.objections)
    assert (old_tree.path / "lightning_logs.txt").exists()
    children.open_gate()
    holder.communicate()
    assert finalize(old_tree.path).objections == []


def test_it_refuses_while_another_host_may_be_writing(old_tree: OldTree, start: float) -> None:
    """A file that was written a moment ago is a sign of life, since open files of other hosts cannot be seen."""
    old_tree.launch(start, end=start + 50)
    apply(old_tree.path)

    assert any("another host" in reason for reason in finalize(old_tree.path, now=start + 100).objections)
    assert finalize(old_tree.path, now=start + 5000).objections == []


def test_it_refuses_while_a_run_is_live(unpack: Callable[[str], Path]) -> None:
    """A run of the immutable layout may be reading the old checkpoints and logs."""
    path = unpack("3.0.0_single")
    apply(path)

    with start_run(path) as run:
        done = finalize(path)

    assert any(run.id in reason for reason in done.objections)


def test_names_whose_twin_is_a_link_stay(old_tree: OldTree, start: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file is all there is then."""
    old_tree.launch(start)

    def refuse(*_: object) -> bool:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(durable_files, "create_hard_link", refuse)
        apply(old_tree.path)

    done = finalize(old_tree.path)

    assert (done.names, done.objections) == (0, [])
    assert (old_tree.path / "cmd-args.log").exists()
    (run,) = Experiment(old_tree.path).runs()
    assert (run.path / "cmd-args.log").read_text() == "train.py --steps 10"


@pytest.mark.parametrize("victim", ["nemo_error_log.txt", "run.json"])
def test_verify_names_what_is_gone_after_finalize(unpack: Callable[[str], Path], victim: str) -> None:
    """A file or a record that somebody removed from a run is found, although its old name is gone too."""
    path = unpack("3.0.0_single")
    apply(path)
    finalize(path)
    (Experiment(path).runs()[1].path / victim).unlink()

    (experiment,) = find_experiments([path], [])
    problems = verify_migration(experiment).problems

    assert len(problems) == 1
    assert victim in problems[0]
