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

CAUTION: Final = (
    "with several agents, the workers before a restart have the same. HINT: after a restart "
    "`immutable-logs verify` names any rank that has landed in the run of those before"
)
"""What to know of a key of several agents that may restart their workers."""


def detect(environ: Mapping[str, str], ranks: Ranks, new_token: Callable[[], str]) -> Launch | None:
    """Return the launch of a worker of torchrun whose agent offers its store.

    The store outlives a restart, so the restart is in the key where it can be known (`restart_of`). With several
    agents and restarts the token may be that of the workers before, so the key is not unique.

    Raises:
        LaunchDetectionError: If the store cannot be reached. Falling back to another source would split the ranks.
    """
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    restart, is_certain = restart_of(environ)
    token = _agree_on_token(environ, f"launch/{restart}", new_token())
    return Launch(
        key=format_key("torchrun", token, *(("restart", restart) if restart else ())),
        unique=is_certain,
        ranks=ranks,
        source="torchrun's agent store",
        caution=CAUTION,
    )


def is_worker(environ: Mapping[str, str]) -> bool:
    """Tell whether torchrun started this process, whatever its rendezvous is."""
    return "TORCHELASTIC_RESTART_COUNT" in environ


def restart_of(environ: Mapping[str, str]) -> tuple[str, bool]:
    """Return which start of the workers this is, as a text or "" if unknown, and whether no other start has the same.

    ``TORCHELASTIC_RESTART_COUNT`` counts the restarts that the agent's own workers caused: exact where it is the only
    agent; with several agents it can differ between the ranks of one start.
    """
    if environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return environ.get("TORCHELASTIC_RESTART_COUNT", "0"), True
    return "", environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0"


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
