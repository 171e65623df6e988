from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from migration.file_kinds import Kind, classify, rank_in
from migration.legacy_layout import LegacyExperiment, Place
from migration.legacy_search import find_experiments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.migration_tool.conftest import OldTree


def found_in(*paths: Path) -> list[LegacyExperiment]:
    """Return the experiments below some paths, in which nothing may be a problem."""
    problems: list[str] = []
    experiments = list(find_experiments(paths, problems))
    assert problems == []
    return experiments


def places_of(experiment: LegacyExperiment) -> list[str]:
    """Return the directories with files of an experiment, in order."""
    return [source.path for log in experiment.log_directories for source in log.sources]


def reasons_of(experiment: LegacyExperiment) -> dict[str, str]:
    """Return what is left alone, and why."""
    return {item.path: item.reason for item in experiment.left_alone}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cmd-args.log", Kind.ARGUMENTS),
        ("git-info.log", Kind.GIT),
        ("nemo_error_log.txt", Kind.ERRORS),
        ("lightning_logs.txt", Kind.LIGHTNING),
        ("hparams.yaml", Kind.HPARAMS),
        ("nemo_log_globalrank-12_localrank-4.txt", Kind.RANK_LOG),
        ("nemo_log_globalrank-x_localrank-4.txt", Kind.OTHER),
        ("events.out.tfevents.1796094275.vm.18942.0", Kind.EVENTS),
        ("events.out.tfevents", Kind.OTHER),
        ("a--val_loss=0.1-last.ckpt", Kind.CHECKPOINT),
        ("tiny.nemo", Kind.CHECKPOINT),
        ("cmd-args.log\n", Kind.OTHER),
    ],
)
def test_a_name_tells_the_kind(name: str, kind: Kind) -> None:
    """Only the exact names that NeMo and TensorBoard give count."""
    assert classify(name) is kind


def test_the_rank_is_the_global_one() -> None:
    """A rank log names two ranks, of which the first counts."""
    assert rank_in("nemo_log_globalrank-12_localrank-4.txt") == 12
    assert rank_in("nemo_error_log.txt") is None


def test_archives_come_in_the_order_of_their_numbers(old_tree: OldTree, start: float) -> None:
    """`run_10` comes after `run_2`."""
    for number in range(12):
        old_tree.launch(start + 100 * number)

    (experiment,) = found_in(old_tree.path)

    archives = [source.path for source in experiment.log_directories[0].sources if source.place is Place.ARCHIVE]
    assert archives == [f"run_{number}" for number in range(11)]


def test_what_nemo_did_not_make_is_left_alone_and_named(old_tree: OldTree, start: float) -> None:
    """A user's `run_scripts/`, a file `run_5`, an empty `run_4`, NeMo-RL's `run_7` and others are not ours."""
    old_tree.launch(start)
    old_tree.launch(start + 100)
    old_tree.write("run_scripts/go.sh", "x", start)
    old_tree.write("run_5", "x", start)
    (old_tree.path / "run_4").mkdir()
    (old_tree.path / "run_7" / "step_100").mkdir(parents=True)
    old_tree.write("run_7/notes.txt", "x", start)
    old_tree.write("wandb/run-1/x.wandb", "x", start)
    old_tree.write("checkpoints/a.ckpt", "x", start)
    (old_tree.path / "to_data").symlink_to("wandb")

    (experiment,) = found_in(old_tree.path)

    assert places_of(experiment) == ["", "run_0", "version_0", "version_1"]
    assert set(reasons_of(experiment)) == {"run_scripts", "run_5", "run_4", "run_7", "wandb", "checkpoints", "to_data"}


def test_lightning_without_nemo_is_no_log_directory(
    tmp_path: Path, make_tree: Callable[[Path], OldTree], start: float
) -> None:
    """Event files and `hparams.yaml` alone are Lightning's own, not NeMo's."""
    tree = make_tree(tmp_path / "lightning_logs")
    tree.events(start, start + 5, pid=1)

    assert found_in(tmp_path) == []


def test_versions_become_runs_of_the_directory_above(
    tmp_path: Path, make_tree: Callable[[Path], OldTree], start: float
) -> None:
    """A version for each launch, by date or by number, is one log directory of the experiment above."""
    for number, name in enumerate(["2025-03-01_12-00-00", "version_3", "version_10"]):
        make_tree(tmp_path / "exp" / name).launch(start + 100 * number)
    (tmp_path / "exp" / "version_3" / "checkpoints").mkdir()

    (experiment,) = found_in(tmp_path)

    assert experiment.path == tmp_path / "exp"
    assert [log.path for log in experiment.log_directories] == ["2025-03-01_12-00-00", "version_3", "version_10"]
    assert "version_3/checkpoints" in reasons_of(experiment)


def test_a_version_named_by_itself_is_taken_alone(
    tmp_path: Path, make_tree: Callable[[Path], OldTree], start: float
) -> None:
    """The experiment is the directory above, but the other versions in it were not asked for."""
    make_tree(tmp_path / "exp" / "version_0").launch(start)
    make_tree(tmp_path / "exp" / "version_1").launch(start + 100)

    (experiment,) = found_in(tmp_path / "exp" / "version_1")

    assert experiment.path == tmp_path / "exp"
    assert [log.path for log in experiment.log_directories] == ["version_1"]


def test_a_resumed_version_is_an_experiment(
    tmp_path: Path, make_tree: Callable[[Path], OldTree], start: float
) -> None:
    """A version that was chosen by the user and resumed has archives of its own."""
    tree = make_tree(tmp_path / "exp" / "version_7")
    tree.launch(start)
    tree.launch(start + 100)

    (experiment,) = found_in(tmp_path)

    assert experiment.path == tmp_path / "exp" / "version_7"


def test_an_archive_alone_is_refused_with_a_hint(old_tree: OldTree, start: float) -> None:
    """The files of one launch lie in several archives, so that one alone cannot be judged."""
    old_tree.launch(start)
    old_tree.launch(start + 100)
    problems: list[str] = []

    assert list(find_experiments([old_tree.path / "run_0"], problems)) == []
    assert str(old_tree.path) in problems[0]


def test_a_tree_is_found_once_and_through_a_link(old_tree: OldTree, start: float, tmp_path: Path) -> None:
    """A path may be a link; the same directory under two names is one experiment; loops are no danger."""
    old_tree.launch(start)
    link = tmp_path / "link"
    link.symlink_to(old_tree.path)
    (old_tree.path / "loop").symlink_to(old_tree.path)

    experiments = found_in(link, old_tree.path, tmp_path)

    assert [experiment.path for experiment in experiments] == [link]


def test_runs_of_the_immutable_layout_are_no_old_logs(
    tmp_path: Path, make_tree: Callable[[Path], OldTree], start: float
) -> None:
    """A run directory holds files of the same names, and is not searched, even if named."""
    make_tree(tmp_path / "runs" / "2025-03-01_12-00-00Z_abcde").launch(start)

    assert found_in(tmp_path) == []


def test_a_name_that_the_layout_needs_is_a_conflict(old_tree: OldTree, start: float) -> None:
    """A file `runs`, or a directory `latest`, is for a person to look at."""
    old_tree.launch(start)
    old_tree.write("runs", "x", start)
    (old_tree.path / "latest").mkdir()

    (experiment,) = found_in(old_tree.path)

    assert {item.path for item in experiment.left_alone if item.is_conflict} == {"runs", "latest"}


def test_a_directory_that_cannot_be_read_is_a_problem(
    old_tree: OldTree, start: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and the rest is found."""
    old_tree.launch(start)
    closed = old_tree.path / "closed"
    closed.mkdir()
    scan: Any = os.scandir

    def refuse(path: Any) -> Any:
        if os.fspath(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    problems: list[str] = []

    assert len(list(find_experiments([old_tree.path], problems))) == 1
    assert str(closed) in problems[0]


def test_real_trees_are_found(corpus_name: str, unpack: Callable[[str], Path]) -> None:
    """Every real tree is one experiment, reached from the directory above it."""
    path = unpack(corpus_name)

    (experiment,) = found_in(path.parent)

    assert experiment.path == path
    assert len(places_of(experiment)) >= 2
