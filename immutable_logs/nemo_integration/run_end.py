"""Notice how a run ends where neither Lightning nor the exit of the interpreter tells: SIGTERM, and Hydra's exit."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from hydra.experimental.callback import Callback

from immutable_logs.run import finish_open_runs, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS_FOR_MAIN_THREAD: Final = 1.0


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

    turns: list[int] = []

    def note_sigterm(number: int, frame: Any) -> None:
        turns.append(number)
        if signal.getsignal(signal.SIGTERM) is note_sigterm:
            finish_open_runs("interrupted", error="SIGTERM")
            if previous is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
        if callable(previous):
            previous(number, frame)

    note_sigterm._is_ours = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, note_sigterm)
    if previous is signal.SIG_DFL:
        _end_where_main_thread_cannot(lambda: bool(turns) or signal.getsignal(signal.SIGTERM) is not note_sigterm)


def _end_where_main_thread_cannot(is_dealt_with: Callable[[], bool]) -> None:
    """Record the end and die of SIGTERM where the main thread is inside a call that lets no Python handler run.

    torch waits for the ranks of a process group in such a call. Without our handler SIGTERM would end the process
    there; with it torchrun's agent would wait for 30 seconds, and then kill the process before the end is on record.
    The interpreter's own handler, in C, writes to a pipe at once; on that a thread waits.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    other = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if other != -1:
        signal.set_wakeup_fd(other)
        os.close(reading)
        os.close(writing)
        return

    def leave_pipe_to_parent() -> None:
        # A forked worker that is ended by SIGTERM would end the training.
        current = signal.set_wakeup_fd(-1)
        if current != writing:
            signal.set_wakeup_fd(current)

    def wait_for_sigterm() -> None:
        while signal.SIGTERM not in os.read(reading, 512):
            pass
        time.sleep(_SECONDS_FOR_MAIN_THREAD)
        if not is_dealt_with():
            finish_open_runs("interrupted", error="SIGTERM")
            # `signal.signal` works in the main thread alone.
            ctypes.pythonapi.PyOS_setsig(int(signal.SIGTERM), None)
            os.kill(os.getpid(), signal.SIGTERM)

    os.register_at_fork(after_in_child=leave_pipe_to_parent)
    threading.Thread(target=wait_for_sigterm, name="immutable_logs-sigterm", daemon=True).start()
