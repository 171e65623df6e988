"""One call of ``exp_manager``: as stock, or under the immutable layout.

Under the immutable layout NeMo's own code runs, over a copy of its module's names in which a few are replaced by the
methods of `_Session`. Nothing global is patched and nothing has to be put back.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from omegaconf import DictConfig

from immutable_logs.errors import ConfigurationError
from immutable_logs.layout import ExperimentLayout
from immutable_logs.lineage import find_origin
from immutable_logs.nemo_integration.activation import (
    EXP_MANAGER_MODULE,
    error_checks_shim,
    exp_manager_shim,
    nemo_logger_setup_shim,
)
from immutable_logs.nemo_integration.log_handlers import detach_handlers
from immutable_logs.nemo_integration.placement import OsStandIn, Placement, decide_placement
from immutable_logs.nemo_integration.requeue import redirect_requeue, requeue_directory
from immutable_logs.nemo_integration.run_end import watch_sigterm
from immutable_logs.nemo_integration.schema import copy_schema
from immutable_logs.nemo_integration.settings import (
    IMMUTABLE,
    LAYOUT_VARIABLE,
    LOG_EVERY_RANK,
    LOG_LAYOUT,
    MOVING,
    explicit_layout,
    requested_layout,
    resolved,
    without_our_keys,
)
from immutable_logs.nemo_integration.steering import steered_by, stock_function
from immutable_logs.run import Run, begin_run, current_launch, never_stopping_training, outcome_of

if TYPE_CHECKING:
    from pathlib import Path

    from immutable_logs.launch import Ranks

_log = logging.getLogger(__name__)

REPLACED_NAMES: Final = (
    "ExpManagerConfig",
    "get_log_dir",
    "check_resume",
    "configure_loggers",
    "configure_checkpointing",
    "get_git_hash",
    "get_envbool",
    "is_global_rank_zero",
    "logging",
    "os",
)
"""What NeMo's code sees another thing under; a NeMo without one of them is not supported."""

_TESTING_VARIABLE: Final = "NEMO_TESTING"

_stock_schemas: Final[dict[type[Any], type[Any]]] = {}


@dataclass(slots=True)
class _ProcessState:
    """What outlives a call.

    Attributes:
        previous_run: The run that this process started last.
        has_warned_of_nemo_logger: Whether the one warning has been given.
    """

    previous_run: Run | None = None
    has_warned_of_nemo_logger: bool = False


_state: Final = _ProcessState()


def remember_schema(module: Any) -> None:
    """Keep a copy of NeMo's schema as it was, for NeMo's own code."""
    if module.ExpManagerConfig not in _stock_schemas:
        _stock_schemas[module.ExpManagerConfig] = copy_schema(module.ExpManagerConfig)


def exp_manager(trainer: Any, cfg: Any) -> Path | None:
    """Do what a call of NeMo's ``exp_manager`` asks for.

    Returns:
        The run directory; under the moving layout what stock returns.

    Raises:
        ConfigurationError: If ``log_layout`` has an unknown value.
        LaunchDetectionError: If it cannot be known which launch or rank this is.
        AgreementError: If no fresh run directory can be had.
        Exception: Whatever stock raises.
    """
    module = sys.modules[EXP_MANAGER_MODULE]
    if cfg is None or requested_layout(cfg, os.environ) == MOVING or trainer.fast_dev_run:
        schema = {"ExpManagerConfig": _stock_schema(module)}
        log_dir: Path | None = stock_function(steered_by(exp_manager_shim), schema)(trainer, without_our_keys(cfg))
        return log_dir
    if not isinstance(cfg, (dict, DictConfig)):
        # Stock refuses it, in its own words.
        return cast("None", stock_function(steered_by(exp_manager_shim))(trainer, cfg))
    return _Session(module, trainer, resolved(cfg)).run_stock_code()


def error_checks(trainer: Any, cfg: Any) -> Any:
    """Run stock's checks, and refuse a copy of ``exp_manager`` that would take our key and move files all the same."""
    if explicit_layout(cfg) == IMMUTABLE:
        raise ConfigurationError(
            LOG_LAYOUT,
            IMMUTABLE,
            "exp_manager.log_layout is 'immutable', but this copy of exp_manager moves files\n"
            "HINT: call nemo.utils.exp_manager.exp_manager, and immutable_logs.enable() again after a reload",
        )
    return stock_function(steered_by(error_checks_shim))(trainer, cfg)


def nemo_logger_setup(self: Any, *arguments: Any) -> Any:
    """Run stock's ``NeMoLogger.setup``, and say once that the layout does not reach it."""
    if os.environ.get(LAYOUT_VARIABLE) == IMMUTABLE and not _state.has_warned_of_nemo_logger:
        _state.has_warned_of_nemo_logger = True
        _log.warning(
            "%s=immutable has no effect on NeMoLogger, which moves old files as ever; it reaches exp_manager alone",
            LAYOUT_VARIABLE,
        )
    return stock_function(steered_by(nemo_logger_setup_shim))(self, *arguments)


def _stock_schema(module: Any) -> type[Any]:
    schema: type[Any] = module.ExpManagerConfig
    return _stock_schemas.get(schema, schema)


class _RankLogging:
    """NeMo's logger object, with the true ranks: stock computes them from a variable that ``srun`` does not set."""

    def __init__(self, stock: Any, session: _Session) -> None:
        self.__dict__.update(_stock=stock, _session=session)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._stock, name, self._session.ranks.global_rank if name == "rank" else value)

    def add_file_handler(self, log_file: Any) -> None:
        ranks = self._session.ranks
        layout = ExperimentLayout(self._session.joined_run.experiment).run(self._session.joined_run.id)
        self._stock.add_file_handler(layout.rank_log(ranks.global_rank, ranks.local_rank))


class _Session:
    """One call under the immutable layout; the methods without an underscore stand for NeMo's names."""

    def __init__(self, module: Any, trainer: Any, configuration: dict[str, Any]) -> None:
        self._module = module
        self._trainer = trainer
        self._configuration = configuration
        self._log_every_rank: bool | None = configuration.get(LOG_EVERY_RANK)
        self._placement: Placement | None = None
        self._run: Run | None = None
        self._git_commit: str | None = None
        self._is_requeue_redirected = False
        self.ranks: Ranks = current_launch(ranks_per_node=trainer.num_devices).ranks

    @property
    def joined_run(self) -> Run:
        if self._run is None:
            raise RuntimeError("NeMo's exp_manager used the log directory before it asked for it")
        return self._run

    def run_stock_code(self) -> Path:
        """Run NeMo's own code, then publish the run; a start that fails is recorded as failed."""
        cfg = without_our_keys(self._configuration)
        if self._log_every_rank is False and "log_global_rank_0_only" in self._module.ExpManagerConfig.__annotations__:
            cfg["log_global_rank_0_only"], cfg["log_local_rank_0_only"] = True, False
        stock = stock_function(
            steered_by(exp_manager_shim),
            {
                "ExpManagerConfig": _stock_schema(self._module),
                "os": OsStandIn({"LOCAL_RANK": str(self.ranks.local_rank)}),
                "logging": _RankLogging(self._module.logging, self),
                "is_global_rank_zero": lambda: self.ranks.global_rank == 0,
                "get_envbool": self.get_envbool,
                "get_log_dir": self.get_log_dir,
                "check_resume": self.check_resume,
                "configure_loggers": self.configure_loggers,
                "configure_checkpointing": self.configure_checkpointing,
                "get_git_hash": self.get_git_hash,
                "FaultToleranceCallback": self.fault_tolerance_callback,
            },
        )
        try:
            stock(self._trainer, cfg)
            self._attach(self.joined_run)
        except BaseException as error:
            if self._run is not None:
                self._record(self._run)
                self._run.finish(outcome_of(error), error=error)
            raise
        self._record(self.joined_run)
        self.joined_run.publish()
        return self.joined_run.path

    def get_log_dir(self, trainer: Any, **arguments: Any) -> tuple[Path, str, str | None, str | None]:
        """Join the run of this launch, and return its directory as the log directory."""
        place = decide_placement(self._module.get_log_dir, trainer, arguments)
        self._placement = place
        self._run = begin_run(place.experiment, ranks_per_node=trainer.num_devices)
        self._leave_previous_run(self._run)
        return self._run.path, place.exp_dir, place.name, self._run.id if place.is_fresh else place.version

    def check_resume(self, *arguments: Any, **keywords: Any) -> Any:
        """Find the checkpoint to resume from, as stock; given a path that does not exist it moves nothing."""
        stock = self._module.check_resume
        bound = inspect.signature(stock).bind(*arguments, **keywords)
        bound.arguments["log_dir"] = self.joined_run.path / ".nothing-to-move"
        if not bound.arguments.get("dirpath"):
            bound.arguments["dirpath"] = str(self._checkpoint_home / "checkpoints")
        return stock(*bound.args, **bound.kwargs)

    def configure_loggers(self, *arguments: Any, **keywords: Any) -> Any:
        """Make the loggers as stock; TensorBoard's writes into the run directory."""

        def make_tensorboard_logger(*, save_dir: Any, name: Any, version: Any, **others: Any) -> Any:
            # As stock does for `explicit_log_dir`: empty names below the directory itself.
            return self._module.TensorBoardLogger(save_dir=str(self.joined_run.path), name="", version="", **others)

        stock = stock_function(self._module.configure_loggers, {"TensorBoardLogger": make_tensorboard_logger})
        return stock(*arguments, **keywords)

    def configure_checkpointing(self, trainer: Any, log_dir: Any, *arguments: Any, **keywords: Any) -> Any:
        """Make the checkpoint callback as stock, with the directory that stock would use."""
        return self._module.configure_checkpointing(trainer, self._checkpoint_home, *arguments, **keywords)

    def get_envbool(self, name: str, *default: Any) -> Any:
        """Answer for ``NEMO_TESTING``, which makes every rank write a log, as ``log_every_rank`` says."""
        if name == _TESTING_VARIABLE and self._log_every_rank is not None:
            return self._log_every_rank
        return self._module.get_envbool(name, *default)

    def get_git_hash(self) -> Any:
        """Ask git as stock does, and keep the answer for our record."""
        is_known, answer = self._module.get_git_hash()
        self._git_commit = answer.strip() if is_known else None
        return is_known, answer

    def fault_tolerance_callback(self, *, exp_dir: Any, **others: Any) -> Any:
        """Make the callback for the directory that stock would give it: it keeps its state there between runs."""
        home = self._placement.checkpoint_home if self._placement else None
        return self._module.FaultToleranceCallback(exp_dir=home.parent if home else exp_dir, **others)

    @property
    def _checkpoint_home(self) -> Path:
        home = self._placement.checkpoint_home if self._placement else None
        return home or self.joined_run.path

    def _leave_previous_run(self, run: Run) -> None:
        """End the run that this process started before: its log files must not receive the lines of this one."""
        previous, _state.previous_run = _state.previous_run, run
        if previous is not None:
            detach_handlers(self._module.logging, self._module.lightning.pytorch._logger, previous.path)
            previous.finish()

    def _attach(self, run: Run) -> None:
        """Give the trainer what it needs while it runs: our callback, and its own place for requeue checkpoints."""
        from lightning.pytorch.plugins.environments import SLURMEnvironment

        layout = ExperimentLayout(run.experiment)
        directory = requeue_directory(layout, run.launch.call)
        if directory is not None and SLURMEnvironment.detect():
            redirect_requeue(self._trainer._checkpoint_connector, layout, directory)
            self._is_requeue_redirected = True
        if run.keeps_records:
            with never_stopping_training("find out what is continued by", run):
                run.origin = find_origin(layout, run.id, self._checkpoint())
            watch_sigterm()
        from immutable_logs.nemo_integration.callback import RunCallback

        self._trainer.callbacks.insert(0, RunCallback(run.id, str(run.experiment), run.origin.lineage))

    def _checkpoint(self) -> str | None:
        """Return the checkpoint that the trainer will start from, as far as it is known now."""
        found = self._trainer.ckpt_path
        if not found and self._is_requeue_redirected:
            found = self._trainer._checkpoint_connector._hpc_resume_path
        return str(found) if found else None

    def _record(self, run: Run) -> None:
        if not run.keeps_records:
            return
        with never_stopping_training("describe", run):
            # Lightning's base class of checkpoint callbacks has no `dirpath`.
            homes = (getattr(each, "dirpath", None) for each in self._trainer.checkpoint_callbacks)
            run.record(
                configuration=self._configuration,
                checkpoint=self._checkpoint(),
                checkpoints=next(filter(None, homes), None),
                origin=run.origin,
                world_size=self.ranks.world_size or self._trainer.num_nodes * self._trainer.num_devices,
                git_commit=self._git_commit,
            )
