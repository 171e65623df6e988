"""Prove that every old byte is reachable under the new layout; reads only."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from immutable_logs import durable_files
from immutable_logs.errors import RecordError
from immutable_logs.records import ADOPTED, RunRecord
from migration.adopted_files import COPY, manifest_records
from migration.journal import FILES, REMOVE
from migration.plan import ExperimentPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from migration.legacy_layout import LegacyExperiment


@dataclass(slots=True)
class Verified:
    """What a check found.

    Attributes:
        files: Old files that a run holds.
        finalized: Names in runs that stand for old names which `finalize` removed.
        problems: What is not as it should be, one sentence each.
    """

    files: int = 0
    finalized: int = 0
    problems: list[str] = field(default_factory=list)


def verify_migration(experiment: LegacyExperiment, *, on_file: Callable[[], None] = lambda: None) -> Verified:
    """Check an experiment.

    1. Every old file that the plan gives to a run is held by that run.
    2. Every file whose old name `finalize` removed is still in a run, and every copy has the length that it had.
    3. Every adopted run has a whole ``run.json`` and its line in the manifest.

    Args:
        experiment: What was found.
        on_file: Called for every file looked at.

    Raises:
        OSError: If something cannot be read.
    """
    found = Verified()
    plan = ExperimentPlan(experiment, on_file=on_file)
    for planned in plan.files():  # 1
        if not planned.runs:
            continue
        if planned.missing:
            runs = ", ".join(run.id for run in planned.missing)
            found.problems.append(f"not in the new layout yet: {planned.evidence.path} (run {runs})")
        else:
            found.files += 1
    found.problems += plan.problems
    found.problems += [
        f"leads nowhere, since the old file was moved or removed: {path}" for path in plan.adopted.dangling
    ]
    _check_names(plan, found)
    adopted = {record.run for record in manifest_records(plan.layout) if record.event == ADOPTED}
    for run in plan.adopted.runs:  # 3
        path = plan.layout.run(run).run_record
        try:
            RunRecord.decode(durable_files.read_bytes(path), path)
        except FileNotFoundError:
            found.problems.append(
                f"the record of an adopted run is not there: {os.path.relpath(path, plan.layout.path)}"
            )
        except RecordError as error:
            found.problems.append(str(error))
        if run not in adopted:
            found.problems.append(f"an adopted run has no line in the manifest: {run}")
    return found


def _check_names(plan: ExperimentPlan, found: Verified) -> None:
    for step in plan.journal.read():  # 2
        if step["step"] == REMOVE:
            for name, inode in step["names"]:
                if plan.adopted.has_inode(inode):
                    found.finalized += 1
                elif not os.path.lexists(plan.layout.path / step["source"] / name):
                    path = os.path.join(step["source"], name)
                    found.problems.append(f"removed by `finalize`, and its new name is gone too: {path}")
        elif step["step"] == FILES and step["how"] == COPY and step["run"] not in plan.adopted.pruned:
            for _, new, _, size, _ in step["names"]:
                path = plan.layout.run(step["run"]).path / new
                if not path.is_file() or path.stat().st_size != size:
                    found.problems.append(f"a copy is gone or cut: {os.path.relpath(path, plan.layout.path)}")
