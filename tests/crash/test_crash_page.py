"""The page on crashes says what a kill leaves."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from immutable_logs import Experiment
from immutable_logs.verification import verify_experiment

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "crash-behaviour.md"
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| (?:`(\w+)`|no run) \| (the run before|the run) \| ([^|]+) \|$", re.MULTILINE)

State = tuple[str, str, frozenset[str]]


def state_of(experiment: Path) -> State:
    """Return how the run that was disturbed is listed, what `latest` shows, and what is found.

    Within one second ids have no order, so that a run which was not started may stand between the two before it.
    """
    earlier = {run.id for run in Experiment(experiment.parent / "template").runs()}
    statuses = [run.status for run in Experiment(experiment).runs() if run.id not in earlier]
    shown = os.readlink(experiment / "latest").rpartition("/")[2]
    found = verify_experiment(Experiment(experiment), pause=lambda _: None)
    return (
        "".join(statuses),
        "the run before" if shown in earlier else "the run",
        frozenset(finding.kind for finding in found.findings),
    )


def rows() -> list[State]:
    """Return what the rows of the page say, in order."""
    found = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return [(status, latest, frozenset(re.findall(r"`([\w-]+)`", kinds))) for status, latest, kinds in found]


def test_the_page_says_what_a_kill_leaves(disturbed_launches: Callable[..., list[Any]], tmp_path: Path) -> None:
    """The rows are what is found after kills between the changes, each once, in the order of the steps."""
    states = [state_of(case.experiment) for case in disturbed_launches("used", "before")]
    states.append(state_of(tmp_path / "undisturbed"))

    in_order = [state for index, state in enumerate(states) if index == 0 or state != states[index - 1]]
    assert in_order == [row for row in rows() if "manifest-damaged" not in row[2]]


def test_the_page_says_what_a_torn_write_leaves(disturbed_launches: Callable[..., list[Any]]) -> None:
    """A write that was cut leaves what the page says, and no row tells of one that never happens."""
    states = {state_of(case.experiment) for case in disturbed_launches("used", "torn")}

    assert states <= set(rows())
    assert {row for row in rows() if "manifest-damaged" in row[2]} <= states
