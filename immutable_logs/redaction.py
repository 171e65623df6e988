"""Take secrets out of what is recorded: records are kept for years and read by a whole group."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

REDACTED: Final = "***"

_SECRET_NAME: Final = re.compile(
    r"(?i)(api[_-]?key|access[_-]?key|secret|token(?!iz|s\b|s_|_id|_len|_per)|passw(or)?d|passphrase|credential|"
    r"private[_-]?key|auth(orization|_header)|dsn$|cookie)"
)
_SECRET_VALUE: Final = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{15,}|nvapi-[\w-]{20,}"
    r"|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|wandb_v1_\w{20,}|ey[A-Za-z0-9_-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)(?=@)")


def redact_text(text: str) -> str:
    """Return a text without passwords in addresses and without what has the form of a known kind of token."""
    return _SECRET_VALUE.sub(REDACTED, _URL_PASSWORD.sub(rf"\1:{REDACTED}", text))


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line whose secrets are replaced: ``--token X``, ``--token=X``, ``a.b.api_key=X``."""
    redacted = []
    is_value_of_secret = False
    for argument in arguments:
        name, separator, _ = argument.partition("=")
        is_secret_name = _SECRET_NAME.search(name.rpartition(".")[2]) is not None
        if is_value_of_secret and not argument.startswith("-"):
            redacted.append(REDACTED)
        elif separator and is_secret_name:
            redacted.append(f"{name}={REDACTED}")
        else:
            redacted.append(redact_text(argument))
        is_value_of_secret = is_secret_name and not separator and argument.startswith("-")
    return redacted


def redact_value(value: Any) -> Any:
    """Return a configuration as plain JSON values, secrets replaced wherever they are nested."""
    if isinstance(value, Mapping):
        return {
            str(key): REDACTED if item is not None and _SECRET_NAME.search(str(key)) else redact_value(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set)):
        return [redact_value(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return redact_text(os.fspath(value) if isinstance(value, os.PathLike) else str(value))
