"""Start a run: the sequence that a training job executes.

`begin_run` settles on the directory, on every rank. Rank zero alone then writes ``run.json`` (`Run.record`), appends
the manifest line and switches ``latest`` (`Run.publish`), and in the end writes ``finished.json`` (`Run.finish`).
`start_run` does the first three in one call.

The bookkeeping after `begin_run` never stops a training: where it fails there is one warning.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import traceback
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from immutable_logs import durable_files
from immutable_logs.agreement import join_run
from immutable_logs.errors import ConfigurationError
from immutable_logs.last_words import leave_last_words
from immutable_logs.latest_link import read_latest, switch_latest
from immutable_logs.launchers.detection import ProcessLaunch
from immutable_logs.layout import ExperimentLayout
from immutable_logs.lineage import Origin, relative_to_experiment
from immutable_logs.manifest import append_record, manifest_lock, recent_started_runs
from immutable_logs.mounts import warn_of_local_file_system
from immutable_logs.process import process_age, this_process
from immutable_logs.provenance import collect_provenance
from immutable_logs.rank_entries import count_joined_ranks
from immutable_logs.records import (
    FINISHED,
    OUTCOMES,
    FinishRecord,
    RunRecord,
    cap_error,
    format_time,
)
from immutable_logs.redaction import redact_text, redact_value
from immutable_logs.run_id import RANDOM_BYTES, format_run_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from immutable_logs.agreement import Joined
    from immutable_logs.launch import Launch

_log = logging.getLogger(__name__)

_MAX_SWITCHES: Final = 64
"""Without locks two launches can pass `latest` back and forth; each gives up after so many turns."""

_process_launch: Final = ProcessLaunch()
_open_runs: Final[dict[str, Run]] = {}


class Run:
    """A run that this process has joined.

    A context manager: leaving it records how the run ended. Without ``with``, the exit of the process does.

    Attributes:
        id: The run id.
        path: The run directory; the same on all ranks.
        experiment: The experiment directory.
        launch: The launch and this process's ranks in it.
        generation: Which claim of the launch key this run is.
    """

    def __init__(self, layout: ExperimentLayout, launch: Launch, joined: Joined) -> None:
        """Hold what `begin_run` found; not for callers."""
        self._layout = layout
        self._pid = os.getpid()
        self._step: int | None = None
        self._is_recorded = False
        self._is_published = False
        self._is_finished = False
        self.launch = launch
        self.generation = joined.generation
        self.id = joined.run_id
        self.path: Path = layout.run(self.id).path
        self.experiment: Path = layout.path
        self.origin = Origin(lineage=self.id)
        # An interactive interpreter keeps the error of an earlier cell, which is not this run's.
        self._earlier_error = getattr(sys, "last_value", None)

    def __repr__(self) -> str:
        """Show id, experiment and rank."""
        return f"<Run {self.id} of {self.experiment}, rank {self.launch.ranks.global_rank}>"

    def __fspath__(self) -> str:
        """Be usable as the path of the run directory."""
        return str(self.path)

    def __enter__(self) -> Self:
        """Return the run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record how the block ended."""
        if error is None:
            self.finish()
        else:
            self.finish(outcome_of(error), error=error)

    @property
    def keeps_records(self) -> bool:
        """Whether this process writes the records of the run: rank zero, and not a child forked from it."""
        return self.launch.is_rank_zero and os.getpid() == self._pid

    @property
    def is_finished(self) -> bool:
        """Whether this process has recorded, or need not record, how the run ended."""
        return self._is_finished

    def record(
        self,
        *,
        configuration: object = None,
        checkpoint: os.PathLike[str] | str | None = None,
        checkpoints: os.PathLike[str] | str | None = None,
        origin: Origin | None = None,
        world_size: int | None = None,
        git_commit: str | None = None,
    ) -> None:
        """Write ``run.json``, once; does nothing on other ranks.

        After a crash in the middle: a torn file, which readers take for "incomplete", and nothing is published.

        Args:
            configuration: What the user configured; secrets are redacted.
            checkpoint: The checkpoint that the run starts from.
            checkpoints: Where the run's checkpoints go.
            origin: Which run wrote that checkpoint, and the first run of the lineage.
            world_size: How many ranks are expected, where the caller knows better than the environment.
            git_commit: The commit, where the caller knows it already.
        """
        if not self.keeps_records or self._is_recorded:
            return
        self.origin = origin or self.origin
        with never_stopping_training("write run.json of", self):
            record = RunRecord(
                run=self.id,
                started=format_time(time.time()),
                launch_key=self.launch.readable_key,
                launch_source=self.launch.source,
                generation=self.generation,
                world_size=world_size or self.launch.ranks.world_size,
                lineage=self.origin.lineage,
                resumed_from=self.origin.run,
                checkpoint=relative_to_experiment(checkpoint, self.experiment),
                checkpoints=relative_to_experiment(checkpoints, self.experiment),
                process=asdict(this_process()),
                configuration=_recordable(configuration),
                job=self.launch.job,
                **asdict(collect_provenance(git_commit)),
            )
            path = self._layout.run(self.id).run_record
            self._is_recorded = durable_files.create_exclusive(path, record.encode(), durable=True)
            self._started_line = record.manifest_line

    def publish(self) -> None:
        """Put the run into the manifest and make ``latest`` show it; does nothing on other ranks.

        Under the manifest's lock where there is one, without it where not:

        1. Append the ``started`` line.
        2. Switch ``latest`` to this run.
        3. Read the manifest's end again: until the run that started last is the one that ``latest`` shows, switch to
           that one. This is what makes launches without a lock converge; no clock is compared.

        After a crash between 1 and 2 ``latest`` is one run behind, until the next launch.
        """
        if not self.keeps_records or not self._is_recorded or self._is_published:
            return
        with never_stopping_training("publish", self), manifest_lock(self._layout) as is_locked:
            append_record(self._layout, self._started_line, is_locked=is_locked)  # 1
            self._is_published = True
            newest = self.id
            for _ in range(_MAX_SWITCHES):
                if not switch_latest(self._layout, newest, unique=_unique_name()):  # 2
                    break
                newest = self._newest_started_run()  # 3
                if read_latest(self._layout) == newest:
                    break

    def _newest_started_run(self) -> str:
        """Return the run that started last; this one if its own line cannot be read, so that nothing goes back."""
        recent = recent_started_runs(self._layout)
        return recent[0] if self.id in recent else self.id

    def note_step(self, step: int) -> None:
        """Remember the last global step, for the record of how the run ended."""
        self._step = step

    def finish_at_exit(self, error: BaseException | None) -> None:
        """Record the end of a run whose process ends, by an uncaught exception or without one."""
        if error is None or error is self._earlier_error:
            self.finish()
        else:
            self.finish(outcome_of(error), error=error)

    def finish(self, outcome: str = "finished", *, error: BaseException | str | None = None) -> None:
        """Record how the run ended; the first call counts, and only in the process that wrote ``run.json``.

        Args:
            outcome: ``finished``, ``failed`` or ``interrupted``.
            error: What went wrong.

        Raises:
            ConfigurationError: If the outcome is another word.
        """
        if outcome not in OUTCOMES:
            raise ConfigurationError("outcome", outcome, f"expected one of {', '.join(OUTCOMES)}, found {outcome!r}")
        if self._is_finished:
            return
        self._is_finished = True
        _open_runs.pop(self.id, None)
        if error is not None and outcome != FINISHED and os.getpid() == self._pid:
            with never_stopping_training("leave the error of this rank in", self):
                leave_last_words(self._layout.run(self.id), self.launch.ranks, error, now=time.time())
        if not self.keeps_records:
            return
        with never_stopping_training("record the end of", self):
            record = FinishRecord(
                run=self.id,
                ended=format_time(time.time()),
                outcome=outcome,
                error=_describe(error),
                step=self._step,
                ranks_joined=count_joined_ranks(self._layout.run(self.id)),
            )
            path = self._layout.run(self.id).finish_record
            if not durable_files.create_exclusive(path, record.encode(), durable=True):
                return
            with manifest_lock(self._layout) as is_locked:
                append_record(self._layout, record.manifest_line, is_locked=is_locked)


def start_run(
    experiment_dir: os.PathLike[str] | str,
    *,
    configuration: object = None,
    ranks_per_node: int | None = None,
) -> Run:
    """Start a run in an experiment: all ranks of a launch get the same fresh directory, none waits for another.

    Every rank calls it. The directory holds nothing but the ranks' entries when it returns, and on rank zero
    ``run.json``; ``latest`` shows it. It makes no process group.

    Args:
        experiment_dir: The experiment; made if missing. A `pathlib2.Path` is fine.
        configuration: Anything worth recording; secrets are redacted.
        ranks_per_node: How many ranks run on a node; needed only with Lightning's own launcher on several nodes.

    Returns:
        The run, to be used in a ``with`` statement, or finished by the exit of the process.

    Raises:
        LaunchDetectionError: If it cannot be known which launch or rank this is.
        AgreementError: If no fresh directory can be had.
    """
    run = begin_run(experiment_dir, ranks_per_node=ranks_per_node)
    run.record(configuration=configuration)
    run.publish()
    return run


def begin_run(experiment_dir: os.PathLike[str] | str, *, ranks_per_node: int | None = None) -> Run:
    """Join the run of this launch, without publishing it; arguments and errors as for `start_run`."""
    layout = ExperimentLayout.of(experiment_dir)
    launch = _process_launch.next_call(str(layout.path), ranks_per_node=ranks_per_node)
    now = time.time()
    joined = join_run(
        layout,
        launch,
        process=this_process(),
        process_age=process_age,
        new_run_id=lambda: format_run_id(now, os.urandom(RANDOM_BYTES)),
        now=now,
        nonce=os.urandom(8).hex(),
    )
    _log.info(
        "Rank %d joined run %s (launch known from %s, key %s)",
        launch.ranks.global_rank,
        joined.run_id,
        launch.source,
        launch.readable_key,
    )
    if not launch.unique:
        _log.warning("The launch is known only from %s: %s", launch.source, launch.caution)
    warn_of_local_file_system(layout.path, launch)
    run = Run(layout, launch, joined)
    if not _open_runs:
        atexit.unregister(_finish_at_exit)
        atexit.register(_finish_at_exit)
    _open_runs[run.id] = run
    return run


def current_launch(*, ranks_per_node: int | None = None) -> Launch:
    """Return the launch of this process, read from the environment once; arguments and errors as for `start_run`."""
    return _process_launch.current(ranks_per_node=ranks_per_node)


def open_run(run_id: str) -> Run | None:
    """Return a run of this process whose end is not recorded yet."""
    return _open_runs.get(run_id)


def finish_open_runs(outcome: str, *, error: BaseException | str | None = None) -> None:
    """Record the same end for every run of this process whose end is not recorded yet."""
    for run in list(_open_runs.values()):
        run.finish(outcome, error=error)


def outcome_of(error: BaseException) -> str:
    """Return how a run ended that this exception went through: ``interrupted`` or ``failed``.

    `SystemExit` is how signals, and Lightning's handling of SIGTERM, end a process; with no code, or code 0, it is a
    normal end.
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit):
        if type(error) is not SystemExit:
            return "interrupted"
        return "finished" if error.code in (None, 0) else "failed"
    return "failed"


def _finish_at_exit() -> None:
    """Record the end of what is still open; the interpreter leaves an uncaught exception in `sys.last_value`.

    An interactive one leaves that of any cell there, before or after the run's, so there it tells nothing.
    """
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for run in list(_open_runs.values()):
        run.finish_at_exit(error)


def _recordable(configuration: object) -> object:
    """Return a configuration without secrets; one that cannot be turned into text does not cost the whole record."""
    try:
        return redact_value(configuration)
    except Exception as error:  # noqa: BLE001 - it is the user's object, and can do anything
        return f"(could not be recorded: {type(error).__name__})"


def _describe(error: BaseException | str | None) -> str | None:
    if error is None:
        return None
    if isinstance(error, str):
        return cap_error(redact_text(error))
    return cap_error(redact_text("".join(traceback.format_exception(error)).rstrip()))


def _unique_name() -> str:
    process = this_process()
    return f"{process.host}-{process.pid}-{os.urandom(6).hex()}"


@contextmanager
def never_stopping_training(what: str, run: Run) -> Iterator[None]:
    """Turn whatever goes wrong in a `with` block of bookkeeping into one warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here, months of training go on
        _log.warning("Could not %s run %s: %s. Training goes on", what, run.id, error)
