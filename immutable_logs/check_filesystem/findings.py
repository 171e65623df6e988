"""What a check of a mount found, and what follows from it for the layout; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

HOLDS: Final = "holds"
DEGRADED: Final = "degraded"
"""The layout works there, but in another way or with a promise less."""
MISSING: Final = "missing"
"""Without it runs can be lost or mixed up."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One guarantee, tried.

    Attributes:
        name: Which.
        verdict: `HOLDS`, `DEGRADED` or `MISSING`.
        found: What was seen, in words.
        consequence: What it means for the layout, in words.
        figures: What was measured, by name; the unit is in the name.
    """

    name: str
    verdict: str
    found: str
    consequence: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of one directory.

    Attributes:
        directory: The directory.
        file_system: The type of the file system that it is on; None if unknown.
        hosts: The hosts that took part.
        findings: The findings, in the order in which they were tried.
        leftovers: Names of directories that earlier checks have left there when they were killed.
    """

    directory: str
    file_system: str | None
    hosts: tuple[str, ...]
    findings: tuple[Finding, ...]
    leftovers: tuple[str, ...] = ()

    @property
    def is_fit(self) -> bool:
        """Whether everything that is needed is there."""
        return all(finding.verdict != MISSING for finding in self.findings)
