"""Format, parse and order run ids.

A run id is the UTC time of a launch to the second and five random characters: ``2026-12-01_02-28-15Z_k3v9q``.
It is a *name*. The order of runs is that of their ``started`` lines in the manifest, since a clock can be wrong.
"""

from __future__ import annotations

import calendar
import re
import time
from typing import Final

from immutable_logs.errors import InvalidRunIdError

RANDOM_BYTES: Final = 8
"""How many random bytes `format_run_id` needs: 2**64 / 36**5 makes the remainder even to one part in 10**11."""

_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SUFFIX_LENGTH: Final = 5
_TIME_FORMAT: Final = "%Y-%m-%d_%H-%M-%SZ"
_TEMPLATE: Final = "2026-12-01_02-28-15Z_k3v9q"
"""What a cut run id is completed with, so that one pattern tells of both."""
_PATTERN: Final = re.compile(r"\A([0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2}Z)_[0-9a-z]{5}\Z")


def format_run_id(seconds: float, random_bytes: bytes) -> str:
    """Return the run id for a time and a random value.

    Args:
        seconds: Unix time.
        random_bytes: `RANDOM_BYTES` bytes, from `os.urandom` and not from `random`, which users seed.
    """
    number = int.from_bytes(random_bytes, "big")
    suffix = ""
    for _ in range(_SUFFIX_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        suffix += _ALPHABET[digit]
    return f"{time.strftime(_TIME_FORMAT, time.gmtime(seconds))}_{suffix}"


def is_run_id(text: str) -> bool:
    """Tell whether a text has the form of a run id."""
    return _PATTERN.match(text) is not None


def is_cut_run_id(text: str) -> bool:
    """Tell whether a text is the beginning of a run id and no more, as a write that was cut leaves; empty text too."""
    return len(text) < len(_TEMPLATE) and is_run_id(text + _TEMPLATE[len(text) :])


def parse_run_time(text: str) -> float:
    """Return the Unix time in a run id.

    Raises:
        InvalidRunIdError: If the text is no run id, or names a time that does not exist.
    """
    match = _PATTERN.match(text)
    if match is None:
        raise InvalidRunIdError(text)
    try:
        return float(calendar.timegm(time.strptime(match.group(1), _TIME_FORMAT)))
    except ValueError:
        raise InvalidRunIdError(text) from None
