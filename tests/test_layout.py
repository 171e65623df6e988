from __future__ import annotations

import os
from pathlib import Path

import pathlib2
import pytest

from immutable_logs.layout import RANKS_PER_SHARD, ExperimentLayout, RunLayout, claim

RUN = "2026-12-01_02-28-15Z_k3v9q"


def test_every_path_is_where_the_format_says() -> None:
    """The names on disk are a public format."""
    layout = ExperimentLayout.of("/data/exp")
    run = layout.run(RUN)

    assert layout.runs == Path("/data/exp/runs")
    assert layout.manifest == Path("/data/exp/runs/manifest.jsonl")
    assert layout.latest == Path("/data/exp/latest")
    assert layout.latest_text == Path("/data/exp/runs/latest.txt")
    assert layout.latest_workshop == Path("/data/exp/runs/.latest")
    assert layout.tensorboard == Path("/data/exp/tensorboard")
    assert layout.lineage(RUN) == Path("/data/exp/tensorboard", RUN)
    assert layout.requeue == Path("/data/exp/requeue")
    assert layout.checkpoints == Path("/data/exp/checkpoints")
    assert layout.launch("key") == Path("/data/exp/runs/.launches/key")
    assert claim(layout.launch("key"), 3) == Path("/data/exp/runs/.launches/key/3")
    assert run.path == Path("/data/exp/runs", RUN)
    assert run.run_record == run.path / "run.json"
    assert run.finish_record == run.path / "finished.json"
    assert run.checkpoints == run.path / "checkpoints"
    assert run.rank_log(3, 1) == run.path / "nemo_log_globalrank-3_localrank-1.txt"


def test_rank_entries_are_spread_over_directories_of_bounded_size() -> None:
    """Thousands of ranks do not create their entries in one directory, and none shares a name."""
    run = RunLayout(Path("/r"))
    entries = [run.rank_entry(rank) for rank in range(1000)]

    assert len(set(entries)) == 1000
    assert entries[0] == Path("/r/ranks/0000/rank-000000.json")
    for directory in {entry.parent for entry in entries}:
        assert sum(entry.parent == directory for entry in entries) <= RANKS_PER_SHARD


def test_text_of_latest_leads_to_the_run_from_where_the_link_is() -> None:
    """The link is relative, so that it survives a move of the tree or another mount point."""
    layout = ExperimentLayout.of("/data/exp")
    text = layout.latest_target(RUN)

    assert not os.path.isabs(text)
    assert layout.latest.parent / text == layout.run(RUN).path


def test_text_of_latest_leads_to_the_stand_in_from_the_workshop() -> None:
    """The link that is being made leads to an empty file, so that a kill leaves nothing dangling."""
    layout = ExperimentLayout.of("/data/exp")

    assert layout.latest_workshop / layout.latest_target(RUN) == layout.latest_stand_in(RUN)


@pytest.mark.parametrize("make", [str, Path, pathlib2.Path])
def test_any_kind_of_path_is_accepted(make: type) -> None:
    """Text, `pathlib` and `pathlib2` paths mean the same experiment."""
    assert ExperimentLayout.of(make("/data/exp")).path == Path("/data/exp")


def test_relative_path_is_made_absolute_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later change of the working directory moves nothing."""
    monkeypatch.chdir(tmp_path)
    layout = ExperimentLayout.of("exp")
    monkeypatch.chdir("/")

    assert layout.path == tmp_path / "exp"


def test_links_in_the_path_are_left_as_they_are(tmp_path: Path) -> None:
    """An experiment keeps the name under which it was given, also where that name is a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    assert ExperimentLayout.of(tmp_path / "link").path == tmp_path / "link"
