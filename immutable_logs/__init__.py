"""Every run writes into a fresh directory of its own, nothing is ever moved, and `latest` shows the newest run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from immutable_logs.catalog import Experiment as Experiment
    from immutable_logs.errors import ImmutableLogsError as ImmutableLogsError
    from immutable_logs.nemo_integration.activation import enable as enable
    from immutable_logs.run import Run as Run
    from immutable_logs.run import start_run as start_run

    __version__: str

_HOMES: Final = {
    "Experiment": "immutable_logs.catalog",
    "ImmutableLogsError": "immutable_logs.errors",
    "Run": "immutable_logs.run",
    "enable": "immutable_logs.nemo_integration.activation",
    "start_run": "immutable_logs.run",
}

__all__ = ["Experiment", "ImmutableLogsError", "Run", "enable", "start_run"]


def __getattr__(name: str) -> object:
    """Load what is asked for, and no more: a command that only reads does without what starts runs."""
    if name == "__version__":
        from importlib.metadata import version

        return version("immutable-logs")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name what can be asked for."""
    return sorted({*globals(), *_HOMES, "__version__"})
