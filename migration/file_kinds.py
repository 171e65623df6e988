"""What an old file is, by its name alone; pure."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final

_RANK_LOG: Final = re.compile(r"nemo_log_globalrank-([0-9]+)_localrank-([0-9]+)\.txt\Z")
_EVENTS: Final = re.compile(r"events\.out\.tfevents\.[0-9]+\.")

CHECKPOINT_ENDINGS: Final = (".ckpt", ".nemo", "-unfinished")


class Kind(Enum):
    """What a file is, by its name."""

    # Enum's own hash is a Python function, called for every file many times.
    __hash__ = object.__hash__

    ARGUMENTS = "cmd-args.log"
    GIT = "git-info.log"
    ERRORS = "nemo_error_log.txt"
    LIGHTNING = "lightning_logs.txt"
    HPARAMS = "hparams.yaml"
    RANK_LOG = "nemo_log_globalrank-*"
    EVENTS = "events.out.tfevents.*"
    CHECKPOINT = "checkpoint"
    OTHER = "other"


_BY_NAME: Final = {kind.value: kind for kind in (Kind.ARGUMENTS, Kind.GIT, Kind.ERRORS, Kind.LIGHTNING, Kind.HPARAMS)}
SIGNS: Final = frozenset({Kind.ARGUMENTS, Kind.ERRORS, Kind.LIGHTNING, Kind.RANK_LOG})
"""Kinds that only NeMo writes. Event files and ``hparams.yaml`` are Lightning's, ``git-info.log`` anyone's."""


def classify(name: str) -> Kind:
    """Return what a file is, by its name."""
    known = _BY_NAME.get(name)
    if known is not None:
        return known
    if name.startswith("nemo_log_") and rank_in(name) is not None:
        return Kind.RANK_LOG
    if name.startswith("events.out.") and _EVENTS.match(name):
        return Kind.EVENTS
    return Kind.CHECKPOINT if name.endswith(CHECKPOINT_ENDINGS) else Kind.OTHER


@lru_cache(maxsize=1 << 14)
def rank_in(name: str) -> int | None:
    """Return the global rank in the name of a rank log; every launch has the same names."""
    match = _RANK_LOG.match(name)
    return int(match.group(1)) if match else None
