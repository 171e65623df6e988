"""The only package that knows NeMo: an unmodified NeMo script writes under the immutable layout.

`activation` switches it on; `steering` leads NeMo's function to `session`, which runs NeMo's own code with a few of
its names replaced; `placement` says where things go.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return NeMo's ``exp_manager``, steered, for ``from immutable_logs.nemo_integration import exp_manager``."""
    if name == "exp_manager":
        from immutable_logs.nemo_integration.activation import enable

        return enable().exp_manager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
