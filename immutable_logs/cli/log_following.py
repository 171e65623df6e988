"""Follow the logs of a run on the terminal, and from `latest` on to the next run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from immutable_logs.catalog import RUNNING, UNKNOWN
from immutable_logs.cli.terminal import note
from immutable_logs.latest_link import read_latest
from immutable_logs.log_reading.following import RunFollower
from immutable_logs.process import is_alive, this_process
from immutable_logs.rank_entries import read_rank_process

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from immutable_logs.catalog import Experiment, RunSummary
    from immutable_logs.cli.log_output import Problems, RecordPrinter
    from immutable_logs.log_reading.merging import Selection

_LOOK_EVERY: Final = 0.5

_ASK_EVERY: Final = 10.0
"""Seconds between two questions whether a run without an end record still lives, which take more than a look."""

_KEEP_FOLLOWING: Final = 30.0
"""Seconds for which the run before is read on after `latest` has switched: its ranks may have last words."""


class LogFollowing:
    """Prints what is written to the logs of a run, and where `latest` is followed, of the runs after it."""

    def __init__(
        self,
        experiment: Experiment,
        run: RunSummary,
        selection: Selection,
        printer: RecordPrinter,
        problems: Problems,
        *,
        ends: Mapping[Path, int],
        is_latest: bool,
    ) -> None:
        """Begin where the logs were read to."""
        self._experiment = experiment
        self._selection = selection
        self._printer = printer
        self._problems = problems
        self._is_latest = is_latest
        self._run = run
        self._follower = RunFollower(run.path, selection, ends=ends, on_problem=problems)
        self._before: tuple[str, RunFollower, float] | None = None
        self._is_over = False
        self._asked = 0.0

    def follow(self) -> None:
        """Print what is written, until the run is over; for `latest` until Ctrl-C.

        Raises:
            KeyboardInterrupt: At Ctrl-C.
        """
        while True:
            self._show_before()
            # Asked before the look: what was written until the end is then seen by it.
            end = self._ask()
            self._show(self._run.id, self._follower)
            if end is not None:
                if not self._is_latest:
                    self._printer.show(self._follower.finish())
                    note(end)
                    return
                note(f"{end}. Waiting for the next run; Ctrl-C ends this")
            newest = read_latest(self._experiment.layout) if self._is_latest else None
            if newest is not None and newest != self._run.id:
                self._switch(newest)
            else:
                time.sleep(_LOOK_EVERY)

    def _ask(self) -> str | None:
        """Return in words that the run is over, the first time that it is.

        Without a sign of life a run is over only if its process is seen to be gone: on another host a rank may be
        silent for longer than any number of minutes.
        """
        layout = self._experiment.layout.run(self._run.id)
        pause = _LOOK_EVERY if layout.finish_record.exists() else _ASK_EVERY
        if self._is_over or time.monotonic() - self._asked < pause:
            return None
        self._asked = time.monotonic()
        run = self._experiment.find(self._run.id)
        if run.status == UNKNOWN:
            process = read_rank_process(layout, 0)
            self._is_over = process is not None and is_alive(process, this_process()) is False
        else:
            self._is_over = run.status != RUNNING
        return f"Run {run.id} is over: {run.status} ({run.evidence})" if self._is_over else None

    def _switch(self, run_id: str) -> None:
        note(f"`latest` shows the next run now: {run_id}")
        self._before = self._run.id, self._follower, time.monotonic() + _KEEP_FOLLOWING
        self._run = self._experiment.find(run_id)
        self._follower = RunFollower(self._run.path, self._selection, on_problem=self._problems)
        self._is_over, self._asked = False, time.monotonic()

    def _show_before(self) -> None:
        if self._before is not None:
            run_id, follower, until = self._before
            self._show(run_id, follower)
            if time.monotonic() >= until:
                self._printer.show(follower.finish())
                self._before = None

    def _show(self, run_id: str, follower: RunFollower) -> None:
        self._printer.run = run_id
        self._printer.show(follower.look())
