"""Give old files their second names, in a process of its own where there are many.

Making a name takes the kernel as long as reading and judging a file takes the plan, so that the two go side by side.
Threads would not: each of a million short calls would have to wait for the interpreter's lock.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from immutable_logs import durable_files
from immutable_logs.errors import ImmutableLogsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

MANY: Final = 10_000
"""Files from which on a second process is worth its start."""


Name = tuple[str, str, int, int]
"""Old name, new name, device and inode of one file."""

Batch = dict[tuple[str, str], list[Name]]
"""Names to be given, by the run and the old directory, which is relative to the experiment."""


class Outcome(NamedTuple):
    """What became of a batch.

    Attributes:
        made: How many names were given.
        moved: Files that were not there any more, or another under their name; paths relative to the experiment.
        refused: Files that cannot be linked hard.
        error: What ended the batch early.
    """

    made: int
    moved: list[str]
    refused: Batch
    error: OSError | None = None


class LinkingStoppedError(ImmutableLogsError, RuntimeError):
    """The process that gives the names has ended."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("the process that links the files was ended from outside; call apply again, and it goes on")


def make_links(experiment: str, runs: str, batch: Batch) -> Outcome:
    """Give files their second names.

    Args:
        experiment: The experiment.
        runs: The directory of its runs.
        batch: The names; the run directories exist.
    """
    outcome = Outcome(0, [], {})
    made = 0
    for (run, source), names in batch.items():
        # Texts: building a `Path` takes longer than the system call.
        below = f"{source}/" if source else ""
        old_directory = f"{experiment}/{below}"
        new_directory = f"{runs}/{run}/"
        for name in names:
            old, new, device, inode = name
            new = new_directory + new
            try:
                if not durable_files.create_hard_link(old_directory + old, new):
                    continue
                status = os.lstat(new)
                if status.st_ino == inode and status.st_dev == device:
                    made += 1
                else:
                    # A launch has just put another file in the place of the one that was planned.
                    os.unlink(new)
                    outcome.moved.append(below + old)
            except FileNotFoundError:
                outcome.moved.append(below + old)
            except OSError as error:
                if not durable_files.is_without_hard_links(error):
                    return outcome._replace(made=made, error=error)
                outcome.refused.setdefault((run, source), []).append(name)
    return outcome._replace(made=made)


class Linker:
    """Makes links at once, in this process."""

    def __init__(self, experiment: str, runs: str, on_done: Callable[[Outcome], None]) -> None:
        """Begin.

        Args:
            experiment: The experiment.
            runs: The directory of its runs.
            on_done: Called for every batch when it is done, in order.
        """
        self._experiment = experiment
        self._runs = runs
        self._on_done = on_done

    def make(self, batch: Batch) -> None:
        """Make a batch of links."""
        self._on_done(make_links(self._experiment, self._runs, batch))

    def finish(self) -> None:
        """Wait until all batches are done."""


class SecondProcess(Linker):
    """Makes a batch of links in a second process while this one goes on; one batch at a time.

    If this process is killed, the other one ends after the batch that it has, all of which is in the journal. Until
    then it keeps the journal's lock, which it has inherited, so that no other migration comes between.
    """

    def __init__(self, experiment: str, runs: str, on_done: Callable[[Outcome], None]) -> None:
        """Start the process; arguments as in `Linker`."""
        # Loaded where there are many files only.
        import multiprocessing

        super().__init__(experiment, runs, on_done)
        self._is_waiting = False
        self._here, there = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=self._work, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def make(self, batch: Batch) -> None:
        """Let a batch be made, once the one before is done."""
        self.finish()
        with _stops():
            self._here.send(batch)
        self._is_waiting = True

    def finish(self) -> None:
        """Wait until all batches are done."""
        if self._is_waiting:
            self._is_waiting = False
            with _stops():
                outcome: Outcome = self._here.recv()
            self._on_done(outcome)

    def close(self) -> None:
        """End the process, after the batch that it is at."""
        self._here.close()
        self._process.join()

    def _work(self, there: Connection) -> None:
        # The other end, inherited: with it open this process would never see that the first one has ended.
        self._here.close()
        # Ctrl-C goes to both; the first process decides, and this one ends with it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # An `OSError` where the first process was ended in the middle of a batch.
        with suppress(EOFError, OSError):
            while True:
                there.send(make_links(self._experiment, self._runs, there.recv()))


@contextmanager
def linker_for(files: int, experiment: str, runs: str, on_done: Callable[[Outcome], None]) -> Iterator[Linker]:
    """Give what makes the links, for a `with` block: a second process where there are many files.

    Args:
        files: How many files there may be.
        experiment: The experiment.
        runs: The directory of its runs.
        on_done: Called for every batch when it is done, in order.
    """
    if files < MANY:
        yield Linker(experiment, runs, on_done)
        return
    second = SecondProcess(experiment, runs, on_done)
    try:
        yield second
    finally:
        second.close()


@contextmanager
def _stops() -> Iterator[None]:
    """Turn the end of the other process into an error that says so."""
    try:
        yield
    except (EOFError, OSError):
        raise LinkingStoppedError from None
