"""Check that what has the name of a directory of ours is one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from immutable_logs.verification.findings import PROBLEM, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from immutable_logs.verification.state import ExperimentState


def check_taken_names(state: ExperimentState) -> Iterator[Finding]:
    """Yield what stands where a launch needs a directory, and what the launch then cannot do."""
    layout = state.layout
    for path, consequence in (
        (layout.launches, "no launch can start"),
        (layout.latest_workshop, "no launch can switch `latest`"),
        (layout.tensorboard, "no launch can link its event files"),
        (layout.requeue, "Lightning cannot save a job that Slurm requeues"),
    ):
        if os.path.lexists(path) and not os.path.isdir(path):
            yield Finding(
                "name-taken",
                PROBLEM,
                state.relative(path),
                None,
                f"expected a directory, found something else: {consequence}. HINT: move it out of the way",
            )
