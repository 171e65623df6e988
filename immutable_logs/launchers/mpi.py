"""MPI launchers and Flux: each puts an id of the launch into the environment of every rank.

Open MPI 4 makes its PMIx name space from host and pid, so that two launches in fresh containers have the same one: the
address of its head process, which has a random port, and its random transport key are taken too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from immutable_logs.launch import Launch, format_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from immutable_logs.launch import Ranks

_LAUNCHERS: Final = (
    # name, variable of the rank, variables of the launch (the first is needed)
    (
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_orte_precondition_transports"),
    ),
    ("PALS", "PALS_RANKID", ("PALS_APID",)),
    ("Flux", "FLUX_TASK_RANK", ("FLUX_JOB_ID",)),
    ("jsrun", "JSM_NAMESPACE_RANK", ("PMIX_NAMESPACE", "LSB_JOBID", "LSB_JOBINDEX")),
)


def detect(environ: Mapping[str, str], ranks: Ranks) -> Launch | None:
    """Return the launch of a rank that one of these launchers started."""
    for name, rank_variable, variables in _LAUNCHERS:
        if environ.get(rank_variable) and environ.get(variables[0]):
            values = (environ.get(variable, "") for variable in variables)
            return Launch(key=format_key(name, *values), unique=True, ranks=ranks, source=name)
    return None
