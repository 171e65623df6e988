"""What a launch is: one start of a job's processes, as one of them sees it; pure.

Which launch a process belongs to is found by `launchers.detection`.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Final

from immutable_logs.redaction import redact_text

LAUNCH_ID_VARIABLE: Final = "IMMUTABLE_LOGS_LAUNCH_ID"
"""Set by the user: the same text on all ranks of a launch, another for each launch."""

_MAX_SLUG: Final = 80

_CAUTION: Final = (
    "another launch can have the same. "
    f"HINT: set {LAUNCH_ID_VARIABLE} to the same text on all ranks, another for each launch"
)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where a process stands in its launch; every number is 0-based.

    Attributes:
        global_rank: Rank among all processes of the launch.
        local_rank: Rank on the node.
        node_rank: Number of the node.
        world_size: Number of ranks, if the environment states it.
    """

    global_rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a job's processes, as one of them sees it.

    Attributes:
        key: What all ranks of the launch, and only they if `unique`, agree on.
        unique: False if two launches can have the same key.
        ranks: Which rank this process is.
        source: The rule that gave the key.
        job: The scheduler's job id, if there is one.
        call: Which run of this process in the experiment it is, counted from 1.
        parents_experiments: In a child of Lightning's launcher, where its parent had started its first runs by then;
            one for each run.
        caution: If the key is not unique, who else can have it and what to do about it.
    """

    key: str
    unique: bool
    ranks: Ranks
    source: str
    job: str | None = None
    call: int = 1
    parents_experiments: tuple[str, ...] = ()
    caution: str = _CAUTION

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process keeps the records of the run."""
        return self.ranks.global_rank == 0

    def numbered(self, call: int) -> Launch:
        """Return the launch of the call-th run that this process starts in an experiment, counted from 1."""
        return replace(self, key=f"{self.key} call={call}", call=call)

    @property
    def readable_key(self) -> str:
        """The key for people: the user's launch id can hold a secret."""
        return redact_text(self.key)

    @property
    def key_name(self) -> str:
        """The key as a safe file name of bounded length, still readable at its beginning."""
        slug = re.sub(r"[^0-9A-Za-z]+", "-", self.readable_key).strip("-")[:_MAX_SLUG]
        return f"{slug}-{hashlib.sha256(self.key.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def format_key(*parts: str) -> str:
    """Return a readable text for the parts of a key; no two lists of parts give the same one."""
    return " ".join(part if re.fullmatch(r"[\w.:@/+-]+", part, re.ASCII) else json.dumps(part) for part in parts)
