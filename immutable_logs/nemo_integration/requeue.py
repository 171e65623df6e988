"""Lightning's own checkpoint of a requeued Slurm job, in a place that the requeued job finds and no other does.

Lightning looks for ``hpc_ckpt_N.ckpt`` in ``trainer.default_root_dir`` and saves it there. That is the run directory,
where the requeued job, in its fresh one, would not find it; in the experiment any later job would load another's.
"""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from immutable_logs import durable_files
from immutable_logs.launchers.slurm import step_name

if TYPE_CHECKING:
    from pathlib import Path

    from immutable_logs.layout import ExperimentLayout

_log = logging.getLogger(__name__)


def requeue_directory(layout: ExperimentLayout, call: int) -> Path | None:
    """Return the directory for this Slurm step, the same before and after a requeue; None outside of a step."""
    step = step_name(os.environ)
    return None if step is None else layout.requeue / f"{step}-{call}".replace(os.sep, "_")


def redirect_requeue(connector: Any, layout: ExperimentLayout, directory: Path) -> None:
    """Make one trainer's checkpoint connector look for and save its requeue checkpoints in a directory.

    Args:
        connector: The trainer's ``_checkpoint_connector``.
        layout: The experiment.
        directory: Where the checkpoints go; made when the first is saved.
    """
    stock: Any = type(connector)

    class RequeueConnector(stock):
        @property
        def _hpc_resume_path(self) -> str | None:
            view = stock.__new__(stock)
            view.trainer = SimpleNamespace(default_root_dir=str(directory))
            return cast("str | None", view._hpc_resume_path)

        def hpc_save_path(self, folderpath: Any) -> str:
            try:
                durable_files.create_directory(directory, like=layout.path)
            except OSError as error:
                # The job has no time left: a checkpoint in the wrong place is worth more than none.
                _log.warning(
                    "The requeue checkpoint is saved in %s, where the requeued job does not look for it, since its "
                    "directory cannot be made: %s. HINT: make it, and move the checkpoint there",
                    folderpath,
                    error,
                )
                return cast("str", stock.hpc_save_path(str(folderpath)))
            return cast("str", stock.hpc_save_path(str(directory)))

    RequeueConnector.__name__ = stock.__name__
    RequeueConnector.__qualname__ = stock.__qualname__
    connector.__class__ = RequeueConnector
