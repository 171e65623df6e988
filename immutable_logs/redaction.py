"""Take secrets out of what is recorded: records are kept for years and read by a whole group."""

from __future__ import annotations

import math
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
    r"|(?:account|encryption|license|master|shared|signing|storage)[_-]?key|connection[_-]?string|webhook|bearer"
    r"|auth(?:orization|_header)|(?<![a-z])o?auth2?(?![a-z])|(?<=[_.-])pwd\b|dsn\b|jwt\b"
    # A token of a vocabulary is no secret.
    r"|(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)token(?!iz|s\b|s_|_id|_len|_per))"
)
_SECRET_NAME: Final = re.compile(rf"(?i){_NAMES}")
# In a text inside another one quotes have backslashes before them, which then end the value, too.
_QUOTE: Final = r"\\{0,8}[\"']"
_ASSIGNED: Final = re.compile(
    rf"(?i)({_NAMES}[\w-]{{0,40}}(?:{_QUOTE})?\s{{0,9}}(?:=>|[=:])\s{{0,9}})"
    r"(\\{0,8}\"[^\"]*\"|\\{0,8}'[^']*'|(?:Bearer |Basic )?[^\s,;&}\]\"']+)"
)
_HEADER: Final = re.compile(r"(?i)\b((?:[\w-]{0,40}authorization|[\w-]{0,40}cookie): ?)([^\s\"'][^\n\"'}\]]*)")
_FLAGGED: Final = re.compile(
    rf"(?i)((?<!\S)--?[\w.-]{{0,40}}{_NAMES}[\w-]{{0,40}}\s{{1,9}})(\"[^\"]*\"|'[^']*'|[^\s-]\S*)"
)
_SECRET_VALUE: Final = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{15,}|nvapi-[\w-]{20,}"
    r"|sk-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|A(?:KIA|SIA)[0-9A-Z]{16}|AIza[\w-]{35}|ya29\.[\w-]{20,}|npm_[A-Za-z0-9]{30,}"
    r"|wandb_v1_\w{20,}|ey[A-Za-z0-9_-]{10,}\.[\w-]{10,}\.[\w-]{10,}"
    r"|(?<=hooks\.slack\.com/services/)[\w/-]{20,}|(?<=[?&]sig=)[^\s&\"']+"
    r"|(?<=[Bb]earer )[\w.~+/-]{8,}=*|(?<=[Bb]asic )(?=[A-Za-z+/]*[0-9])[\w+/]{12,}=*)"
)
_PRIVATE_KEY: Final = re.compile(r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)(?s:.*?)(?=-----END|\Z)")
_NAME_KEYS: Final = frozenset(("name", "key"))
_VALUE_KEYS: Final = frozenset(("value", "default"))
_PLAIN_NAME: Final = re.compile(r"[\w.-]+\Z")
_FLAG: Final = re.compile(r"--|-.?\Z")
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^/\s:@]*):([^/\s]+)(?=@)")

_MAX_DEPTH: Final = 90
"""Levels of a configuration; with those around it no deeper than what readers of a record take."""


def redact_text(text: str) -> str:
    """Return a text without passwords in addresses, known kinds of tokens, and what is assigned to a secret's name."""
    text = _URL_PASSWORD.sub(rf"\1:{REDACTED}", _PRIVATE_KEY.sub(rf"\1{REDACTED}", text))
    for pattern in (_HEADER, _ASSIGNED, _FLAGGED):
        text = pattern.sub(rf"\1{REDACTED}", text)
    return _SECRET_VALUE.sub(REDACTED, text)


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line whose secrets are replaced: ``--token X``, ``--token=X``, ``a.b.api_key=X``."""
    redacted: list[str] = []
    is_value_of_secret = False
    for argument in arguments:
        name, separator, _ = argument.partition("=")
        is_secret_name = _SECRET_NAME.search(name) is not None
        if is_value_of_secret and not _FLAG.match(argument):
            redacted.append(REDACTED)
        elif separator and is_secret_name:
            # In `Authorization: Basic eDp5==` what stands before the first `=` is not the name alone.
            redacted.append(f"{redact_text(name)}={REDACTED}")
        else:
            redacted.append(redact_text(argument))
        is_value_of_secret = is_secret_name and not separator and argument.startswith("-")
    return redacted


def redact_value(value: object, *, depth: int = 0) -> object:
    """Return a configuration as plain JSON values, secrets replaced wherever they are nested.

    Mappings and sequences of every kind are gone through, OmegaConf's among them, and so are dataclasses and parsed
    command lines: as text they would show their secrets. A number that JSON has no word for becomes text.

    Args:
        value: The configuration.
        depth: How many levels are above it.

    Raises:
        ValueError: If it is nested too deeply, as what contains itself is.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"expected at most {_MAX_DEPTH} levels in a configuration, found more")
    if isinstance(value, Namespace):
        value = vars(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        items = list(_readable_items(value))
        is_named_secret = any(key in _NAME_KEYS and _is_secret_name(item) for key, item in items)
        return {
            redact_text(str(key)): REDACTED
            if item is not None and (_is_secret_name(str(key)) or (is_named_secret and key in _VALUE_KEYS))
            else redact_value(item, depth=depth + 1)
            for key, item in items
        }
    if isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (str, bytes, bytearray)):
        if all(isinstance(item, str) for item in value):
            texts = [str(item) for item in value]
            is_pair = len(texts) == 2 and _PLAIN_NAME.match(texts[0]) and _is_secret_name(texts[0])  # noqa: PLR2004
            return [texts[0], REDACTED] if is_pair else redact_arguments(texts)
        return [redact_value(item, depth=depth + 1) for item in value]
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return redact_text(os.fspath(value) if isinstance(value, os.PathLike) else str(value))


def _is_secret_name(name: object) -> bool:
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def _readable_items(mapping: Mapping[object, object]) -> Iterator[tuple[object, object]]:
    """Yield keys and values; OmegaConf raises for a value that is missing or leads nowhere."""
    for key in mapping:
        try:
            item = mapping[key]
        except Exception as error:  # noqa: BLE001 - one unreadable value must not cost the record of all others
            item = f"({type(error).__name__})"
        yield key, item
