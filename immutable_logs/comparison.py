"""What differs between two runs, of what is known of both; pure.

What is known of one alone is no difference: an adopted run, or one whose record was torn by a kill, would look as if
everything had been taken out of it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

ADDED: Final = "added"
REMOVED: Final = "removed"
CHANGED: Final = "changed"

Facts = Mapping[str, Any]
"""Values by name, of one section."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not the same.

    Attributes:
        section: What kind of fact it is.
        name: Which, with dots where it is nested.
        kind: `ADDED`, `REMOVED` or `CHANGED`, seen from the first run.
        before: The value of the first run; None if it has none.
        after: The value of the second run; None if it has none.
    """

    section: str
    name: str
    kind: str
    before: Any = None
    after: Any = None


def compare_facts(section: str, before: Facts, after: Facts) -> Iterator[Difference]:
    """Yield what differs between two sets of facts: in the order of the first, then what only the second has."""
    for name, value in before.items():
        if name not in after:
            yield Difference(section, name, REMOVED, before=value)
        elif _as_json(value) != _as_json(after[name]):
            yield Difference(section, name, CHANGED, value, after[name])
    for name, value in after.items():
        if name not in before:
            yield Difference(section, name, ADDED, after=value)


def flatten(value: object, name: str = "") -> dict[str, Any]:
    """Return a nested value as values by dotted name; a list of plain values stays one value."""
    parts: dict[str, Any]
    if isinstance(value, Mapping) and (value or not name):
        parts = {f"{name}.{key}" if name else str(key): item for key, item in value.items()}
    elif _is_list(value) and any(isinstance(item, Mapping) or _is_list(item) for item in value):
        parts = {f"{name}[{index}]": item for index, item in enumerate(value)}
    else:
        return {name or "(value)": value}
    return {inner: part for outer, item in parts.items() for inner, part in flatten(item, outer).items()}


def name_arguments(arguments: Sequence[object]) -> dict[str, Any]:
    """Return the words of a command line by name, so that a changed value is told from a word more.

    ``a.b=1`` and ``--lr=1`` are called by what stands before the ``=``, the word after ``--lr`` by that word, and all
    others by their number among those that have no name.
    """
    named: dict[str, Any] = {}
    words = [str(each) for each in arguments]
    position = 0
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        name, separator, value = word.partition("=")
        if not separator and word.startswith("-"):
            value = ""
            if index < len(words) and not words[index].startswith("-") and "=" not in words[index]:
                value = words[index]
                index += 1
        elif not separator:
            name, value = f"[{position}]", word
            position += 1
        unique = name
        count = 1
        while unique in named:
            count += 1
            unique = f"{name} ({count})"
        named[unique] = value
    return named


def compare_texts(before: str, after: str, names: tuple[str, str]) -> list[str]:
    """Return the lines of a unified diff of two texts, without line ends."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")
    return list(lines)


def show_values(before: object, after: object) -> tuple[str, str]:
    """Return two values as short texts; as JSON where they would look alike, as the text ``1`` and the number."""
    shown = _as_text(before), _as_text(after)
    return shown if shown[0] != shown[1] else (_as_json(before), _as_json(after))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else _as_json(value)


def _as_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
