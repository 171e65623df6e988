"""Do the same in several processes at once: what holds between threads need not hold between processes."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


ENDING_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""What people and schedulers end a command with."""


@contextmanager
def hold_signals() -> Iterator[None]:
    """Let signals that end the command wait for the time of a `with` block; its body must be short."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def in_processes(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Return what a function returns in each of several forked processes, which begin when all are there.

    Args:
        count: How many.
        act: Given the number of its process; returns what can be written as JSON.

    Raises:
        OSError: That of the first process that ended with one; the others are killed.
    """
    gate_out, gate_in = os.pipe()
    children: list[tuple[int, int]] = []
    results = []
    try:
        with hold_signals():  # each child must be known of before anything can end this process
            for number in range(count):
                children.append(_fork(number, act, gate_out, gate_in))  # noqa: PERF401 - those before a failure too
        os.close(gate_in)
        for _, answer in children:
            with os.fdopen(answer, "rb") as pipe:
                results.append(_result_of(pipe.read()))
    except BaseException:
        for pid, _ in children:
            os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(gate_out)
        for pid, _ in children:
            os.waitpid(pid, 0)
    return results


def _result_of(text: bytes) -> Any:  # noqa: ANN401 - JSON
    if not text:
        raise ChildProcessError("a process of the check has ended without an answer")
    answer = json.loads(text)
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["filename"])
    return answer["result"]


def _fork(number: int, act: Callable[[int], Any], gate_out: int, gate_in: int) -> tuple[int, int]:
    """Return the process, and the descriptor from which its answer can be read."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        os.close(gate_in)
        os.close(reading)
        os.read(gate_out, 1)  # ends when the parent has closed the other end
        try:
            answer = {"result": act(number)}
        except OSError as error:
            answer = {"errno": error.errno or 0, "filename": str(error.filename)}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    finally:
        os._exit(1)
