"""The Lightning callback that tells how a run goes and ends.

Imports NeMo, so it is loaded only when ``exp_manager`` runs. It carries plain text alone: strategies that spawn
processes pickle the callbacks.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from nemo.utils.exp_manager import Callback

from immutable_logs.layout import ExperimentLayout
from immutable_logs.nemo_integration.event_files import link_event_files, mark_session_start
from immutable_logs.run import open_run, outcome_of

_log = logging.getLogger(__name__)


class RunCallback(Callback):
    """Note the last step, record exceptions, and keep the event files of a lineage together.

    Attributes:
        run_id: The run.
        experiment: The experiment directory.
        lineage: The first run of the chain.
    """

    def __init__(self, run_id: str, experiment: str, lineage: str) -> None:
        """Hold texts only."""
        super().__init__()
        self.run_id = run_id
        self.experiment = experiment
        self.lineage = lineage

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Mark the start in the event file and link it."""
        if not trainer.is_global_zero:
            return
        layout = ExperimentLayout(Path(self.experiment))
        try:
            mark_session_start(trainer, layout.run(self.run_id).path)
            link_event_files(layout, self.lineage, self.run_id)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong here, the training goes on
            _log.warning("The event files of run %s could not be linked: %s. Training goes on", self.run_id, error)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Record that a fit ended by an exception, a signal or Ctrl-C."""
        run = open_run(self.run_id)
        if run is not None:
            run.note_step(int(trainer.global_step))
            run.finish(outcome_of(exception), error=exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Note the step that a fit has reached; the script may go on, so this is not the end of the run."""
        run = open_run(self.run_id)
        if run is not None and stage == "fit":
            run.note_step(int(trainer.global_step))
