"""torchrun: the ranks agree on a random token through the store of the agent that started them.

``TORCHELASTIC_RUN_ID`` is no key: it is the text ``none`` by default, and users reuse it. The agent's store is a
server that runs before the workers do, so that putting a token there waits for nobody. It makes no process group.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from immutable_logs.errors import LaunchDetectionError
from immutable_logs.launch import LAUNCH_ID_VARIABLE, Launch, Ranks, format_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TIMEOUT: Final = timedelta(seconds=30)
_PREFIX: Final = "immutable_logs"


def detect(environ: Mapping[str, str], ranks: Ranks, new_token: Callable[[], str]) -> Launch | None:
    """Return the launch of a worker of torchrun whose agent offers its store.

    ``TORCHELASTIC_RESTART_COUNT`` is local to an agent, hence in the key only where there is one; the store of the
    static rendezvous outlives a restart. With several agents and restarts the token may be that of the workers
    before, so the key is not unique.

    Raises:
        LaunchDetectionError: If the store cannot be reached. Falling back to another source would split the ranks.
    """
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    has_one_agent = environ.get("GROUP_WORLD_SIZE", "1") == "1"
    may_restart = environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0") if has_one_agent else "shared"
    token = _agree_on_token(environ, f"launch/{restart}", new_token())
    return Launch(
        key=format_key("torchrun", token, "restart", restart),
        unique=has_one_agent or not may_restart,
        ranks=ranks,
        source="torchrun's agent store",
    )


def _agree_on_token(environ: Mapping[str, str], key: str, proposal: str) -> str:
    """Return the first token that any rank put under a key of the agent's store."""
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    try:
        from torch.distributed import PrefixStore, TCPStore

        server = TCPStore(address, int(port), is_master=False, wait_for_workers=False, timeout=_TIMEOUT)
        return bytes(PrefixStore(_PREFIX, server).compare_set(key, "", proposal)).decode("ascii")
    except (ImportError, ValueError, RuntimeError) as error:
        raise LaunchDetectionError(
            "torchrun",
            f"the store of torchrun's agent at {address}:{port} could not be asked for the launch: {error}\n"
            f"HINT: set {LAUNCH_ID_VARIABLE} to the same text on all ranks, another for each launch",
        ) from error
