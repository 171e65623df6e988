"""Compare two runs of an experiment by their records and by what NeMo and Lightning have left in them; read-only."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from immutable_logs import durable_files
from immutable_logs.catalog import MISSING
from immutable_logs.comparison import Difference, Facts, compare_facts, compare_texts, flatten, name_arguments
from immutable_logs.errors import RecordError
from immutable_logs.hparams_file import parse_hparams
from immutable_logs.records import PRUNED, RunRecord
from immutable_logs.redaction import redact_text

if TYPE_CHECKING:
    from pathlib import Path

    from immutable_logs.catalog import Experiment, RunSummary

CONFIGURATION: Final = "configuration"
ARGUMENTS: Final = "arguments"
GIT: Final = "git"
VERSIONS: Final = "versions"
HPARAMS: Final = "hparams"
ENVIRONMENT: Final = "environment"
START: Final = "start"

SECTIONS: Final = (START, CONFIGURATION, ARGUMENTS, GIT, VERSIONS, HPARAMS, ENVIRONMENT)

_FIXED_NAMES: Final = frozenset((START, GIT, ENVIRONMENT))
"""Sections in which a name that one run lacks is something that is not known of it."""

_HPARAMS_FILE: Final = "hparams.yaml"
_NO_HPARAMS: Final = f"there is no {_HPARAMS_FILE}"
_GIT_FILE: Final = "git-info.log"
_MAX_BYTES: Final = 20_000_000
"""More than this is neither a configuration nor a diff that anyone reads."""

_COMMIT_LINE: Final = re.compile(r"\Acommit hash: (.*)\n?")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that is not known of a run, so that it is not compared.

    Attributes:
        section: What.
        run: Of which run.
        reason: Why, in words.
    """

    section: str
    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunComparison:
    """What differs between two runs.

    Attributes:
        before: The first run.
        after: The second.
        differences: What is not the same, by section.
        unknown: What could not be compared.
        stored_diff: The lines of a unified diff of what NeMo stored of the uncommitted changes; None if not asked for,
            or not known of both.
    """

    before: RunSummary
    after: RunSummary
    differences: tuple[Difference, ...]
    unknown: tuple[Unknown, ...]
    stored_diff: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Known:
    """What is known of one run.

    Attributes:
        run: The run.
        facts: The facts by section.
        reasons: Why a section is not known.
        uncommitted: What NeMo has stored of the changes that were not committed.
    """

    run: RunSummary
    facts: dict[str, Facts] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    uncommitted: str | None = None

    def note(self, section: str, facts: Facts | None, reason: str) -> None:
        """Keep the facts of a section, or why there are none."""
        if facts is None:
            self.reasons[section] = reason
        else:
            self.facts[section] = facts


def compare_runs(
    experiment: Experiment, before: RunSummary, after: RunSummary, *, with_stored_diff: bool = False
) -> RunComparison:
    """Return what differs between two runs of an experiment.

    Args:
        experiment: The experiment.
        before: The first run.
        after: The second.
        with_stored_diff: Compare the texts of the uncommitted changes too.
    """
    known = _read_facts(experiment, before), _read_facts(experiment, after)
    differences: list[Difference] = []
    unknown: list[Unknown] = []
    for section in SECTIONS:
        missing = [each for each in known if section not in each.facts]
        if not missing:
            facts = [each.facts[section] for each in known]
            if section in _FIXED_NAMES:
                facts, absent = _known_of_both(section, known)
                unknown += absent
            differences += compare_facts(section, *facts)
        elif len(missing) == 1 or any(each.reasons[section] != _NO_HPARAMS for each in missing):
            unknown += [Unknown(section, each.run.id, each.reasons[section]) for each in missing]
    stored = None
    if with_stored_diff and known[0].uncommitted is not None and known[1].uncommitted is not None:
        names = f"{before.id}/{_GIT_FILE}", f"{after.id}/{_GIT_FILE}"
        texts = redact_text(known[0].uncommitted), redact_text(known[1].uncommitted)
        stored = tuple(compare_texts(*texts, names))
    return RunComparison(before, after, tuple(differences), tuple(unknown), stored)


def _known_of_both(section: str, known: tuple[_Known, _Known]) -> tuple[list[Facts], list[Unknown]]:
    """Return the facts that are known of both, and the others, of a section in which every run has the same facts."""
    facts = [each.facts[section] for each in known]
    common = [name for name in facts[0] if name in facts[1]]
    unknown = [
        Unknown(f"{section}.{name}", known[1 - index].run.id, "it is not recorded")
        for index in (0, 1)
        for name in facts[index]
        if name not in facts[1 - index]
    ]
    return [{name: each[name] for name in common} for each in facts], unknown


def _read_facts(experiment: Experiment, run: RunSummary) -> _Known:
    known = _Known(run)
    details = experiment.describe(run)
    record = details.run_record
    if record is None:
        is_gone = run.status in (PRUNED, MISSING)
        reason = f"its status is {run.status}" if is_gone else next(iter(details.problems), "there is no run.json")
        record = RunRecord(run.id, "", resumed_from=run.resumed_from)
    else:
        is_adopted = record.adopted_from is not None
        reason = "a migration brought it in, and old files do not tell" if is_adopted else "it was not recorded"
    configuration = None if record.configuration is None else flatten(record.configuration)
    known.note(CONFIGURATION, configuration, reason)
    known.note(ARGUMENTS, name_arguments(record.arguments) if record.arguments else None, reason)
    known.note(VERSIONS, record.versions or None, reason)
    start = {"resumed_from": record.resumed_from, "checkpoint": record.checkpoint}
    has_record = details.run_record is not None and record.adopted_from is None
    # Without a record, None does not say that nothing was resumed.
    known.note(START, start if has_record else _without_none(start) or None, reason)
    _note_git(known, run.path / _GIT_FILE, record.git_commit, reason)
    _note_hparams(known, run.path / _HPARAMS_FILE)
    environment = {
        "host": run.host or record.process.get("host"),
        "world_size": run.world_size if run.world_size is not None else record.world_size,
        "launcher": run.source or record.launch_source,
        "user": record.user,
        "working_directory": record.working_directory,
    }
    known.note(ENVIRONMENT, _without_none(environment) or None, reason)
    return known


def _note_git(known: _Known, path: Path, commit: str | None, reason: str) -> None:
    """Note the commit, and of the changes that were not committed how many lines the stored diff has, and its hash."""
    facts: dict[str, Any] = {}
    with suppress(OSError, RecordError):
        text = _read_regular(path).decode("utf-8", "replace")
        found = _COMMIT_LINE.match(text)
        if found is not None:
            commit = commit or found[1].strip()
            known.uncommitted = text[found.end() :]
            digest = hashlib.sha256(known.uncommitted.encode("utf-8", "replace")).hexdigest()[:12]
            lines = len(known.uncommitted.splitlines())
            facts["uncommitted_changes"] = f"{lines} lines, sha256 {digest}" if lines else "none"
    if commit is not None:
        facts = {"commit": commit, **facts}
    known.note(GIT, facts or None, reason)


def _note_hparams(known: _Known, path: Path) -> None:
    try:
        known.note(HPARAMS, flatten(parse_hparams(_read_regular(path), path) or {}), "")
    except FileNotFoundError:
        known.note(HPARAMS, None, _NO_HPARAMS)
    except (OSError, RecordError) as error:
        known.note(HPARAMS, None, str(error))


def _read_regular(path: Path) -> bytes:
    """Return the content of a file; of nothing else, since to open a pipe would wait for a writer.

    Raises:
        OSError: If it cannot be read.
        RecordError: If it is something else, or too large.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
        raise RecordError(str(path), f"expected a file of at most {_MAX_BYTES} bytes, found something else")
    return durable_files.read_bytes(path)


def _without_none(facts: Facts) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value not in (None, "")}
