"""Which launch, and which rank of it, this process is.

A *launch* is one start of a job's processes. All of its ranks must come to the same launch key, and two launches
should not, from what their launcher put into the environment alone. The sources, in this order; the first that applies
wins:

1. a child of Lightning's own launcher takes its parent's key (`launchers.lightning`)
2. ``IMMUTABLE_LOGS_LAUNCH_ID``, set by the user, the same on all ranks and another for each launch
3. torchrun: a token agreed through the agent's store (`launchers.torchrun`)
4. Open MPI's ``mpirun``, PALS, Flux, ``jsrun``: the launcher's own id (`launchers.mpi`)
5. a Slurm step (`launchers.slurm`)
6. ``RANK`` or ``NODE_RANK`` with ``MASTER_ADDR`` and ``MASTER_PORT`` (`launchers.master_address`)
7. nothing: a random token, for a single process or the parent of Lightning's launcher; one of several ranks is refused

``mpirun`` stands before Slurm because inside a Slurm job the processes that it starts carry the Slurm variables of
the daemons that started them, on the first node others than on the rest.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from immutable_logs.errors import LaunchDetectionError
from immutable_logs.launch import LAUNCH_ID_VARIABLE, Launch, format_key
from immutable_logs.launchers import lightning, master_address, mpi, slurm, torchrun
from immutable_logs.launchers.ranks import detect_ranks, has_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from immutable_logs.launch import Ranks


_MAX_EXPORTED: Final = 16
"""Runs of a process that its environment tells of; Lightning starts its children at the first `fit`."""


def detect_launch(
    environ: Mapping[str, str],
    *,
    parent_pid: int,
    new_token: Callable[[], str],
    ranks_per_node: int | None = None,
) -> Launch:
    """Return the launch that an environment tells of.

    Args:
        environ: The environment as the launcher left it: Lightning alters it later.
        parent_pid: The parent process, to recognise a child of Lightning's launcher.
        new_token: Makes a random text.
        ranks_per_node: How many ranks run on a node, where the caller knows and the environment may not.

    Raises:
        LaunchDetectionError: If a launcher is recognised, but not the launch or the rank.
    """
    child = lightning.detect(environ, parent_pid, ranks_per_node)
    if child is not None:
        return child
    ranks = detect_ranks(environ, ranks_per_node)
    if environ.get(LAUNCH_ID_VARIABLE):
        found = _launch_of_the_user(environ, ranks)
    else:
        found = (
            torchrun.detect(environ, ranks, new_token)
            or mpi.detect(environ, ranks)
            or slurm.detect(environ, ranks)
            or master_address.detect(environ, ranks)
            or _launch_of_one_process(environ, ranks, new_token)
        )
    key = found.key if ranks.world_size is None else f"{found.key} world={ranks.world_size}"
    return replace(found, key=key, job=environ.get("SLURM_JOB_ID") or environ.get("LSB_JOBID"))


def _launch_of_the_user(environ: Mapping[str, str], ranks: Ranks) -> Launch:
    """Return the launch that the user's id names; workers that torchrun starts anew inherit it from those before."""
    key, is_unique = ["id", environ[LAUNCH_ID_VARIABLE]], True
    if torchrun.is_worker(environ):
        restart, is_unique = torchrun.restart_of(environ)
        key += ["restart", restart] if restart not in ("", "0") else []
    return Launch(
        key=format_key(*key), unique=is_unique, ranks=ranks, source=LAUNCH_ID_VARIABLE, caution=torchrun.CAUTION
    )


def _launch_of_one_process(environ: Mapping[str, str], ranks: Ranks, new_token: Callable[[], str]) -> Launch:
    """Return a launch of its own; one of several ranks is refused, since each would take itself for a launch.

    So it is with MPICH's Hydra outside a Slurm step, which gives no id, and where ``MASTER_ADDR`` was not handed on.
    """
    if has_rank(environ) and (ranks.global_rank > 0 or (ranks.world_size or 1) > 1):
        among = f"rank {ranks.global_rank}" + (f" of {ranks.world_size}" if ranks.world_size else "")
        raise LaunchDetectionError(
            "environment",
            f"this is {among}, and nothing in the environment tells which launch that is, so that the ranks cannot "
            f"settle on one run\nHINT: set {LAUNCH_ID_VARIABLE} to the same text on all ranks, another for each "
            f"launch, for example {LAUNCH_ID_VARIABLE}=$(date +%s.%N) mpirun …",
        )
    return Launch(key=format_key("single", new_token()), unique=True, ranks=ranks, source="single process")


class ProcessLaunch:
    """The launch of this process, read once, and how many runs it has started in each experiment.

    Read once, at the first call, because Lightning alters the environment while it trains; anew in a forked child.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._pid = -1
        self._launch: Launch | None = None
        self._calls: dict[str, int] = {}
        self._first_experiments: list[str] = []

    def current(self, *, ranks_per_node: int | None = None) -> Launch:
        """Return the launch of this process.

        Args:
            ranks_per_node: As for `detect_launch`.

        Raises:
            LaunchDetectionError: As `detect_launch`.
        """
        if self._launch is None or self._pid != os.getpid():
            self._launch = detect_launch(
                os.environ,
                parent_pid=os.getppid(),
                new_token=lambda: os.urandom(8).hex(),
                ranks_per_node=ranks_per_node,
            )
            self._pid = os.getpid()
            self._calls = {}
            self._first_experiments = []
            lightning.export(os.environ, self._launch, self._pid)
        return self._launch

    def next_call(self, experiment: str, *, ranks_per_node: int | None = None) -> Launch:
        """Return the launch for the next run of this process in an experiment, named by its absolute path.

        Raises:
            LaunchDetectionError: As `detect_launch`; or if the parent in Lightning's launcher has come this far
                without a run in that experiment, so that this rank would be alone there.
        """
        launch = self.current(ranks_per_node=ranks_per_node)
        parents = launch.parents_experiments
        if sum(self._calls.values()) < len(parents) and experiment not in parents:
            raise LaunchDetectionError(
                launch.source,
                f"rank {launch.ranks.global_rank} was to start a run in {experiment}, but the process that started it "
                f"has its runs in {', '.join(sorted(set(parents)))}\n"
                "HINT: the experiment must be the same on all ranks; ${now:...} and random names are made anew in "
                "each of them, while ${hydra:run.dir} and a name given on the command line are not",
            )
        self._calls[experiment] = self._calls.get(experiment, 0) + 1
        if len(self._first_experiments) < _MAX_EXPORTED:
            self._first_experiments.append(experiment)
            lightning.export(os.environ, launch, self._pid, self._first_experiments)
        return launch.numbered(self._calls[experiment])
