"""Put HTML together so that nothing from disk can become a part of it; pure.

Whatever is not `Markup` already is text, and is escaped. In a shared directory anyone can have written a run's
records and logs, and a page is passed on to people who trust its sender.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from immutable_logs.cli.plain_text import harmless, harmless_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

_WITHOUT_CONTENT: Final = frozenset({"meta"})
_SHORT: Final = 160


class Markup(str):
    """A piece of HTML that is safe to be shown."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: Its name.
        children: What is in it: markup, or any value, which is shown as a line of text. None is left out.
        attributes: Its attributes; ``class_`` is ``class``, ``aria_label`` is ``aria-label``. None is left out, True
            has no value.
    """
    opening = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _WITHOUT_CONTENT:
        return Markup(f"<{name}{opening}>")
    content = "".join(child if isinstance(child, Markup) else line(child) for child in children if child is not None)
    return Markup(f"<{name}{opening}>{content}</{name}>")


def join(pieces: Iterable[Markup]) -> Markup:
    """Return pieces one after the other, a line each."""
    return Markup("\n".join(pieces))


def line(value: object) -> Markup:
    """Return a value as a line of text."""
    return Markup(escape(harmless(value)))


def lines(text: str) -> Markup:
    """Return a text with its line ends."""
    return Markup(escape(harmless_lines(text)))


def shorten(value: object, limit: int = _SHORT) -> str:
    """Return a value as text, cut where it is longer than anything that an honest program writes there."""
    text = str(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{line(value)}"'
