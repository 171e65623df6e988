from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from immutable_logs import start_run
from immutable_logs.catalog import Experiment
from immutable_logs.layout import ExperimentLayout
from migration.apply import apply_plan
from migration.finalize import finalize_migration
from migration.legacy_search import find_experiments
from migration.undo import Undone, undo_migration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.migration_tool.conftest import Contents, OldTree


def apply(path: Path) -> None:
    """Apply the plan for one log directory."""
    (experiment,) = find_experiments([path], [])
    apply_plan(experiment)


def undo(path: Path) -> Undone:
    """Undo the migration of one log directory."""
    return undo_migration(ExperimentLayout.of(path))


def test_a_run_that_started_since_is_not_touched(
    unpack: Callable[[str], Path], contents: Callable[[Path], Contents]
) -> None:
    """`undo` takes away the migration's runs and lines, and leaves the run, its lines and `latest`."""
    path = unpack("3.0.0_single")
    before = contents(path)
    apply(path)
    with start_run(path) as run:
        pass

    undone = undo(path)

    assert undone.kept == []
    assert [each.id for each in Experiment(path).runs()] == [run.id]
    latest = Experiment(path).latest
    assert latest is not None
    assert latest.id == run.id
    assert {name: what for name, what in contents(path).items() if name in before} == before
    assert not (path / "runs" / ".migration").exists()


def test_lines_of_others_keep_their_bytes(unpack: Callable[[str], Path]) -> None:
    """A manifest that was there, torn end and all, has the same bytes afterwards."""
    path = unpack("3.0.0_single")
    with start_run(path):
        pass
    manifest = path / "runs" / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes() + b'{"format": 1, "ev')
    before = manifest.read_bytes()
    apply(path)
    assert manifest.read_bytes() != before

    undo(path)

    assert manifest.read_bytes() == before


def test_the_only_name_left_is_kept(unpack: Callable[[str], Path]) -> None:
    """Somebody removed old files since: their names in the runs are all there is, so they and their run stay."""
    path = unpack("3.0.0_single")
    apply(path)
    first = Experiment(path).runs()[0]
    text = (path / "run_0" / "nemo_error_log.txt").read_bytes()
    (path / "run_0" / "nemo_error_log.txt").unlink()

    undone = undo(path)

    assert len(undone.kept) == 1
    assert "nemo_error_log.txt" in undone.kept[0]
    assert (first.path / "nemo_error_log.txt").read_bytes() == text
    (kept,) = Experiment(path).runs()
    assert (kept.id, kept.status) == (first.id, "adopted")
    assert undo(path).kept == undone.kept


def test_after_stock_nemo_has_moved_the_old_files_undo_still_removes_its_own(
    old_tree: OldTree, start: float, contents: Callable[[Path], Contents]
) -> None:
    """The old files have other names by now, but they have names."""
    old_tree.launch(start, end=start + 50)
    apply(old_tree.path)
    old_tree.launch(start + 100, end=start + 150)

    undone = undo(old_tree.path)

    assert (undone.kept, undone.foreign) == ([], [])
    assert not any(name.startswith((b"runs", b"latest", b"tensorboard")) for name in contents(old_tree.path))


def test_it_is_refused_after_finalize(unpack: Callable[[str], Path], contents: Callable[[Path], Contents]) -> None:
    """The new names are the only ones then."""
    path = unpack("3.0.0_single")
    apply(path)
    (experiment,) = find_experiments([path], [])
    finalize_migration(experiment, now=2e9)
    before = contents(path)

    with pytest.raises(RuntimeError, match="finalize"):
        undo(path)

    assert contents(path) == before


def test_without_a_migration_it_does_nothing(
    unpack: Callable[[str], Path], contents: Callable[[Path], Contents]
) -> None:
    """An old tree, and one of the immutable layout, stay as they are."""
    path = unpack("3.0.0_single")
    with start_run(path):
        pass
    before = contents(path)

    assert undo(path) == Undone()
    assert contents(path) == before


def test_a_directory_with_something_else_in_it_stays(old_tree: OldTree, start: float) -> None:
    """A note that somebody left in an adopted run is not the migration's."""
    old_tree.launch(start)
    apply(old_tree.path)
    (run,) = Experiment(old_tree.path).runs()
    (run.path / "note.txt").write_text("mine")

    undone = undo(old_tree.path)

    assert undone.foreign == [f"runs/{run.id}"]
    assert [path.name for path in run.path.iterdir()] == ["note.txt"]
