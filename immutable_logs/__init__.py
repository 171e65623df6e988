"""Every run writes into a fresh directory of its own, nothing is ever moved, and `latest` shows the newest run."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from immutable_logs.catalog import Experiment
from immutable_logs.errors import ImmutableLogsError
from immutable_logs.run import Run, start_run

if TYPE_CHECKING:
    from immutable_logs.nemo_integration.activation import enable as enable

__all__ = ["Experiment", "ImmutableLogsError", "Run", "enable", "start_run"]
__version__ = version("immutable-logs")


def __getattr__(name: str) -> object:
    """Load the NeMo integration only when it is asked for."""
    if name == "enable":
        from immutable_logs.nemo_integration.activation import enable

        return enable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
