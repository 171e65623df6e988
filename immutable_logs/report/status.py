"""How a status looks: a sign and a colour, neither of which is needed to understand the other."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from immutable_logs.report.markup import Markup, element, shorten

_Shape: TypeAlias = tuple[str, dict[str, Any]]

_CIRCLE: Final[_Shape] = ("circle", {"cx": 8, "cy": 8, "r": 7})
_SQUARE: Final[_Shape] = ("rect", {"x": 1.5, "y": 1.5, "width": 13, "height": 13, "rx": 2})
_DIAMOND: Final[_Shape] = ("path", {"d": "M8 .5 15.5 8 8 15.5.5 8Z"})
_OCTAGON: Final[_Shape] = ("path", {"d": "M5 1h6l4 4v6l-4 4H5l-4-4V5Z"})

_SIGNS: Final[dict[str, tuple[_Shape, str]]] = {
    "finished": (_CIRCLE, "M4.6 8.3 7 10.7l4.4-5"),
    "failed": (_OCTAGON, "M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"),
    "interrupted": (_SQUARE, "M6 5v6M10 5v6"),
    "running": (_CIRCLE, "M6.4 4.8 11 8l-4.6 3.2Z"),
    "unknown": (_DIAMOND, "M6.1 6.5c0-2.4 3.8-2.4 3.8 0 0 1.5-1.9 1.3-1.9 2.8M8 11.3v.3"),
    "adopted": (_SQUARE, "M8 4.2v6.6M5.2 8.4 8 11l2.8-2.6"),
    "pruned": (_CIRCLE, "M4.8 8h6.4"),
    "missing": (_DIAMOND, "M5.8 8h4.4"),
}
_LONGEST: Final = 30
_OTHER: Final[tuple[_Shape, str]] = (_SQUARE, "M5 8h6")


def status_class(status: str) -> str:
    """Return the class of the style sheet for a status; a newer writer can have others."""
    return f"is-{status}" if status in _SIGNS else "is-other"


def status_symbols() -> Markup:
    """Return the signs, to be put into the page once."""
    symbols = []
    for status, ((shape, attributes), sign) in {**_SIGNS, "other": _OTHER}.items():
        drawn = element(shape, class_="ground", **attributes), element("path", class_="sign", d=sign)
        symbols.append(element("symbol", *drawn, id=f"sign-{status}", viewBox="0 0 16 16"))
    return element("svg", *symbols, class_="symbols", aria_hidden="true")


def draw_sign(status: str) -> Markup:
    """Return the sign of a status, which stands beside the word."""
    name = status if status in _SIGNS else "other"
    return element(
        "svg", element("use", href=f"#sign-{name}"), class_=f"sign {status_class(status)}", aria_hidden="true"
    )


def status_label(status: str) -> Markup:
    """Return the sign and the word."""
    return element("span", draw_sign(status), element("span", shorten(status, _LONGEST)), class_="status")
