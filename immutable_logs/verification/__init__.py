"""Check on disk whether an experiment is as its launches leave it; read-only.

What is looked at: the manifest, every run's records and entries, `latest`, the claims, the links in ``tensorboard/``.
A launch may go on meanwhile: what it has done by half for a moment is not there at a second look.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from immutable_logs.verification.claims import check_launches
from immutable_logs.verification.event_links import check_event_links
from immutable_logs.verification.findings import LEFTOVER, PROBLEM, Finding
from immutable_logs.verification.latest import check_latest, check_workshop, newest_run, shown_run
from immutable_logs.verification.manifest_lines import check_manifest, lost_lines
from immutable_logs.verification.runs import check_other_entries, check_runs
from immutable_logs.verification.state import read_state
from immutable_logs.verification.taken_names import check_taken_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from immutable_logs.catalog import Experiment
    from immutable_logs.records import ManifestRecord

__all__ = ["LEFTOVER", "PROBLEM", "Finding", "Verification", "verify_experiment"]

SECOND_LOOK_AFTER: Final = 0.5
"""Seconds; a launch is between its line in the manifest and the switch of `latest` for some milliseconds."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found.

    Attributes:
        runs: How many runs there are.
        findings: What is not as it should be, problems first.
        lost_lines: The lines that `repair` may append, in the order of the runs.
        newest: The run that `latest` should show, if `repair` may switch it.
    """

    runs: int
    findings: tuple[Finding, ...] = ()
    lost_lines: tuple[ManifestRecord, ...] = ()
    newest: str | None = None

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are no leftovers."""
        return tuple(finding for finding in self.findings if finding.severity == PROBLEM)

    @property
    def repairable(self) -> tuple[Finding, ...]:
        """The findings that `repair` mends."""
        return tuple(finding for finding in self.findings if finding.is_repairable)


def verify_experiment(experiment: Experiment, *, pause: Callable[[float], None] = time.sleep) -> Verification:
    """Return what is wrong in an experiment.

    Args:
        experiment: The experiment.
        pause: Waits for some seconds before the second look, which comes only if there is a problem at the first.

    Raises:
        OSError: If the experiment cannot be read.
    """
    first = _look(experiment)
    if not (first.problems or first.repairable):
        return first
    pause(SECOND_LOOK_AFTER)
    second = _look(experiment)
    seen = {_identity(finding) for finding in first.findings}
    return Verification(
        second.runs,
        tuple(finding for finding in second.findings if _identity(finding) in seen),
        tuple(line for line in second.lost_lines if line in first.lost_lines),
        second.newest if second.newest == first.newest else None,
    )


def _look(experiment: Experiment) -> Verification:
    state = read_state(experiment)
    latest = shown_run(state)
    of_launches = list(check_launches(state))
    elsewhere = {(each.details["belongs_to"], each.details["rank"]) for each in of_launches if "rank" in each.details}
    findings = [
        *of_launches,
        *check_manifest(state),
        *check_runs(state, latest, elsewhere),
        *check_latest(state, latest),
        *check_workshop(state),
        *check_event_links(state),
        *check_taken_names(state),
        *check_other_entries(state),
    ]
    newest = newest_run(state)
    needs_switch = any(finding.is_repairable and finding.kind.startswith("latest-") for finding in findings)
    return Verification(
        len(state.runs),
        tuple(sorted(findings, key=lambda finding: finding.severity != PROBLEM)),
        tuple(line for run in state.runs.values() for line in lost_lines(run, latest)),
        newest.id if newest is not None and needs_switch else None,
    )


def _identity(finding: Finding) -> tuple[str, str, str | None]:
    return finding.kind, finding.path, finding.run
