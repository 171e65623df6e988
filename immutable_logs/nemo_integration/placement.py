"""Where things go under the immutable layout, for every way in which NeMo can be told a log directory."""

from __future__ import annotations

import os
from collections import ChainMap
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from immutable_logs.layout import ExperimentLayout
from immutable_logs.nemo_integration.activation import INITIAL_NEMO_VERSION
from immutable_logs.nemo_integration.steering import stock_function

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Placement:
    """Where stock NeMo would put a run, and the experiment that makes of it.

    Attributes:
        experiment: The directory that holds ``runs/``.
        checkpoint_home: The directory whose ``checkpoints/`` the run uses; None if in the run directory itself.
        exp_dir: Stock's base directory.
        name: Stock's name.
        version: Stock's version; None if there is none, and if stock would make a fresh one.
        is_fresh: Whether stock would make a fresh version each time.
    """

    experiment: Path
    checkpoint_home: Path | None
    exp_dir: str
    name: str | None
    version: str | None
    is_fresh: bool


class OsStandIn:
    """The `os` module with a few environment variables changed, for NeMo's code alone."""

    def __init__(self, changes: dict[str, str | None]) -> None:
        """Set what is a text, hide what is None."""
        hidden = {name for name, value in changes.items() if value is None}
        visible = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environ = ChainMap({name: value for name, value in changes.items() if value is not None}, visible)

    def __getattr__(self, name: str) -> Any:
        """Be `os` in everything else."""
        return getattr(os, name)


def decide_placement(stock_get_log_dir: Callable[..., Any], trainer: Any, arguments: dict[str, Any]) -> Placement:
    """Return where a run goes.

    Stock's own function is asked as if it resumed: then it gives the directory that stock would use again, and
    exports nothing.

    Args:
        stock_get_log_dir: NeMo's ``get_log_dir``.
        trainer: The trainer.
        arguments: What NeMo passes to that function beside the trainer.

    Raises:
        nemo.utils.exp_manager.LoggerMisconfigurationError: As stock.
    """
    has_logger = trainer.logger is not None and not arguments.get("explicit_log_dir")
    is_fresh = not (
        arguments.get("explicit_log_dir")
        or arguments.get("resume_if_exists")
        or has_logger
        or arguments.get("version")
        or INITIAL_NEMO_VERSION
    )
    replacements: dict[str, Any] = {"os": OsStandIn({"NEMO_EXPM_VERSION": INITIAL_NEMO_VERSION})}
    if is_fresh:
        # Stock would say that `resume_if_exists` is on, which it is not.
        replacements["logging"] = SimpleNamespace(warning=lambda *_, **__: None)
    asked = stock_function(stock_get_log_dir, replacements)
    log_dir, exp_dir, name, version = asked(trainer=trainer, **{**arguments, "resume_if_exists": True})
    # `version_N` of a logger that the user made can differ between ranks, so it is no part of the experiment.
    experiment = Path(exp_dir) / str(name) if has_logger else Path(log_dir)
    # Without `..`: stock makes every directory on the way, and finds no checkpoint through one that is not there.
    checkpoint_home = None if is_fresh else ExperimentLayout.of(log_dir).path
    return Placement(experiment, checkpoint_home, exp_dir, name, version, is_fresh)
