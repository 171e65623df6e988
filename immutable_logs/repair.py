"""Mend what a verification found and can be mended: lost lines of the manifest, and `latest`.

Nothing is removed, and no record is altered: lines are appended, `latest` is switched as a launch switches it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from immutable_logs.latest_link import read_latest, switch_latest
from immutable_logs.manifest import append_record, manifest_lock, read_manifest
from immutable_logs.process import this_process
from immutable_logs.records import STARTED, ManifestRecord
from immutable_logs.verification.latest import newest_run
from immutable_logs.verification.lines import RECOVERED, as_recovered, lines_by_run
from immutable_logs.verification.state import read_state

if TYPE_CHECKING:
    from immutable_logs.catalog import Experiment
    from immutable_logs.verification import Verification
    from immutable_logs.verification.lines import RunLines

_MAX_SWITCHES: Final = 16
"""Without a lock a launch can switch it meanwhile; after so many turns the next launch has the last word."""


def repair_experiment(experiment: Experiment, verification: Verification) -> list[str]:
    """Mend what a verification found, and return what was done, in words.

    Under the manifest's lock where there is one, beside launches that go on:

    1. Read the manifest anew, and append each lost line that is still missing. A ``started`` line goes back as such
       if it belongs at the end: its run is the one that `latest` shows, or comes after all that are in the manifest,
       by its id and by the time in its record. Otherwise it is appended as `RECOVERED`, so that the order stays.
    2. If `latest` was found wrong, switch it to the run that started last by now; until the manifest agrees, since
       without a lock a launch may publish meanwhile.

    After a crash: some lines more, perhaps a torn one, which the next call finds lost again. A second call does
    nothing.

    Args:
        experiment: The experiment.
        verification: What was found.

    Raises:
        OSError: If the file system refuses; what was done stays.
    """
    done: list[str] = []
    if not verification.lost_lines and verification.newest is None:
        return done
    layout = experiment.layout
    with manifest_lock(layout) as is_locked:
        known = lines_by_run(read_manifest(layout).records)
        shown = read_latest(layout)
        for line in sorted(verification.lost_lines, key=lambda line: line.run == shown):  # 1
            if _is_there(known.get(line.run), line):
                continue
            is_last = line.run == shown or _comes_after(line, known)
            added = line if line.event != STARTED or is_last else as_recovered(line)
            append_record(layout, added, is_locked=is_locked)
            done.append(f"added the `{added.event}` line of run {added.run}")
        if verification.newest is not None:  # 2
            done.extend(_switch(experiment, times=1 if is_locked else _MAX_SWITCHES))
    return done


def _is_there(lines: RunLines | None, line: ManifestRecord) -> bool:
    if lines is None:
        return False
    return bool(lines.started) or lines.is_recovered if line.event in (STARTED, RECOVERED) else bool(lines.finished)


def _comes_after(line: ManifestRecord, known: dict[str, RunLines]) -> bool:
    """Tell whether a run comes after all that were in the manifest; those added here are in order themselves."""
    started = [other for lines in known.values() for other in lines.started]
    return all(line.run > other.run and line.time > other.time for other in started)


def _switch(experiment: Experiment, *, times: int) -> list[str]:
    done: list[str] = []
    layout = experiment.layout
    for _ in range(times):
        newest = newest_run(read_state(experiment))
        if newest is None or read_latest(layout) == newest.id:
            break
        process = this_process()
        if not switch_latest(layout, newest.id, unique=f"{process.host}-{process.pid}-{os.urandom(6).hex()}"):
            break
        done.append(f"switched `latest` to run {newest.id}")
    return done
