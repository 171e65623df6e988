"""Curves from event files, written and read with TensorBoard's own code, and compared with what its server shows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs.curves import Curves, curve_sources, list_event_files, read_curves
from immutable_logs.layout import ExperimentLayout

if TYPE_CHECKING:
    from tests.conftest import Children

WriteEvents = Callable[..., Path]

FIRST, SECOND, THIRD = (f"2026-12-0{day}_00-00-00Z_aaaaa" for day in (1, 2, 3))


@pytest.fixture
def layout(experiment: Path) -> ExperimentLayout:
    """An experiment with three empty run directories."""
    layout = ExperimentLayout.of(experiment)
    for run in (FIRST, SECOND, THIRD):
        layout.run(run).path.mkdir(parents=True)
    return layout


def points(curves: Curves, tag: str) -> list[tuple[str, int, float]]:
    """Return run, step and value of every point of a tag."""
    return [
        (part.run, step, value)
        for part in curves.by_tag.get(tag, [])
        for step, value in zip(part.steps, part.values, strict=True)
    ]


def link(layout: ExperimentLayout, runs: list[str]) -> None:
    """Link the event files of runs as a training does."""
    directory = layout.lineage(runs[0])
    directory.mkdir(parents=True)
    files = [path for run in runs for path in list_event_files(layout.run(run))]
    for ordinal, path in enumerate(files, start=1):
        (directory / f"{ordinal:04d}_{path.name}").symlink_to(os.path.relpath(path, directory))


def shown_by_server(directory: Path, tag: str) -> dict[str, list[tuple[int, float]]]:
    """Return the points of a tag by run, as TensorBoard's Python server keeps them."""
    from tensorboard.backend.event_processing import plugin_event_multiplexer
    from tensorboard.util import tensor_util

    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(directory))
    multiplexer.Reload()
    return {
        run: [
            (event.step, tensor_util.make_ndarray(event.tensor_proto).item())
            for event in multiplexer.Tensors(run, tag)
        ]
        for run, tags in multiplexer.Runs().items()
        if tag in tags["tensors"]
    }


class TestLineage:
    def test_steps_that_were_trained_again_are_there_once(
        self, layout: ExperimentLayout, write_events: WriteEvents
    ) -> None:
        """Resumed at 20 after the earlier run had reached 25: its points 20 to 25 give way to those of the later."""
        write_events(layout.run(FIRST).path, {"loss": dict.fromkeys(range(26), 1.0)}, start=0)
        write_events(layout.run(SECOND).path, {"loss": dict.fromkeys(range(20, 31), 2.0)}, start=20)

        found = points(read_curves(layout, [FIRST, SECOND]), "loss")

        assert [step for _, step, _ in found] == list(range(31))
        assert [run for run, _, _ in found] == [FIRST] * 20 + [SECOND] * 11
        assert [value for _, _, value in found] == [1.0] * 20 + [2.0] * 11

    def test_it_is_the_curve_that_the_server_shows(self, layout: ExperimentLayout, write_events: WriteEvents) -> None:
        """Over three runs and two tags, of which one goes back behind the one before it, both agree on every point."""
        for run, begin, end in ((FIRST, 0, 26), (SECOND, 20, 41), (THIRD, 10, 31)):
            written = {
                "loss": {step: float(begin + step) for step in range(begin, end)},
                "val_loss": {step: float(-step - begin) for step in range(begin, end) if step % 10 == 9},
            }
            write_events(layout.run(run).path, written, start=begin)
        link(layout, [FIRST, SECOND, THIRD])

        curves = read_curves(layout, [FIRST, SECOND, THIRD])

        for tag in ("loss", "val_loss"):
            ours = [(step, value) for _, step, value in points(curves, tag)]
            assert shown_by_server(layout.tensorboard, tag) == {FIRST: ours}
        assert [step for _, step, _ in points(curves, "loss")] == list(range(31))

    def test_a_run_without_a_mark_supersedes_from_its_own_first_step(
        self, layout: ExperimentLayout, write_events: WriteEvents
    ) -> None:
        """What a migration brought in has no marks: each tag goes over where the later run begins to write it."""
        write_events(layout.run(FIRST).path, {"loss": dict.fromkeys(range(10), 1.0), "val_loss": {4: 1.0, 9: 1.0}})
        write_events(layout.run(SECOND).path, {"loss": dict.fromkeys(range(5, 12), 2.0), "val_loss": {9: 2.0}})

        curves = read_curves(layout, [FIRST, SECOND])

        assert [step for _, step, _ in points(curves, "loss")] == list(range(12))
        assert points(curves, "val_loss") == [(FIRST, 4, 1.0), (SECOND, 9, 2.0)]

    def test_a_run_that_is_wholly_superseded_leaves_no_empty_part(
        self, layout: ExperimentLayout, write_events: WriteEvents
    ) -> None:
        """A part of a curve always has points, so that its last value can be asked for."""
        write_events(layout.run(FIRST).path, {"loss": {0: 1.0}}, start=0)
        write_events(layout.run(SECOND).path, {"loss": {0: 2.0}}, start=0)

        assert points(read_curves(layout, [FIRST, SECOND]), "loss") == [(SECOND, 0, 2.0)]

    def test_runs_without_event_files_have_no_curves(
        self, layout: ExperimentLayout, write_events: WriteEvents
    ) -> None:
        """A run without a logger, and one whose directory is gone, are passed over."""
        curves = read_curves(layout, [FIRST, "2026-12-09_00-00-00Z_aaaaa"])

        assert (curves.by_tag, curves.last_step, curves.loss_tag) == ({}, None, None)
        assert curves.last_value(curves.loss_tag) is None


class TestFiles:
    def test_scalars_written_as_tensors_are_read(self, layout: ExperimentLayout, write_events: WriteEvents) -> None:
        """The newer form names its kind only in the first summary of a tag; what is no scalar is left out."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from tensorboard.util.tensor_util import make_tensor_proto

        writer = EventFileWriter(str(layout.run(FIRST).path))
        for step in range(3):
            values = []
            for tag, plugin in (("loss", "scalars"), ("picture", "images")):
                metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
                values.append(
                    Summary.Value(
                        tag=tag, tensor=make_tensor_proto(step / 2), metadata=metadata if step == 0 else None
                    )
                )
            writer.add_event(Event(summary=Summary(value=values), step=step))
        writer.close()

        curves = read_curves(layout, [FIRST])

        assert points(curves, "loss") == [(FIRST, 0, 0.0), (FIRST, 1, 0.5), (FIRST, 2, 1.0)]
        assert list(curves.by_tag) == ["loss"]

    def test_several_files_of_a_run_are_read_in_order(
        self, layout: ExperimentLayout, write_events: WriteEvents
    ) -> None:
        """A script that trains twice writes two files."""
        write_events(layout.run(FIRST).path, {"loss": {0: 1.0}})
        write_events(layout.run(FIRST).path, {"loss": {1: 2.0}})

        assert [step for _, step, _ in points(read_curves(layout, [FIRST]), "loss")] == [0, 1]

    @pytest.mark.parametrize("cut", [1, 10, 60])
    def test_a_torn_file_is_read_as_far_as_it_goes(
        self, layout: ExperimentLayout, write_events: WriteEvents, cut: int
    ) -> None:
        """A training that was killed, or writes just now, leaves a record cut off at the end."""
        path = write_events(layout.run(FIRST).path, {"loss": dict.fromkeys(range(10), 1.0)})
        path.write_bytes(path.read_bytes()[:-cut])

        steps = [step for _, step, _ in points(read_curves(layout, [FIRST]), "loss")]

        assert steps == list(range(len(steps)))
        assert 8 <= len(steps) < 10

    def test_rubbish_does_not_end_the_reading_of_other_runs(
        self, layout: ExperimentLayout, write_events: WriteEvents
    ) -> None:
        """Whatever lies under the name of an event file, the other runs' curves are there."""
        (layout.run(FIRST).path / "events.out.tfevents.1.host").write_bytes(os.urandom(4096))
        write_events(layout.run(SECOND).path, {"loss": {3: 1.0}})

        assert points(read_curves(layout, [FIRST, SECOND]), "loss") == [(SECOND, 3, 1.0)]

    def test_a_pipe_under_the_name_of_an_event_file_is_not_opened(self, layout: ExperimentLayout) -> None:
        """It would be waited for without end."""
        os.mkfifo(layout.run(FIRST).path / "events.out.tfevents.1.host")
        (layout.run(FIRST).path / "events.out.tfevents.2.host").symlink_to("nowhere")

        assert list_event_files(layout.run(FIRST)) == []

    def test_a_missing_package_is_named_with_what_to_do(self, children: Children, layout: ExperimentLayout) -> None:
        """Without TensorBoard the error is one of this package's and says how to install it."""
        child = children.start(
            """
            sys.modules["tensorboard"] = None
            from pathlib import Path
            from immutable_logs import ImmutableLogsError
            from immutable_logs.curves import read_curves
            from immutable_logs.layout import ExperimentLayout
            try:
                read_curves(ExperimentLayout(Path(sys.argv[1])), [])
            except ImmutableLogsError as error:
                report(error=str(error))
            """,
            layout.path,
        )

        assert "HINT: pip install tensorboard" in child.report()["error"]


class TestValues:
    @pytest.mark.parametrize(
        ("tags", "expected"),
        [
            (["val_loss", "train_loss", "lr"], "train_loss"),
            (["reduced_train_loss", "train_loss"], "reduced_train_loss"),
            (["lr", "val_loss", "ctc_loss"], "ctc_loss"),
            (["val_loss", "test_loss", "lr"], None),
        ],
    )
    def test_the_training_loss_is_found_by_its_name(
        self, layout: ExperimentLayout, write_events: WriteEvents, tags: list[str], expected: str | None
    ) -> None:
        """The usual names come first, a validation's loss never counts."""
        write_events(layout.run(FIRST).path, {tag: {1: 0.5} for tag in tags})

        assert read_curves(layout, [FIRST]).loss_tag == expected

    def test_the_last_step_is_that_of_all_curves(self, layout: ExperimentLayout, write_events: WriteEvents) -> None:
        """A validation can have written last."""
        write_events(layout.run(FIRST).path, {"loss": {7: math.nan}, "val_loss": {9: 1.0}})

        curves = read_curves(layout, [FIRST])

        assert curves.last_step == 9
        value = curves.last_value("loss")
        assert value is not None
        assert math.isnan(value)


class TestSources:
    def test_a_lineage_is_one_curve_and_no_run_is_in_two(
        self, layout: ExperimentLayout, write_events: WriteEvents
    ) -> None:
        """Two lineages of three runs: each run is behind one curve, and TensorBoard lists the same names."""
        for run in (FIRST, SECOND, THIRD):
            write_events(layout.run(run).path, {"loss": {0: 1.0}}, start=0)
        link(layout, [FIRST, THIRD])
        link(layout, [SECOND])

        sources = dict(curve_sources(layout, [FIRST, SECOND, THIRD], per_run=False))

        assert sources == {FIRST: [FIRST, THIRD], SECOND: [SECOND]}
        assert set(shown_by_server(layout.tensorboard, "loss")) == sources.keys()

    def test_in_runs_each_run_is_a_curve(self, layout: ExperimentLayout, write_events: WriteEvents) -> None:
        """Runs without event files are none."""
        for run in (FIRST, THIRD):
            write_events(layout.run(run).path, {"loss": {0: 1.0}})

        sources: dict[str, Any] = dict(curve_sources(layout, [FIRST, SECOND, THIRD], per_run=True))

        assert sources == {FIRST: [FIRST], THIRD: [THIRD]}
        assert set(shown_by_server(layout.runs, "loss")) == sources.keys()
