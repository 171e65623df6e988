from __future__ import annotations

import os
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from immutable_logs import durable_files
from immutable_logs.layout import ExperimentLayout
from immutable_logs.lineage import Origin, find_origin, relative_to_experiment
from immutable_logs.manifest import append_record
from immutable_logs.records import ADOPTED, STARTED, ManifestRecord, RunRecord, format_time
from immutable_logs.run_id import format_run_id

if TYPE_CHECKING:
    from pathlib import Path

NEW = format_run_id(1800000000.0, bytes(8))


@pytest.fixture
def layout(experiment: Path) -> ExperimentLayout:
    """An experiment without runs."""
    layout = ExperimentLayout.of(experiment)
    layout.runs.mkdir(parents=True)
    return layout


def add_run(
    layout: ExperimentLayout, at: float, *, lineage: str = "", checkpoints: str = "checkpoints", **fields: str | None
) -> str:
    """Make a run whose `run.json` was written at a time of the file server."""
    run = format_run_id(1796092095.0 + at, bytes(8))
    record = RunRecord(run=run, started="t", lineage=lineage or run, checkpoints=checkpoints, **fields)  # type: ignore[arg-type]
    path = layout.run(run).run_record
    path.parent.mkdir()
    path.write_bytes(record.encode())
    os.utime(path, (at, at))
    append_record(layout, ManifestRecord(STARTED, run, "t"), is_locked=True)
    return run


def add_checkpoint(path: Path, at: float) -> Path:
    """Make a checkpoint that was written at a time of the file server."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (at, at))
    return path


def test_run_without_a_checkpoint_begins_a_lineage(layout: ExperimentLayout) -> None:
    """It continues nothing."""
    assert find_origin(layout, NEW, None) == Origin(NEW, None)


def test_shared_checkpoint_was_written_by_the_run_that_started_last_before_it(layout: ExperimentLayout) -> None:
    """A run that started after the checkpoint was written cannot have written it."""
    add_run(layout, 100.0)
    second = add_run(layout, 200.0)
    add_run(layout, 300.0)
    checkpoint = add_checkpoint(layout.checkpoints / "last.ckpt", 250.0)

    assert find_origin(layout, NEW, checkpoint) == Origin(second, second)


def test_writer_is_found_after_any_number_of_starts_from_its_checkpoint(
    layout: ExperimentLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a job that dies again and again before it saves anything, or before it knows what it resumes."""
    first = add_run(layout, 100.0)
    writer = add_run(layout, 200.0, lineage=first)
    checkpoint = add_checkpoint(layout.checkpoints / "last.ckpt", 250.0)
    location = "checkpoints/last.ckpt"
    for number in range(200):
        add_run(layout, 300.0 + number, lineage=first, checkpoint=location, resumed_from=writer)
    add_run(layout, 600.0, checkpoint="checkpoints/other.ckpt", resumed_from=first)
    add_run(layout, 601.0, checkpoint=location)
    add_run(layout, 602.0, checkpoint=location, resumed_from="../../elsewhere")
    reader = Mock(wraps=durable_files.read_bytes)
    monkeypatch.setattr(durable_files, "read_bytes", reader)

    assert find_origin(layout, NEW, checkpoint) == Origin(first, writer)
    assert reader.call_count == 5  # the last four starts, and the writer


def test_lineage_goes_back_to_the_first_run(layout: ExperimentLayout) -> None:
    """A run that resumes a resumed run belongs to the lineage of the first one."""
    first = add_run(layout, 100.0)
    second = add_run(layout, 200.0, lineage=first)
    checkpoint = add_checkpoint(layout.checkpoints / "last.ckpt", 250.0)

    assert find_origin(layout, NEW, str(checkpoint)) == Origin(first, second)


def test_checkpoint_in_a_run_was_written_by_that_run(layout: ExperimentLayout) -> None:
    """Whatever its time, and whichever run is the newest."""
    first = add_run(layout, 100.0)
    add_run(layout, 200.0)
    checkpoint = add_checkpoint(layout.run(first).checkpoints / "last.ckpt", 900.0)

    assert find_origin(layout, NEW, checkpoint).run == first


def test_checkpoint_named_through_latest_belongs_to_the_run_behind_it(layout: ExperimentLayout) -> None:
    """`latest` shows another run tomorrow, so the run that it shows now is found and recorded."""
    first = add_run(layout, 100.0)
    add_run(layout, 200.0)
    add_checkpoint(layout.run(first).checkpoints / "last.ckpt", 150.0)
    layout.latest.symlink_to(layout.latest_target(first))
    checkpoint = layout.latest / "checkpoints" / "last.ckpt"

    assert find_origin(layout, NEW, checkpoint).run == first
    assert relative_to_experiment(checkpoint, layout.path) == f"runs/{first}/checkpoints/last.ckpt"


def test_checkpoint_named_through_a_link_to_the_experiment_is_found(layout: ExperimentLayout, tmp_path: Path) -> None:
    """Users reach one experiment by several names."""
    first = add_run(layout, 100.0)
    add_checkpoint(layout.run(first).checkpoints / "last.ckpt", 150.0)
    (tmp_path / "alias").symlink_to(layout.path)

    assert find_origin(layout, NEW, tmp_path / "alias" / "runs" / first / "checkpoints" / "last.ckpt").run == first


def test_checkpoint_from_elsewhere_has_no_origin(layout: ExperimentLayout, tmp_path: Path) -> None:
    """A run that starts from somebody else's weights continues no run of this experiment."""
    add_run(layout, 100.0)

    assert find_origin(layout, NEW, add_checkpoint(tmp_path / "pretrained.ckpt", 150.0)) == Origin(NEW)


def test_checkpoint_directory_outside_the_experiment_is_matched_by_its_place(
    layout: ExperimentLayout, tmp_path: Path
) -> None:
    """Only a run that writes its checkpoints there can have written it."""
    outside = tmp_path / "scratch" / "ckpt"
    writer = add_run(layout, 100.0, checkpoints=str(outside))
    add_run(layout, 120.0, checkpoints=str(tmp_path / "scratch" / "ckpt2"))
    checkpoint = add_checkpoint(outside / "last.ckpt", 150.0)

    assert find_origin(layout, NEW, checkpoint) == Origin(writer, writer)


def test_run_does_not_continue_itself(layout: ExperimentLayout) -> None:
    """A line of the asking run is no candidate."""
    run = add_run(layout, 100.0)
    checkpoint = add_checkpoint(layout.checkpoints / "last.ckpt", 150.0)

    assert find_origin(layout, run, checkpoint) == Origin(run)


def test_damaged_record_of_an_earlier_run_is_passed_over(layout: ExperimentLayout) -> None:
    """A torn `run.json` is no writer, and stops nothing."""
    first = add_run(layout, 100.0)
    second = add_run(layout, 200.0)
    layout.run(second).run_record.write_bytes(b'{"format": 1')
    os.utime(layout.run(second).run_record, (200.0, 200.0))
    checkpoint = add_checkpoint(layout.checkpoints / "last.ckpt", 250.0)

    assert find_origin(layout, NEW, checkpoint).run == first


def test_writer_whose_record_is_lost_is_its_own_lineage(layout: ExperimentLayout) -> None:
    """The place of the checkpoint tells the run even so."""
    run = add_run(layout, 100.0)
    layout.run(run).run_record.unlink()
    checkpoint = add_checkpoint(layout.run(run).checkpoints / "last.ckpt", 150.0)

    assert find_origin(layout, NEW, checkpoint) == Origin(run, run)


@pytest.mark.parametrize("inside", ["runs", "runs/run_0/last.ckpt", "runs/.launches/x", "gone/last.ckpt"])
def test_odd_checkpoint_has_no_origin(layout: ExperimentLayout, inside: str) -> None:
    """A path that leads into no run, or is not there, is no reason to fail."""
    add_run(layout, 100.0)

    assert find_origin(layout, NEW, layout.path / inside) == Origin(NEW)


def test_recorded_paths_are_relative_inside_and_absolute_outside(
    layout: ExperimentLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree is mounted elsewhere in the next container, so nothing inside is recorded by its absolute path."""
    monkeypatch.chdir(tmp_path)

    assert relative_to_experiment(None, layout.path) is None
    assert relative_to_experiment(layout.checkpoints / "a.ckpt", layout.path) == "checkpoints/a.ckpt"
    assert relative_to_experiment("experiment/checkpoints/../x.ckpt", layout.path) == "x.ckpt"
    assert relative_to_experiment("outside.ckpt", layout.path) == str(tmp_path / "outside.ckpt")


def test_checkpoints_that_are_a_link_elsewhere_keep_their_name(layout: ExperimentLayout, tmp_path: Path) -> None:
    """Users keep checkpoints on another disk by a link; the name inside the experiment is the stable one."""
    (tmp_path / "scratch").mkdir()
    layout.checkpoints.symlink_to(tmp_path / "scratch")

    assert relative_to_experiment(layout.checkpoints / "last.ckpt", layout.path) == "checkpoints/last.ckpt"


def test_checkpoint_of_a_migrated_experiment_was_written_by_an_adopted_run(layout: ExperimentLayout) -> None:
    """The `run.json` of an adopted run is newer than the checkpoint; the start in the manifest is the evidence."""
    adopted: list[str] = []
    for at in (100.0, 200.0, 300.0):
        run = format_run_id(1796092095.0 + at, bytes(8))
        record = RunRecord(run=run, started="t", lineage=adopted[0] if adopted else run, checkpoints="checkpoints")
        layout.run(run).path.mkdir()
        layout.run(run).run_record.write_bytes(record.encode())
        append_record(layout, ManifestRecord(ADOPTED, run, format_time(at)), is_locked=True)
        adopted.append(run)
    checkpoint = add_checkpoint(layout.checkpoints / "last.ckpt", 250.0)
    elsewhere = add_checkpoint(layout.path.parent / "other" / "last.ckpt", 250.0)

    assert find_origin(layout, NEW, checkpoint) == Origin(adopted[0], adopted[1])
    assert find_origin(layout, NEW, elsewhere) == Origin(NEW, None)


def test_lineage_that_is_no_run_id_is_not_followed(layout: ExperimentLayout) -> None:
    """It would name a directory outside of `tensorboard/`."""
    run = add_run(layout, 100.0, lineage="../../elsewhere")
    checkpoint = add_checkpoint(layout.checkpoints / "last.ckpt", 250.0)

    assert find_origin(layout, NEW, checkpoint) == Origin(run, run)


def test_checkpoint_in_another_storage_is_recorded_as_it_is(layout: ExperimentLayout) -> None:
    """An address is no path: nothing of the working directory gets into it, and no run here wrote it."""
    address = "s3://bucket/checkpoints/last.ckpt"

    assert relative_to_experiment(address, layout.path) == address
    assert find_origin(layout, NEW, address) == Origin(NEW, None)
