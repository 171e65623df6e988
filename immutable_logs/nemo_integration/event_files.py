"""One continuous TensorBoard curve over resumed runs: links to their event files, and a mark where each begins."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from immutable_logs import durable_files

if TYPE_CHECKING:
    from immutable_logs.layout import ExperimentLayout

_log = logging.getLogger(__name__)

_EVENT_FILE: Final = "events.out.tfevents"
_ORDINAL: Final = re.compile(r"(\d+)_")


def link_event_files(layout: ExperimentLayout, lineage: str, run_id: str) -> None:
    """Link every event file of a run that has no link yet into the directory of its lineage.

    An ordinal stands before the name: a loader that is reading already drops a file that sorts before the last one,
    as happens after a clock that was behind. Links are relative; made when the file is there, so that none dangles.

    Args:
        layout: The experiment.
        lineage: The first run of the chain.
        run_id: The run.

    Raises:
        OSError: If the file system refuses.
    """
    files = sorted(entry.name for entry in os.scandir(layout.run(run_id).path) if entry.name.startswith(_EVENT_FILE))
    directory = layout.lineage(lineage)
    if not files:
        return
    durable_files.create_directory(directory, like=layout.path)
    present = [entry.name for entry in os.scandir(directory)]
    linked = {_ORDINAL.sub("", name, count=1) for name in present}
    ordinal = max((int(match.group(1)) for match in map(_ORDINAL.match, present) if match), default=0)
    for name in files:
        if name in linked:
            continue
        text = os.path.relpath(layout.run(run_id).path / name, directory)
        while True:
            ordinal += 1
            if durable_files.create_link(text, directory / f"{ordinal:04d}_{name}"):
                break


def mark_session_start(trainer: Any, directory: Path) -> None:
    """Write a session start into the event file of a trainer whose logger writes into a directory.

    TensorBoard then drops the points that an earlier run of the lineage wrote from that step on. Every run needs one,
    the first too: the server's loader ignores the first start that it sees in a directory.
    """
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from torch.utils.tensorboard import SummaryWriter

    step = _first_own_step(trainer)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and Path(logger.log_dir) == directory:
            writer = logger.experiment
            if isinstance(writer, SummaryWriter):
                event = Event(session_log=SessionLog(status=SessionLog.START))
                writer._get_file_writer().add_event(event, step)
                writer.flush()


def _first_own_step(trainer: Any) -> int:
    """Return the step from which on the points of earlier runs are another's, on the axis that Lightning logs on.

    A checkpoint saved at the end of a fit holds the number of steps done: the next point is the first one that is
    ours. One saved during a validation holds one less, since Lightning counts the step after it, and the validation's
    own points carry that number: they stay, and so does the training point beside them, which Lightning logs again.
    """
    stepped = int(trainer.fit_loop.epoch_loop._batches_that_stepped)
    return stepped if stepped in (0, int(trainer.global_step)) else stepped + 1
