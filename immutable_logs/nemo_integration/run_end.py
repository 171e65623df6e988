"""Notice how a run ends where neither Lightning nor the exit of the interpreter tells: SIGTERM, and Hydra's exit."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from hydra.experimental.callback import Callback

from immutable_logs.run import finish_open_runs, outcome_of


class HydraJobEnd(Callback):
    """Record the end of a Hydra job: Hydra turns an exception into `sys.exit`, which an exit handler cannot tell."""

    def on_job_end(self, config: Any, job_return: Any, **_: Any) -> None:
        """Record how the job ended, for the runs that it started."""
        error = getattr(job_return, "_return_value", None)
        if isinstance(error, BaseException):
            finish_open_runs(outcome_of(error), error=error)
        else:
            finish_open_runs("finished")


def watch_sigterm() -> None:
    """Record an interrupted run when SIGTERM ends the process outside of a fit.

    During a fit Lightning puts its own handler on top, which calls ours and then ends the fit in good order; its
    callback hook tells us. So ours acts only when it is on top. SIGUSR1 is never touched: Lightning does not requeue
    where it finds a handler for it.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    previous = signal.getsignal(signal.SIGTERM)
    if previous in (None, signal.SIG_IGN) or getattr(previous, "_is_ours", False):
        return

    def note_sigterm(number: int, frame: Any) -> None:
        if signal.getsignal(signal.SIGTERM) is note_sigterm:
            finish_open_runs("interrupted", error="SIGTERM")
            if previous is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
        if callable(previous):
            previous(number, frame)

    note_sigterm._is_ours = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, note_sigterm)
