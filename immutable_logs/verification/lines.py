"""The manifest's lines by run; pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from immutable_logs.records import ADOPTED, FINISHED, PRUNED, STARTED, ManifestRecord
from immutable_logs.run_id import is_run_id

if TYPE_CHECKING:
    from collections.abc import Iterable

RECOVERED: Final = "recovered"
"""The event of a re-added ``started`` line that could not go back to its place in the order.

Lines are only ever appended, and the order of the ``started`` lines is that of the runs: a lost one from the middle,
re-added as it was, would make an old run the newest. Readers keep events that they do not know, so that the run stays
where its id puts it, as without the line.
"""


@dataclass(slots=True)
class RunLines:
    """The manifest's lines on one run.

    Attributes:
        started: Every ``started`` line.
        finished: Every ``finished`` line.
        is_adopted: Whether there is an ``adopted`` line.
        is_recovered: Whether there is a `RECOVERED` line.
        is_pruned: Whether there is a ``pruned`` line.
    """

    started: list[ManifestRecord] = field(default_factory=list)
    finished: list[ManifestRecord] = field(default_factory=list)
    is_adopted: bool = False
    is_recovered: bool = False
    is_pruned: bool = False


def lines_by_run(records: Iterable[ManifestRecord]) -> dict[str, RunLines]:
    """Return the lines by run; those that name no run are left out."""
    known: dict[str, RunLines] = {}
    for record in records:
        if not is_run_id(record.run):
            continue
        lines = known.setdefault(record.run, RunLines())
        if record.event == STARTED:
            lines.started.append(record)
        elif record.event == FINISHED:
            lines.finished.append(record)
        lines.is_adopted = lines.is_adopted or record.event == ADOPTED
        lines.is_recovered = lines.is_recovered or record.event == RECOVERED
        lines.is_pruned = lines.is_pruned or record.event == PRUNED
    return known


def as_recovered(line: ManifestRecord) -> ManifestRecord:
    """Return a ``started`` line in the form that reorders nothing."""
    return replace(line, event=RECOVERED)
