"""What a verification can find; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

PROBLEM: Final = "problem"
"""A promise is broken, or a record is damaged or lost."""

LEFTOVER: Final = "leftover"
"""What a kill, a race or somebody else has left; it does no harm."""

KINDS: Final = (
    "rank-in-older-run",
    "run-missing",
    "run-of-two-launches",
    "run-claimed-twice",
    "run-unclaimed",
    "run-without-record",
    "record-missing",
    "record-unreadable",
    "record-of-another-run",
    "end-record-missing",
    "end-record-unreadable",
    "end-record-differs",
    "started-line-lost",
    "finished-line-lost",
    "started-twice",
    "line-doubled",
    "manifest-damaged",
    "manifest-foreign",
    "adoption-unfinished",
    "prune-unfinished",
    "ranks-absent",
    "rank-entry-unreadable",
    "latest-missing",
    "latest-behind",
    "latest-dangling",
    "latest-without-record",
    "latest-foreign",
    "latest-unfinished",
    "claim-untrusted",
    "claim-dangling",
    "claim-unfinished",
    "claim-without-run",
    "claim-unused",
    "tensorboard-dangling",
    "tensorboard-unchecked",
    "name-taken",
    "foreign-entry",
)
"""Every kind, as `docs/reference/cli.md` explains them; a kind is a public name, the messages are not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as a launch leaves it.

    Attributes:
        kind: One of `KINDS`.
        severity: `PROBLEM` or `LEFTOVER`.
        path: What it is about, relative to the experiment.
        run: The run that it is about, if it is one.
        message: What was expected, what was found, and after ``HINT:`` what to do.
        is_repairable: Whether `repair` mends it.
        details: Plain values for scripts.
    """

    kind: str
    severity: str
    path: str
    run: str | None
    message: str
    is_repairable: bool = False
    details: dict[str, Any] = field(default_factory=dict)
