"""``RANK`` or ``NODE_RANK`` with ``MASTER_ADDR`` and ``MASTER_PORT``: all that Kubernetes and shell scripts set.

Nothing here tells one launch from the next, so the key is not unique; see `agreement` for what that means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from immutable_logs.launch import Launch, Ranks, format_key

if TYPE_CHECKING:
    from collections.abc import Mapping


def detect(environ: Mapping[str, str], ranks: Ranks) -> Launch | None:
    """Return the launch that a rendezvous address names."""
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if not address or not port or not (environ.get("RANK") or environ.get("NODE_RANK")):
        return None
    return Launch(
        key=format_key("master", f"{address}:{port}"), unique=False, ranks=ranks, source="MASTER_ADDR and MASTER_PORT"
    )
