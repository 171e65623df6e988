"""A Slurm step (``srun``): cluster, job, step and restart count.

A requeue keeps the job id and restarts the step ids at 0; ``SLURM_RESTART_COUNT``, which is absent before the first
requeue, is the difference. Each element of an array has a job id of its own. Without ``SLURM_STEP_ID`` this is a
batch script, which sets the job id too but is one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from immutable_logs.launch import Launch, Ranks, format_key

if TYPE_CHECKING:
    from collections.abc import Mapping


def detect(environ: Mapping[str, str], ranks: Ranks) -> Launch | None:
    """Return the launch of a task of a Slurm step."""
    step = step_name(environ)
    if step is None:
        return None
    restart = environ.get("SLURM_RESTART_COUNT") or "0"
    return Launch(key=format_key("slurm", step, "restart", restart), unique=True, ranks=ranks, source="Slurm step")


def step_name(environ: Mapping[str, str]) -> str | None:
    """Return cluster, job and step as one text, the same before and after a requeue; None outside a step."""
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    if not job or not step:
        return None
    return ".".join((environ.get("SLURM_CLUSTER_NAME") or "cluster", job, step))
