"""Take secrets out of what is recorded: records are kept for years and read by a whole group."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from typing import Final

REDACTED: Final = "***"

_NAMES: Final = (
    r"(?:api[_-]?key|access[_-]?key|secret|passw(?:or)?d|passphrase|credential|private[_-]?key|signature|cookie"
    r"|auth(?:orization|_header)|dsn\b"
    # A token of a vocabulary is no secret.
    r"|(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)token(?!iz|s\b|s_|_id|_len|_per))"
)
_SECRET_NAME: Final = re.compile(rf"(?i){_NAMES}")
_ASSIGNED: Final = re.compile(
    rf"(?i)({_NAMES}[\w-]{{0,40}}[\"']?\s{{0,9}}[=:]\s{{0,9}})"
    r"(\"[^\"]*\"|'[^']*'|(?:Bearer |Basic )?[^\s,;&}\]\"']+)"
)
_SECRET_VALUE: Final = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{15,}|nvapi-[\w-]{20,}"
    r"|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|wandb_v1_\w{20,}|ey[A-Za-z0-9_-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)
_FLAG: Final = re.compile(r"--|-.?\Z")
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^/\s:@]*):([^/\s]+)(?=@)")


def redact_text(text: str) -> str:
    """Return a text without passwords in addresses, known kinds of tokens, and what is assigned to a secret's name."""
    text = _URL_PASSWORD.sub(rf"\1:{REDACTED}", text)
    return _SECRET_VALUE.sub(REDACTED, _ASSIGNED.sub(rf"\1{REDACTED}", text))


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line whose secrets are replaced: ``--token X``, ``--token=X``, ``a.b.api_key=X``."""
    redacted = []
    is_value_of_secret = False
    for argument in arguments:
        name, separator, _ = argument.partition("=")
        is_secret_name = _SECRET_NAME.search(name) is not None
        if is_value_of_secret and not _FLAG.match(argument):
            redacted.append(REDACTED)
        elif separator and is_secret_name:
            redacted.append(f"{name}={REDACTED}")
        else:
            redacted.append(redact_text(argument))
        is_value_of_secret = is_secret_name and not separator and argument.startswith("-")
    return redacted


def redact_value(value: object) -> object:
    """Return a configuration as plain JSON values, secrets replaced wherever they are nested.

    Mappings and sequences of every kind are gone through, OmegaConf's among them, and so are dataclasses and parsed
    command lines: as text they would show their secrets.
    """
    if isinstance(value, Namespace):
        value = vars(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {
            str(key): REDACTED if item is not None and _SECRET_NAME.search(str(key)) else redact_value(item)
            for key, item in _readable_items(value)
        }
    if isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (str, bytes, bytearray)):
        if all(isinstance(item, str) for item in value):
            return redact_arguments([str(item) for item in value])
        return [redact_value(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return redact_text(os.fspath(value) if isinstance(value, os.PathLike) else str(value))


def _readable_items(mapping: Mapping[object, object]) -> Iterator[tuple[object, object]]:
    """Yield keys and values; OmegaConf raises for a value that is missing or leads nowhere."""
    for key in mapping:
        try:
            item = mapping[key]
        except Exception as error:  # noqa: BLE001 - one unreadable value must not cost the record of all others
            item = f"({type(error).__name__})"
        yield key, item
