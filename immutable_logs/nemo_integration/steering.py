"""Lead calls of a function that others have bound already to our code, without replacing the function object.

Scripts write ``from nemo.utils.exp_manager import exp_manager``, so that a new attribute of the module reaches none of
them. A function's *code* can be swapped instead: the object, its name, signature, documentation and identity stay.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from immutable_logs.errors import ImmutableLogsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_stock_code: Final[WeakKeyDictionary[FunctionType, CodeType]] = WeakKeyDictionary()
_steered: Final[dict[Callable[..., Any], FunctionType]] = {}


class UnsupportedNeMoError(ImmutableLogsError, RuntimeError):
    """NeMo's code is not of a form that this package knows."""


def steer(function: Callable[..., Any], shim: Callable[..., Any]) -> None:
    """Make a function run the code of another; does nothing where that has been done.

    It has been done, too, where somebody has put a wrapper in the place of the function since. A function from the
    same source is none: its module has been reloaded.

    Args:
        function: The function that others call.
        shim: A function of the same parameters without free variables, which imports what it needs.

    Raises:
        UnsupportedNeMoError: If the parameters differ, or it is no plain Python function.
    """
    if shim in _steered and not _is_same_source(function, _steered[shim]):
        return
    if not isinstance(function, FunctionType) or not isinstance(shim, FunctionType):
        raise UnsupportedNeMoError(f"expected a plain Python function, found {function!r}")
    if function in _stock_code:
        return
    expected, found = list(inspect.signature(shim).parameters), list(inspect.signature(function).parameters)
    if expected != found or function.__closure__:
        raise UnsupportedNeMoError(
            f"expected {function.__module__}.{function.__qualname__} with the parameters {expected}, found {found}; "
            "this version of NeMo is not supported (nemo_toolkit 2.0 to 2.7 and 3.0 are)"
        )
    stock = function.__code__
    changes: dict[str, Any] = {
        "co_filename": stock.co_filename,
        "co_firstlineno": stock.co_firstlineno,
        "co_name": stock.co_name,
    }
    if hasattr(stock, "co_qualname"):
        changes["co_qualname"] = stock.co_qualname
    _stock_code[function] = stock
    _steered[shim] = function
    function.__code__ = shim.__code__.replace(**changes)


def steered_by(shim: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that was led to a shim last.

    It must not be looked up under its name: a wrapper that stands there calls it, and would be called by it, for ever.
    """
    return _steered[shim]


def stock_function(function: Callable[..., Any], replacements: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return what a function did before it was steered.

    Args:
        function: Any callable; one that is no plain function is returned as it is.
        replacements: Names that this one callable shall see instead of its module's. Nothing global changes: the code
            runs over a copy of the module's names made now, so that other people's patches of the module count.
    """
    if not isinstance(function, FunctionType):
        return function
    names = {**function.__globals__, **replacements} if replacements else function.__globals__
    code = _stock_code.get(function, function.__code__)
    copy = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    return copy


def _is_same_source(function: Any, steered: FunctionType) -> bool:
    code = getattr(function, "__code__", None)
    return isinstance(code, CodeType) and (code.co_filename, code.co_name) == (
        steered.__code__.co_filename,
        steered.__code__.co_name,
    )
