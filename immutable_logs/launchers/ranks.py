"""Which rank of its launch a process is, from the variables of whichever launcher started it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from immutable_logs.errors import LaunchDetectionError
from immutable_logs.launch import Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_DIGITS: Final = 9

_LAUNCHERS: Final = (
    # The first variable set decides. `RANK` wins, since torchrun inside `srun` sets it; MPI launchers win over Slurm
    # for the same reason. Each row: global rank, local rank, node rank, world size.
    (("RANK",), ("LOCAL_RANK",), ("GROUP_RANK", "NODE_RANK"), ("WORLD_SIZE",)),
    (("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_LOCAL_RANK",), (), ("OMPI_COMM_WORLD_SIZE",)),
    (("PALS_RANKID",), ("PALS_LOCAL_RANKID",), ("PALS_NODEID",), ("PALS_SIZE", "PMI_SIZE")),
    (("FLUX_TASK_RANK",), ("FLUX_TASK_LOCAL_ID",), (), ("FLUX_JOB_SIZE",)),
    (("JSM_NAMESPACE_RANK",), ("JSM_NAMESPACE_LOCAL_RANK",), (), ("JSM_NAMESPACE_SIZE",)),
    (("PMI_RANK",), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), (), ("PMI_SIZE",)),
)
_PMI: Final = _LAUNCHERS[-1]
_SLURM_STEP: Final = (
    ("SLURM_PROCID",),
    ("SLURM_LOCALID",),
    ("SLURM_NODEID",),
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
)
_LIGHTNING: Final = ((), ("LOCAL_RANK",), ("NODE_RANK",), ("WORLD_SIZE",))


def detect_ranks(environ: Mapping[str, str], ranks_per_node: int | None = None) -> Ranks:
    """Return the ranks that an environment states.

    Args:
        environ: The environment as the launcher left it.
        ranks_per_node: How many ranks run on a node, where the caller knows and the environment may not.

    Raises:
        LaunchDetectionError: If a number is none, or a process on a further node has no rank of its own.
    """
    # A batch script without `srun` has a SLURM_PROCID too, but it is no task of a step.
    otherwise = _SLURM_STEP if environ.get("SLURM_STEP_ID") else _LIGHTNING
    names = next((row for row in _LAUNCHERS if environ.get(row[0][0])), otherwise)
    if names is _PMI and _is_slurm_task(environ):
        names = _SLURM_STEP
    global_rank, local_rank, node_rank, world_size = (_number(environ, group) for group in names)
    if global_rank is None:
        known = ranks_per_node or _number(environ, ("LOCAL_WORLD_SIZE",))
        global_rank = _rank_on_node(node_rank or 0, local_rank or 0, known)
    return Ranks(global_rank, local_rank or 0, node_rank or 0, world_size)


def has_rank(environ: Mapping[str, str]) -> bool:
    """Tell whether a launcher has told the process its rank."""
    return any(environ.get(row[0][0]) for row in _LAUNCHERS)


def is_rank(text: str) -> bool:
    """Tell whether a text is a number that a rank can have: Python refuses to read one of some thousand digits."""
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def _is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Tell whether it was Slurm that set the PMI variables: `srun --mpi=pmi2` does, without a local rank.

    MPICH's Hydra starts a proxy for each node with `srun`, whose ranks then carry the Slurm variables of their proxy.
    Only where it starts one rank for each node do both agree, and then either is right.
    """
    return (
        bool(environ.get("SLURM_STEP_ID"))
        and environ.get("PMI_RANK") == environ.get("SLURM_PROCID")
        and environ.get("PMI_SIZE") == environ.get("SLURM_STEP_NUM_TASKS")
    )


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environ.get(name, "").strip()
        if is_rank(text):
            return int(text)
        if text:
            raise LaunchDetectionError(
                "environment",
                f"expected a number of 0 or more in the environment variable {name}, found {text[:80]!r}",
            )
    return None


def _rank_on_node(node_rank: int, local_rank: int, ranks_per_node: int | None) -> int:
    if node_rank == 0:
        return local_rank
    if ranks_per_node is None:
        raise LaunchDetectionError(
            "NODE_RANK",
            f"the global rank cannot be known: NODE_RANK is {node_rank} and nothing says how many ranks a node has\n"
            "HINT: set RANK or LOCAL_WORLD_SIZE, or pass `ranks_per_node` to start_run()",
        )
    return node_rank * ranks_per_node + local_rank
