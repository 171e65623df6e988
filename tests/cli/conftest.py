"""Experiments to point the command at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs.launchers.detection import ProcessLaunch
from immutable_logs.lineage import Origin
from immutable_logs.run import Run, begin_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def start() -> Callable[..., Run]:
    """Starts a run as `start_run` does; ``resumed_from`` names an earlier one, all else goes into ``run.json``."""

    def start_one(experiment: Path, *, resumed_from: Run | None = None, **recorded: Any) -> Run:
        run = begin_run(experiment)
        if resumed_from is not None:
            recorded["origin"] = Origin(resumed_from.origin.lineage, resumed_from.id)
        run.record(**recorded)
        run.publish()
        return run

    return start_one


@pytest.fixture
def finish_runs(start: Callable[..., Run]) -> Callable[..., list[Run]]:
    """Starts and finishes some runs, one after the other; each resumes the one before it and ends 10 steps later."""

    def finish(experiment: Path, count: int) -> list[Run]:
        runs: list[Run] = []
        for number in range(count):
            run = start(experiment, resumed_from=runs[-1] if runs else None, world_size=1)
            run.note_step(10 * (number + 1))
            run.finish()
            runs.append(run)
        return runs

    return finish


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Lets the other ranks of a launch join, as their processes would."""

    def join_others(experiment: Path, world_size: int) -> None:
        for rank in range(1, world_size):
            for name, value in (("RANK", rank), ("LOCAL_RANK", rank % 8), ("NODE_RANK", rank // 8)):
                monkeypatch.setenv(name, str(value))
            monkeypatch.setattr("immutable_logs.run._process_launch", ProcessLaunch())
            begin_run(experiment)

    return join_others
