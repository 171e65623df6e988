"""Where there are many files, a second process gives them their names: with the same result as the first would."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import durable_files
from immutable_logs.layout import ExperimentLayout
from migration import linking
from migration.apply import Applied, apply_plan
from migration.legacy_search import find_experiments
from migration.undo import undo_migration
from migration.verify import verify_migration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.migration_tool.conftest import Contents, OldTree

pytestmark = pytest.mark.usefixtures("second_process")


@pytest.fixture
def second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second process make the links of a small tree too."""
    monkeypatch.setattr(linking, "MANY", 0)


def apply(path: Path) -> Applied:
    """Apply the plan for one log directory."""
    (experiment,) = find_experiments([path], [])
    return apply_plan(experiment)


def problems_of(path: Path) -> list[str]:
    """Verify one experiment."""
    (experiment,) = find_experiments([path], [])
    return verify_migration(experiment).problems


def test_the_result_is_the_same(
    unpack: Callable[[str], Path],
    contents: Callable[[Path], Contents],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names, links, records and journals of two trees are equal."""
    path = unpack("3.0.0_torchrun_testing")
    other = tmp_path / "other" / path.name
    other.parent.mkdir()
    subprocess.run(["cp", "-a", str(path), str(other)], check=True)

    applied = apply(path)
    with monkeypatch.context() as patch:
        patch.setattr(linking, "MANY", 1_000_000)
        assert apply(other) == applied

    assert applied.files == 32
    assert contents(path) == contents(other)
    assert problems_of(path) == []
    assert not apply(path).has_changed


def test_what_it_cannot_link_hard_the_first_links_otherwise(
    old_tree: OldTree, start: float, monkeypatch: pytest.MonkeyPatch, contents: Callable[[Path], Contents]
) -> None:
    """The answer of the file system crosses from one process to the other."""
    old_tree.launch(start)
    before = contents(old_tree.path)

    def refuse(source: str, target: str) -> bool:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)

    monkeypatch.setattr(durable_files, "create_hard_link", refuse)

    assert apply(old_tree.path).symbolic == 7
    assert problems_of(old_tree.path) == []
    undo_migration(ExperimentLayout.of(old_tree.path))
    assert contents(old_tree.path) == before


def test_a_full_disk_is_told(old_tree: OldTree, start: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file, and the next call goes on."""
    old_tree.launch(start)
    link: Any = durable_files.create_hard_link

    def fill(source: str, target: str) -> bool:
        if source.endswith("lightning_logs.txt"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)
        return bool(link(source, target))

    with monkeypatch.context() as patch:
        patch.setattr(durable_files, "create_hard_link", fill)
        with pytest.raises(OSError, match=r"No space left.*lightning_logs\.txt"):
            apply(old_tree.path)

    apply(old_tree.path)
    assert problems_of(old_tree.path) == []


def test_its_end_is_told(old_tree: OldTree, start: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the system has no memory left: one sentence, and the next call goes on."""
    old_tree.launch(start)

    def die(source: str, target: str) -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(durable_files, "create_hard_link", die)
        with pytest.raises(RuntimeError, match="call apply again"):
            apply(old_tree.path)

    apply(old_tree.path)
    assert problems_of(old_tree.path) == []
