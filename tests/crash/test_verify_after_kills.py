"""What `verify` says after a SIGKILL at every step of a launch: harmless leftovers, and a `latest` that is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment, start_run
from immutable_logs.repair import repair_experiment
from immutable_logs.verification import Verification, verify_experiment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def verify(experiment: Path) -> Verification:
    """Verify without a pause: nothing goes on there."""
    return verify_experiment(Experiment(experiment), pause=lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after", "torn"])
@pytest.mark.parametrize("state", ["first", "used", "shared"])
def test_a_kill_leaves_no_problem_but_latest_one_run_behind(
    disturbed_launches: Callable[..., list[Any]], state: str, how: str
) -> None:
    """That too is gone after the next launch, and after a repair, which leaves nothing to mend."""
    behind = 0
    for case in disturbed_launches(state, how):
        if not (case.experiment / "runs").is_dir():
            continue
        found = verify(case.experiment)
        kinds = {finding.kind for finding in found.problems}
        assert kinds <= {"latest-missing", "latest-behind"}, case.case
        behind += bool(kinds)

        repair_experiment(Experiment(case.experiment), found)
        repaired = verify(case.experiment)
        assert not repaired.problems, case.case
        assert not repaired.repairable, case.case

        start_run(case.experiment).finish()
        assert not verify(case.experiment).problems, case.case

    assert (behind > 0) is (how != "torn")


def test_the_next_launch_mends_latest_too(disturbed_launches: Callable[..., list[Any]]) -> None:
    """Nobody needs to repair."""
    for case in disturbed_launches("used", "before"):
        start_run(case.experiment).finish()
        assert not verify(case.experiment).problems, case.case


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("before", {"claim-unused", "claim-without-run", "latest-behind", "latest-unfinished", "started-line-lost"}),
        ("after", {"claim-unused", "claim-without-run", "finished-line-lost", "latest-unfinished"}),
        ("torn", {"rank-entry-unreadable", "record-unreadable", "manifest-damaged", "end-record-unreadable"}),
    ],
)
def test_leftovers_of_kills_are_listed(
    disturbed_launches: Callable[..., list[Any]], how: str, expected: set[str]
) -> None:
    """Each kind that a kill can leave is found after one of them."""
    kinds = {finding.kind for case in disturbed_launches("used", how) for finding in verify(case.experiment).findings}

    assert kinds >= expected
