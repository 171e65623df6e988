"""Lightning's own launcher: the script itself is rank 0 of its node and starts itself again for every further rank.

The children inherit the environment, which nothing in it marks as theirs: a nested training, or a shell started
from the script, inherits it too. So the parent exports its launch with its pid, and a child takes it only if that
pid is its parent and Lightning gave it a local rank of at least 1.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from immutable_logs.launch import Launch
from immutable_logs.launchers.ranks import detect_ranks, is_rank

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

_VARIABLE: Final = "_IMMUTABLE_LOGS_PARENT_LAUNCH"


def export(environ: MutableMapping[str, str], launch: Launch, pid: int, experiments: Sequence[str] = ()) -> None:
    """Leave the launch of this process, and where it has started runs, to the children of Lightning's launcher.

    A process that has a local rank already was itself started by a launcher, so that Lightning starts no children in
    it; and what it starts itself would inherit that local rank and take itself for one.
    """
    if "LOCAL_RANK" not in environ:
        environ[_VARIABLE] = json.dumps(
            {
                "pid": pid,
                "key": launch.key,
                "unique": launch.unique,
                "source": launch.source,
                "job": launch.job,
                "experiments": list(experiments),
            }
        )


def detect(environ: Mapping[str, str], parent_pid: int, ranks_per_node: int | None) -> Launch | None:
    """Return the parent's launch, with the ranks of the child."""
    text, local_rank = environ.get(_VARIABLE), environ.get("LOCAL_RANK", "")
    if not text or not is_rank(local_rank) or int(local_rank) < 1:
        return None
    try:
        parent = json.loads(text)
        if parent["pid"] != parent_pid:
            return None
        key, unique, source, job = (parent[name] for name in ("key", "unique", "source", "job"))
        experiments = tuple(parent["experiments"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    # Inside `srun --pty bash` every child has the SLURM_PROCID of the shell, so only Lightning's own variables count.
    own = {name: environ[name] for name in ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE") if name in environ}
    ranks = detect_ranks(own, ranks_per_node)
    return Launch(
        key=key,
        unique=bool(unique),
        ranks=ranks,
        source=f"{source}, through Lightning's launcher",
        job=job,
        parents_experiments=experiments,
    )
