"""A disk that is full, read-only, broken or closed, at every single operation of a launch."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import read_manifest
from tests.conftest import shown_by_latest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUMBERS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.ESTALE]
HINTS = {
    errno.ENOSPC: "make space",
    errno.EDQUOT: "quota",
    errno.EROFS: "read-only",
    errno.EACCES: "write access",
}


def assert_helpful(case: Any, number: int) -> None:
    """See that an error says what was tried, what happened where, and what to do."""
    error = case.told["error"]
    assert error.startswith("rank 0 could not settle on a run: "), case.case
    assert os.strerror(number) in error, case.case
    assert str(case.experiment) in error, case.case
    assert HINTS.get(number, "") in error, case.case


def is_fully_recorded(experiment: Path, run_id: str) -> bool:
    """Tell whether the records, the manifest and `latest` show a run that has finished."""
    run = next(run for run in Experiment(experiment).runs() if run.id == run_id)
    return run.status == "finished" and run.evidence == "end record" and shown_by_latest(experiment) == run.path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "number"),
    [*(("first", number) for number in NUMBERS), ("used", errno.ENOSPC), ("used", errno.EIO)],
    ids=lambda value: errno.errorcode.get(value, value),
)
def test_one_failing_operation_is_an_error_before_the_run_is_joined_and_a_warning_afterwards(
    disturbed_launches: Callable[..., list[Any]], assert_recovers: Callable[..., None], state: str, number: int
) -> None:
    """Without a directory there is an error that says what to do; from then on training goes on."""
    cases = disturbed_launches(state, "error", number)
    earlier = (
        {run.id for run in Experiment(cases[0].experiment.parent / "template").runs()} if state == "used" else set()
    )
    errors = warned = 0

    for case in cases:
        assert case.status == 0, case.case
        assert case.told is not None
        if case.told["joined"] is None:
            errors += 1
            assert_helpful(case, number)
            assert case.told["warnings"] == [], case.case
        else:
            assert case.told["error"] is None
            assert len(case.told["warnings"]) <= 1, (case.case, case.told["warnings"])
            if case.told["warnings"]:
                warned += 1
                assert "Training goes on" in case.told["warnings"][0], case.case
                assert os.strerror(number) in case.told["warnings"][0], case.case
            else:
                assert is_fully_recorded(case.experiment, case.told["joined"]), case.case
        assert_recovers(case, earlier)

    assert errors >= 3
    assert warned >= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS], ids=lambda number: errno.errorcode[number]
)
def test_disk_that_stays_full_costs_a_warning_for_each_thing_that_is_not_recorded(
    disturbed_launches: Callable[..., list[Any]], assert_recovers: Callable[..., None], number: int
) -> None:
    """Record, publication and end are tried once each; none of them stops the training or repeats itself."""
    for case in disturbed_launches("used", "errors", number):
        assert case.status == 0, case.case
        assert case.told is not None
        if case.told["joined"] is None:
            assert_helpful(case, number)
        else:
            assert len(case.told["warnings"]) == len(set(case.told["warnings"])) <= 3, case.case
            assert case.told["warnings"] or is_fully_recorded(case.experiment, case.told["joined"]), case.case
        assert_recovers(case, set())


@pytest.mark.parametrize("state", ["first", "used"])
def test_write_that_takes_a_part_is_continued(disturbed_launches: Callable[..., list[Any]], state: str) -> None:
    """As on an almost full disk, or after a signal: records and lines are whole, and nobody is warned."""
    cases = disturbed_launches(state, "short")
    assert len(cases) > 4
    for case in cases:
        assert case.told is not None
        assert case.told["warnings"] == [], case.case
        assert is_fully_recorded(case.experiment, case.told["joined"]), case.case
        assert read_manifest(ExperimentLayout.of(case.experiment)).damaged == 0, case.case
