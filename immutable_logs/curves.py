"""Scalar curves from the event files of runs, one curve for a lineage; read with TensorBoard's own reader.

TensorBoard is loaded only when event files are read, and nothing is written. A resumed run goes back to the step of
its checkpoint, so the run before it has left points that were trained again: they are superseded, by the rule of
TensorBoard's server, so that a curve here is the curve there.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from immutable_logs.durable_files import is_link_hidden, read_link
from immutable_logs.errors import ImmutableLogsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from immutable_logs.layout import ExperimentLayout, RunLayout

EVENT_FILE: Final = "events.out.tfevents"
"""How the name of an event file begins."""

_SCALARS: Final = "scalars"
_LOSSES: Final = ("reduced_train_loss", "train_loss", "loss", "train_step_loss", "train_loss_step", "training_loss")
"""Names of the training loss in NeMo's and Lightning's examples, the usual ones first."""

_NOT_TRAINING: Final = ("val", "test", "eval", "predict")


@dataclass(slots=True)
class Segment:
    """The points of one tag that one run has written.

    Attributes:
        run: The run.
        steps: The steps, as they were written.
        values: The value at each step.
        times: When each was written, as Unix time.
    """

    run: str
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def drop_from(self, step: int) -> None:
        """Leave out the points from a step on."""
        kept = [index for index, found in enumerate(self.steps) if found < step]
        if len(kept) < len(self.steps):
            self.steps = [self.steps[index] for index in kept]
            self.values = [self.values[index] for index in kept]
            self.times = [self.times[index] for index in kept]


@dataclass(slots=True)
class Curves:
    """The curves of one run, or of the runs of a lineage.

    Attributes:
        by_tag: For each tag the parts of its curve, in the order of the runs; none is empty.
        problems: What could not be read, and why.
    """

    by_tag: dict[str, list[Segment]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def last_step(self) -> int | None:
        """The highest step of all curves."""
        return max((step for parts in self.by_tag.values() for part in parts for step in part.steps), default=None)

    @property
    def loss_tag(self) -> str | None:
        """The tag of the training loss: a usual name, else the first with `loss` in it that is no validation's."""
        names = [name for name in _LOSSES if name in self.by_tag]
        if names:
            return names[0]
        is_other = (name for name in sorted(self.by_tag) if not name.lower().startswith(_NOT_TRAINING))
        return next((name for name in is_other if "loss" in name.lower()), None)

    def last_value(self, tag: str | None) -> float | None:
        """Return the value of a tag that was written last."""
        parts = self.by_tag.get(tag, []) if tag is not None else []
        return parts[-1].values[-1] if parts else None


def list_event_files(run: RunLayout) -> list[Path]:
    """Return the event files of a run in the order in which TensorBoard reads them; links to files count."""
    found = []
    with suppress(OSError), os.scandir(run.path) as entries:
        for entry in entries:
            # A pipe or a device under such a name would hold up the reader for ever.
            with suppress(OSError):
                if entry.name.startswith(EVENT_FILE) and stat.S_ISREG(entry.stat().st_mode):
                    found.append(run.path / entry.name)
    return sorted(found)


def read_curves(layout: ExperimentLayout, runs: Iterable[str]) -> Curves:
    """Return the curves over runs that continue each other.

    The rule is that of TensorBoard's server on a directory of ``tensorboard/``: where a run marks the start of its
    session at a step, all that was written before loses its points from that step on, whatever the tag. The first
    mark of all is passed over, for it stands before everything. A run whose files have no mark, as after a migration,
    supersedes from its own first step of each tag on.

    Args:
        layout: The experiment.
        runs: The runs in order, such as those of one lineage; or a single run.

    Raises:
        ImmutableLogsError: If TensorBoard is not installed.
    """
    load = _event_loader()
    curves = Curves()
    state = _Stitching(curves)
    for run in runs:
        state.begin(run)
        for path in list_event_files(layout.run(run)):
            try:
                for event in load(path):
                    state.add(event)
            except Exception as error:  # noqa: BLE001 - what the reader raises depends on the damage and its version
                # Harmless for the rest: what comes before the damage has been read.
                curves.problems.append(f"{type(error).__name__}: {error}: {path}")
        state.end()
    return curves


def require_tensorboard() -> None:
    """Load TensorBoard's reader.

    Raises:
        ImmutableLogsError: If it is not installed.
    """
    _event_loader()


def _event_loader() -> Any:
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise ImmutableLogsError(
            f"event files are read with TensorBoard's own reader, which cannot be loaded here ({error})\n"
            "HINT: pip install tensorboard"
        ) from None

    def load(path: Path) -> Iterator[Any]:
        yield from LegacyEventFileLoader(str(path)).Load()

    return load


class _Stitching:
    """Takes the events of runs one after the other and keeps what stands."""

    def __init__(self, curves: Curves) -> None:
        self._curves = curves
        self._has_mark = False
        self._run = ""
        self._own: dict[str, Segment] = {}
        self._plugins: dict[str, str] = {}
        self._has_own_mark = False

    def begin(self, run: str) -> None:
        self._run, self._own, self._plugins, self._has_own_mark = run, {}, {}, False

    def add(self, event: Any) -> None:
        if event.HasField("session_log") and event.session_log.status == event.session_log.START:
            if self._has_mark:
                for part in self._all_parts():
                    part.drop_from(event.step)
            self._has_mark = self._has_own_mark = True
        elif event.HasField("summary"):
            for value in event.summary.value:
                number = self._number(value)
                if number is not None:
                    part = self._own.setdefault(value.tag, Segment(self._run))
                    part.steps.append(event.step)
                    part.values.append(number)
                    part.times.append(event.wall_time)

    def end(self) -> None:
        for tag, part in self._own.items():
            if part.steps:
                earlier = self._curves.by_tag.setdefault(tag, [])
                if not self._has_own_mark:
                    for each in earlier:
                        each.drop_from(part.steps[0])
                earlier.append(part)
        for tag, parts in list(self._curves.by_tag.items()):
            self._curves.by_tag[tag] = [part for part in parts if part.steps]

    def _all_parts(self) -> Iterator[Segment]:
        for parts in self._curves.by_tag.values():
            yield from parts
        yield from self._own.values()

    def _number(self, value: Any) -> float | None:
        """Return a scalar in either form: as torch's writer and older TensorFlow write it, or as a tensor."""
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            return float(value.simple_value)
        if value.metadata.plugin_data.plugin_name:
            # Stands only in the first summary of a tag.
            self._plugins[value.tag] = value.metadata.plugin_data.plugin_name
        if kind == "tensor" and self._plugins.get(value.tag) == _SCALARS:
            from tensorboard.util import tensor_util

            return float(tensor_util.make_ndarray(value.tensor).item())
        return None


def curve_sources(layout: ExperimentLayout, runs: Sequence[str], *, per_run: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the curves that TensorBoard draws: the name that it gives each, and the runs behind it.

    Args:
        layout: The experiment.
        runs: Its runs, in order.
        per_run: Pointed at ``runs/``, where each run is a curve of its own, and not at ``tensorboard/``.
    """
    if per_run:
        yield from ((run, [run]) for run in runs if list_event_files(layout.run(run)))
        return
    order = {run: index for index, run in enumerate(runs)}
    try:
        names = sorted(os.listdir(layout.tensorboard))
    except OSError:
        return
    for name in names:
        linked = _linked_runs(layout.lineage(name))
        if linked:
            yield name, sorted(linked & order.keys(), key=order.__getitem__)


def has_hidden_links(layout: ExperimentLayout) -> bool:
    """Tell whether the mount refuses to say where the links of ``tensorboard/`` lead: nothing can follow them then."""
    for path in layout.tensorboard.glob("*/*"):
        try:
            read_link(path)
        except OSError as error:
            if is_link_hidden(error):
                return True
    return False


def _linked_runs(directory: Path) -> set[str]:
    linked = set()
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                linked.add(os.path.basename(os.path.dirname(os.readlink(entry.path))))
    return linked
