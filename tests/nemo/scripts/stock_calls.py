"""Call NeMo's `exp_manager` in many ways, and write down everything that can be seen of it, as one JSON document.

Started as `stock_calls.py DIRECTORY DOCUMENT [LAYOUT]`. Knows nothing of this project but the name of the key that
LAYOUT is given as; two processes, one without our distribution, must write equal documents.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import nemo.utils
import pathlib2
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.loggers import TensorBoardLogger
from nemo.utils import exp_manager as module
from nemo.utils.app_state import AppState
from nemo.utils.callbacks import NeMoModelCheckpoint
from omegaconf import DictConfig, ListConfig, OmegaConf

Key = Mapping[Any, Any]
MakeConfiguration = Callable[[Path, Key], Any]

REFUSALS: list[tuple[str, int | None]] = []
"""Where in NeMo's module every exception came up."""

_QUIET: dict[Any, Any] = {"exp_dir": "exp", "create_tensorboard_logger": False, "create_checkpoint_callback": False}
_SITE = Path(nemo.utils.__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """Some launches of one configuration in one directory.

    Attributes:
        cfg: Makes the configuration from the directory and the key.
        trainer: Makes the arguments of the trainer.
        environ: Variables that the user has set.
        files: Made, empty, before the first launch.
        launches: How many.
        pause: Seconds between two launches, where the clock gives a name.
        is_one_process: Later launches see what the earlier ones left in the environment.
        fits: Train, too.
    """

    cfg: MakeConfiguration
    trainer: Callable[[], dict[str, Any]] = dict
    environ: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    launches: int = 1
    pause: float = 0.0
    is_one_process: bool = False
    fits: bool = False


def _flat(**keys: Any) -> MakeConfiguration:
    return lambda here, key: {"exp_dir": f"{here}/exp", **keys, **key}


def _resume(**keys: Any) -> MakeConfiguration:
    return _flat(name="tiny", resume_if_exists=True, **keys)


def _bare(**keys: Any) -> MakeConfiguration:
    return lambda _, key: {**keys, **key}


def _logger() -> dict[str, Any]:
    return {"logger": TensorBoardLogger(save_dir=str(Path.cwd() / "own"), name="mine")}


def _in_tree(here: Path, key: Key) -> Any:
    tree = OmegaConf.create(
        {"root": str(here), "exp_manager": {"exp_dir": "${root}/exp", "name": "${.exp_dir}", **key}}
    )
    OmegaConf.set_struct(tree, True)
    OmegaConf.set_readonly(tree, True)
    return tree.exp_manager


def _unresolvable(here: Path, key: Key) -> Any:
    return OmegaConf.create({"exp_manager": {"exp_dir": "${nowhere}", **key}}).exp_manager


def _structured(here: Path, key: Key) -> Any:
    return OmegaConf.structured(module.ExpManagerConfig(exp_dir=f"{here}/exp", name="typed", **key))


PLACEMENTS = {
    "explicit_log_dir": Case(lambda here, key: {"explicit_log_dir": f"{here}/log", **key}, launches=2),
    "explicit_log_dir, resumed": Case(
        lambda here, key: {
            "explicit_log_dir": f"{here}/log",
            "name": "n",
            "resume_if_exists": True,
            "resume_ignore_no_checkpoint": True,
            **key,
        },
        launches=3,
    ),
    "explicit_log_dir and exp_dir": Case(_flat(explicit_log_dir="log", version="v")),
    "version": Case(_flat(name="tiny", version="v7"), launches=2),
    "version, resumed": Case(_resume(version="v7", resume_ignore_no_checkpoint=True), launches=2),
    "version of the environment": Case(_flat(name="tiny"), environ={"NEMO_EXPM_VERSION": "from_user"}, launches=2),
    "empty version of the environment": Case(_flat(use_datetime_version=False), environ={"NEMO_EXPM_VERSION": ""}),
    "resumed": Case(_resume(resume_ignore_no_checkpoint=True), files=("exp/tiny/old.txt",), launches=3),
    "fresh, by the clock": Case(_flat(name="tiny"), launches=2, pause=1.1),
    "fresh, by the clock, in one process": Case(_flat(name="tiny"), launches=2, is_one_process=True),
    "fresh, by number": Case(_flat(name="tiny", use_datetime_version=False), launches=3),
    "no directory and no name": Case(_bare(use_datetime_version=False), launches=2),
    "relative directory": Case(_bare(exp_dir="exp", use_datetime_version=False), launches=2),
    "logger of the user": Case(_bare(create_tensorboard_logger=False), _logger, launches=2),
    "logger without a directory": Case(
        _flat(create_tensorboard_logger=False), lambda: {"logger": pl.loggers.CSVLogger(save_dir="")}
    ),
    "dirpath": Case(
        lambda here, key: {
            "exp_dir": f"{here}/exp",
            "resume_if_exists": True,
            "resume_ignore_no_checkpoint": True,
            "checkpoint_callback_params": {"dirpath": f"{here}/elsewhere", "save_top_k": 1},
            **key,
        },
        launches=2,
    ),
    "rank logs": Case(_resume(resume_ignore_no_checkpoint=True), environ={"NEMO_TESTING": "True"}, launches=2),
    "a training": Case(
        _resume(resume_ignore_no_checkpoint=True, checkpoint_callback_params={"save_nemo_on_train_end": False}),
        launches=2,
        fits=True,
    ),
}

FORMS = {
    "nothing": Case(lambda here, key: None),
    "an empty dict": Case(_bare(**_QUIET)),
    "a DictConfig": Case(lambda here, key: OmegaConf.create({**_QUIET, **key})),
    "a DictConfig in a tree": Case(_in_tree),
    "a structured one": Case(_structured),
    "a schema class": Case(lambda here, key: OmegaConf.structured(module.ExpManagerConfig)),
    "a merged structured one": Case(
        lambda here, key: OmegaConf.merge(OmegaConf.structured(module.ExpManagerConfig), {**_QUIET, **key})
    ),
    "a dict with a DictConfig in it": Case(_flat(checkpoint_callback_params=OmegaConf.create({"save_top_k": 1}))),
    "a dict with an interpolation": Case(_flat(name="${exp_dir}/x", version="1")),
    "a DictConfig that is null": Case(lambda here, key: DictConfig(None)),
    "a DictConfig that is missing": Case(lambda here, key: DictConfig("???")),
    "a DictConfig that is an interpolation": Case(lambda here, key: DictConfig("${nowhere}")),
    "a DictConfig that cannot be resolved": Case(_unresolvable),
    "a missing value": Case(lambda here, key: OmegaConf.create({"exp_dir": "???", **key})),
    "a list": Case(lambda here, key: [1]),
    "a ListConfig": Case(lambda here, key: ListConfig([1])),
    "a text": Case(lambda here, key: "log_layout"),
    "a number": Case(lambda here, key: 0),
    "an instance of the schema": Case(lambda here, key: module.ExpManagerConfig(exp_dir="exp", **key)),
    "pathlib": Case(lambda here, key: {"exp_dir": here / "exp", "name": "n", "version": "v", **key}),
    "pathlib2": Case(lambda here, key: {"exp_dir": pathlib2.Path(str(here)) / "exp", **key}),
    "pathlib2 in a DictConfig": Case(
        lambda here, key: DictConfig({"exp_dir": pathlib2.Path("exp"), **key}, flags={"allow_objects": True})
    ),
    "nested pathlib2": Case(_flat(checkpoint_callback_params={"dirpath": pathlib2.Path("exp")})),
    "fast_dev_run": Case(_flat(foo=1), lambda: {"fast_dev_run": True}),
}

OPTIONS = {
    "every callback": Case(
        _flat(
            version="v",
            ema={"enable": True},
            create_early_stopping_callback=True,
            create_ipl_epoch_stopper_callback=True,
            log_delta_step_timing=True,
            max_time_per_run="00:00:10:00",
            disable_validation_on_resume=False,
            log_tflops_per_sec_per_gpu=False,
        )
    ),
    "no callback": Case(_flat(version="v", log_step_timing=False, create_checkpoint_callback=False)),
    "a timer": Case(_flat(version="v", max_time_per_run="00:00:10:00"), lambda: {"callbacks": [Timer("00:01:00:00")]}),
    "files_to_copy": Case(_flat(version="v", files_to_copy=["a.txt"]), files=("a.txt",)),
    "summary_writer_kwargs": Case(_flat(version="v", summary_writer_kwargs={"flush_secs": 1, "max_queue": 2})),
    "wandb": Case(
        _flat(
            version="v", create_wandb_logger=True, wandb_logger_kwargs={"name": "n", "project": "p", "offline": True}
        ),
        launches=2,
    ),
    "max_steps": Case(_flat(version="v"), lambda: {"max_steps": 5}),
    "two nodes": Case(_flat(version="v"), lambda: {"num_nodes": 2}),
    "two devices": Case(_flat(version="v"), lambda: {"devices": 2, "strategy": "ddp"}),
    "the second rank": Case(
        _flat(version="v", seconds_to_sleep=0.01),
        lambda: {"devices": 2, "strategy": "ddp"},
        environ={"LOCAL_RANK": "1", "RANK": "1", "NEMO_TESTING": "1"},
    ),
    "the last checkpoint": Case(_resume(), files=("exp/tiny/checkpoints/tiny-last.ckpt",), launches=2),
    "the end checkpoint, past the end": Case(
        _resume(resume_past_end=True), files=("exp/tiny/checkpoints/tiny-end.ckpt",)
    ),
    "one of two last checkpoints unfinished": Case(
        _resume(),
        files=(
            "exp/tiny/checkpoints/a-last.ckpt",
            "exp/tiny/checkpoints/b-last.ckpt",
            "exp/tiny/checkpoints/b-last-unfinished",
        ),
    ),
    "a distributed checkpoint": Case(_resume(), files=("exp/tiny/checkpoints/tiny-last/shard",)),
    "resume_from_checkpoint": Case(_flat(version="v", resume_from_checkpoint="some.ckpt")),
    "filepath": Case(_flat(version="v", checkpoint_callback_params={"filepath": "some/where"})),
}

REFUSED = {
    "an unknown key": Case(_flat(foo=1)),
    "keys of NeMo 2 that exclude each other": Case(
        _flat(version="v", log_local_rank_0_only=True, log_global_rank_0_only=True)
    ),
    "a misspelt key of ours": Case(_flat(log_layot="immutable")),
    "an unknown nested key": Case(_flat(checkpoint_callback_params={"foo": 1})),
    "a key that is no text": Case(lambda here, key: {7: 1, **key}),
    "a wrong type": Case(_flat(resume_if_exists="perhaps")),
    "a number that is none": Case(_flat(seconds_to_sleep="long")),
    "a section that is a number": Case(_flat(checkpoint_callback_params=3)),
    "a section that is null": Case(_flat(checkpoint_callback_params=None)),
    "a null where none is allowed": Case(_flat(seconds_to_sleep=None)),
    "an unresolvable value": Case(_flat(name="${nowhere}")),
    "two loggers": Case(_bare(), _logger),
    "a logger and exp_dir": Case(_flat(create_tensorboard_logger=False), _logger),
    "a logger and a name": Case(_bare(name="n", create_tensorboard_logger=False), _logger),
    "a logger and explicit_log_dir": Case(_bare(explicit_log_dir="log", create_tensorboard_logger=False), _logger),
    "two checkpoint callbacks": Case(
        _flat(version="v"), lambda: {"callbacks": [ModelCheckpoint()], "enable_checkpointing": True}
    ),
    "no checkpoint": Case(_resume(), launches=2),
    "an end checkpoint": Case(
        _resume(resume_ignore_no_checkpoint=True), files=("exp/tiny/checkpoints/tiny-end.ckpt",), launches=2
    ),
    "two end checkpoints": Case(
        _resume(resume_past_end=True), files=("exp/tiny/checkpoints/a-end.ckpt", "exp/tiny/checkpoints/b-end.ckpt")
    ),
    "two last checkpoints": Case(
        _resume(), files=("exp/tiny/checkpoints/a-last.ckpt", "exp/tiny/checkpoints/b-last.ckpt")
    ),
    "an unfinished checkpoint": Case(
        _resume(), files=("exp/tiny/checkpoints/a-last.ckpt", "exp/tiny/checkpoints/a-last-unfinished")
    ),
    "an unfinished end checkpoint": Case(
        _resume(), files=("exp/tiny/checkpoints/a-end.ckpt", "exp/tiny/checkpoints/a-end-unfinished")
    ),
    "the writer's log_dir": Case(_flat(version="v", summary_writer_kwargs={"log_dir": "log"}), launches=2),
    "wandb without a name": Case(_flat(version="v", create_wandb_logger=True)),
    "neptune without a name": Case(_flat(version="v", create_neptune_logger=True)),
    "neptune without a key": Case(
        _flat(version="v", create_neptune_logger=True, neptune_logger_kwargs={"name": "n", "project": "p"})
    ),
    "mlflow": Case(_flat(name="tiny", version="v", create_mlflow_logger=True)),
    "dllogger": Case(_flat(version="v", create_dllogger_logger=True)),
    "clearml": Case(_flat(version="v", create_clearml_logger=True)),
    "straggler detection": Case(_flat(version="v", create_straggler_detection_callback=True)),
    "fault tolerance": Case(_flat(version="v", create_fault_tolerance_callback=True)),
    "a wrong time": Case(_flat(version="v", max_time_per_run="soon")),
    "a file that is not there": Case(_flat(version="v", files_to_copy=["nowhere.txt"])),
    "a log directory that is a file": Case(_bare(explicit_log_dir="log"), files=("log",)),
}

CASES = {**PLACEMENTS, **FORMS, **OPTIONS, **REFUSED}


class TinyModel(pl.LightningModule):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        """Pull the output to zero."""
        return self.layer(batch).pow(2).mean()

    def validation_step(self, batch: Any, index: int) -> None:
        """Log what the checkpoints are named after."""
        self.log("val_loss", self.layer(batch).pow(2).mean())

    def configure_optimizers(self) -> Any:
        """Use the simplest one."""
        return torch.optim.SGD(self.parameters(), 0.01)


HAS_OWN_PLACES = sys.version_info >= (3, 11)
"""Whether NeMo's messages name where they come from; before 3.11 it is the caller, which is a function of ours here.

What is promised says so.
"""


class Records(logging.Handler):
    """Keeps what is logged: level, place and text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        place = f"{Path(record.pathname).name}:{record.lineno} {record.funcName}"
        if record.name == "nemo_logger" and not HAS_OWN_PLACES:
            place = "<place>"
        self.lines.append(f"{record.name} {record.levelname} {place} {record.getMessage()}")


def run_case(case: Case, key: Key) -> list[dict[str, Any]]:
    """Launch a case in the working directory, as often as it says."""
    for name in case.files:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    initial = dict(os.environ)
    os.environ.update(case.environ)
    launches = []
    for number in range(case.launches):
        if number and not case.is_one_process:
            os.environ.clear()
            os.environ.update(initial, **case.environ)
            time.sleep(case.pause)
        launches.append(launch(case, key))
    os.environ.clear()
    os.environ.update(initial)
    return launches


def launch(case: Case, key: Key) -> dict[str, Any]:
    """Make a trainer and call `exp_manager` once."""
    pl.seed_everything(1)
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        **{"accelerator": "cpu", "devices": 1, "logger": False, "max_epochs": 1, **quiet, **case.trainer()}
    )
    cfg = case.cfg(Path.cwd(), key)
    text = repr(cfg)
    seen = observe(lambda: module.exp_manager(trainer, cfg))
    if case.fits:
        data = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)
        trainer.fit(TinyModel(), data, data)
    state = AppState()
    return {
        **seen,
        "is the configuration as it was": repr(cfg) == text,
        "state": {
            name: repr(getattr(state, name))
            for name in ("log_dir", "exp_dir", "name", "version", "checkpoint_name", "create_checkpoint_callback")
        },
        "checkpoint_callback_params": repr(state.checkpoint_callback_params),
        "default_root_dir": repr(trainer.default_root_dir),
        "ckpt_path": trainer.ckpt_path,
        "loggers": [[type(each).__name__, each.save_dir, each.name, each.version] for each in trainer.loggers],
        "callbacks": [f"{type(each).__module__}.{type(each).__qualname__}" for each in trainer.callbacks],
        "checkpoints": [
            [each.dirpath, each.filename, each.last_model_path, each.save_top_k]
            for each in trainer.checkpoint_callbacks
        ],
        "epoch loop": type(trainer.fit_loop.epoch_loop).__qualname__,
        "checkpoint connector": f"{type(trainer._checkpoint_connector)}",
        "max_time": getattr(trainer, "max_time", None),
        "global step": trainer.global_step,
        "last name": NeMoModelCheckpoint.CHECKPOINT_NAME_LAST,
        "rank": nemo.utils.logging.rank,
        "signals": [repr(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)],
        "handlers": [type(each).__name__ for each in nemo.utils.logging._logger.handlers],
        "threads": sorted(each.name for each in threading.enumerate() if "asyncio" not in each.name),
        "tree": tree(),
    }


def observe(call: Callable[[], Any]) -> dict[str, Any]:
    """Call, and tell the result or the exception, what was logged and warned, and what changed in the environment."""
    records = Records()
    loggers = [nemo.utils.logging._logger, logging.getLogger("lightning.pytorch"), logging.getLogger()]
    for logger in loggers:
        logger.addHandler(records)
    before = dict(os.environ)
    result: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result["returned"] = repr(call())
        except Exception as error:  # noqa: BLE001 - every refusal is to be compared
            result["raised"] = describe(error)
            REFUSALS.extend(place(error))
    for logger in loggers:
        logger.removeHandler(records)
    return {
        **result,
        "logged": records.lines,
        "warned": [f"{each.category.__name__} {Path(each.filename).name} {each.message}" for each in warned],
        "environment": {
            name: [before.get(name), os.environ.get(name)]
            for name in sorted({*before, *os.environ})
            if before.get(name) != os.environ.get(name)
        },
    }


def place(error: BaseException) -> list[tuple[str, int | None]]:
    """Return function and line of NeMo's module where an exception came up, if it did there."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(frame.name, frame.lineno) for frame in frames if frame.filename == module.__file__][-1:]


def describe(error: BaseException | None) -> list[str]:
    """Return type and text of an exception, and of those that led to it."""
    if error is None:
        return []
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [f"{type(error).__module__}.{type(error).__qualname__}: {error}", repr(error.args), *describe(cause)]


def tree() -> list[list[str]]:
    """Return every name below the working directory, with its kind and, where it is text, its content."""
    found = []
    for path in sorted(Path.cwd().rglob("*")):
        name = str(path.relative_to(Path.cwd()))
        if path.is_symlink():
            found.append([name, f"link to {os.readlink(path)}"])
        elif path.is_dir():
            found.append([name, "directory"])
        elif path.suffix == ".ckpt" or "tfevents" in name:
            found.append([name, "binary"])
        else:
            found.append([name, path.read_text(encoding="utf-8")])
    return found


def direct_calls(key: Key) -> dict[str, Any]:
    """Call in ways that are not `exp_manager(trainer, cfg)`."""
    trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False)
    with_logger = pl.Trainer(accelerator="cpu", devices=1, **_logger())
    flags = {"create_tensorboard_logger": True, "create_wandb_logger": False, "create_mlflow_logger": False}
    cfg = {**_QUIET, "version": "v", **key}

    def with_wrong_rank() -> Any:
        os.environ["LOCAL_RANK"] = "x"
        try:
            return module.exp_manager(trainer, cfg)
        finally:
            del os.environ["LOCAL_RANK"]

    def after_hydra_changed_the_directory() -> Any:
        here = Path.cwd()
        with initialize_config_dir(str(here), version_base=None, job_name="app"):
            composed = compose(return_hydra_config=True)
        HydraConfig.instance().set_config(composed)
        os.chdir("/")
        try:
            return module.exp_manager(trainer, cfg)
        finally:
            os.chdir(here)
            HydraConfig.instance().cfg = None

    def with_tensor_parallelism() -> Any:
        state = AppState()
        before, state.tensor_model_parallel_size = state.tensor_model_parallel_size, 2
        asked = {**cfg, "create_checkpoint_callback": True, "checkpoint_callback_params": {"always_save_nemo": True}}
        try:
            return module.exp_manager(
                pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False), asked
            )
        finally:
            state.tensor_model_parallel_size = before

    calls: dict[str, Callable[[], Any]] = {
        "after Hydra changed the directory": after_hydra_changed_the_directory,
        "all files with tensor parallelism": with_tensor_parallelism,
        "resuming without a directory": lambda: module.check_resume(trainer, ""),
        "by keywords": lambda: module.exp_manager(cfg=cfg, trainer=trainer),
        "without a configuration": lambda: module.exp_manager(trainer),
        "without arguments": module.exp_manager,
        "with too many arguments": lambda: module.exp_manager(trainer, cfg, 1),
        "with an unknown argument": lambda: module.exp_manager(trainer, config=cfg),
        "without a trainer": lambda: module.exp_manager(None, cfg),
        "with a wrong LOCAL_RANK": with_wrong_rank,
        "checks of nothing": lambda: module.error_checks(trainer),
        "checks of nothing, logger": lambda: module.error_checks(with_logger),
        "checks of a dict": lambda: module.error_checks(with_logger, dict(flags)),
        "checks of a DictConfig": lambda: module.error_checks(with_logger, OmegaConf.create(flags)),
        "checks of an instance": lambda: module.error_checks(with_logger, module.ExpManagerConfig()),
        "checks of an object": lambda: module.error_checks(with_logger, SimpleNamespace(**flags)),
        "checks of an object, no logger": lambda: module.error_checks(trainer, SimpleNamespace(**flags)),
        "checks without arguments": module.error_checks,
    }
    return {name: observe(call) for name, call in calls.items()}


def functions() -> dict[str, Any]:
    """Tell what can be seen of the functions and of the module."""
    seen = {}
    for function in (module.exp_manager, module.error_checks, module.get_log_dir, module.check_resume):
        code = function.__code__
        seen[function.__name__] = [
            str(inspect.signature(function)),
            repr(function),
            function.__doc__,
            [function.__name__, function.__qualname__, function.__module__],
            [repr(function.__defaults__), repr(function.__kwdefaults__), repr(function.__annotations__)],
            [code.co_filename, code.co_firstlineno, code.co_name, getattr(code, "co_qualname", None)],
            [code.co_varnames[: code.co_argcount], code.co_argcount, code.co_kwonlyargcount],
            sorted(vars(function)),
            inspect.getsource(function),
            pickle.dumps(function, 2).decode("latin-1"),
        ]
    return {**seen, "names of the module": sorted(vars(module))}


def compositions(directory: Path) -> dict[str, Any]:
    """Let Hydra compose a configuration that has nothing to do with us, and overrides that it refuses."""
    directory.mkdir()
    (directory / "app.yaml").write_text("exp_manager:\n  name: tiny\nmodel:\n  size: 3\n", encoding="utf-8")
    overrides = {
        "none": [],
        "a known key": ["exp_manager.name=other"],
        "an added key": ["+exp_manager.exp_dir=exp"],
        "a forced key": ["++exp_manager.log_layot=1", "++model.log_layout=immutable"],
        "a removed key": ["~exp_manager.name"],
        "an unknown key": ["exp_manager.log_layot=immutable"],
        "an unknown key of another section": ["model.log_layout=immutable"],
        "an unknown key of the root": ["log_layout=immutable"],
        "an unknown section": ["other.exp_manager.log_layout=immutable"],
        "a key below ours": ["exp_manager.log_layout.x=1"],
        "a key like ours": ["exp_manager.log_layout_x=1"],
        "an added key that is there": ["+exp_manager.name=x"],
        "a value of the root": ["+optimizer=adam"],
        "no grammar": ["exp_manager.name=[1"],
        "removing what is not there": ["~exp_manager.log_layout"],
    }
    seen: dict[str, Any] = {}
    for name, each in overrides.items():

        def composed(each: list[str] = each) -> Any:
            with initialize_config_dir(str(directory), version_base=None, job_name="app"):
                return OmegaConf.to_container(compose("app", each, return_hydra_config=True))

        seen[name] = observe(composed)
    return seen


def where() -> dict[str, Any]:
    """Tell what of this project the process can see; like the lines of refusals, this is not to be compared."""
    groups = ("lightning.pytorch.callbacks_factory", "pytorch_lightning.callbacks_factory")
    return {
        "importable": [
            name
            for name in ("immutable_logs", "migration", "hydra_plugins.immutable_logs_plugin")
            if importlib.util.find_spec(name.partition(".")[0]) and importlib.util.find_spec(name)
        ],
        "entry points": [each.value for group in groups for each in importlib.metadata.entry_points(group=group)],
        "loaded": sorted(name for name in sys.modules if name.split(".")[0] in {"immutable_logs", "hydra_plugins"}),
        "code": module.exp_manager.__code__.co_names,
    }


def without_times(document: str, directory: Path) -> str:
    """Return the text of a document without what differs between any two processes."""
    for path, stands_for in ((directory, "<directory>"), (_SITE, "<site>"), (Path(sys.argv[0]).parent, "<scripts>")):
        document = document.replace(str(path), stands_for)
    for pattern, stands_for in (
        (r"\d{4}-\d\d-\d\d[ _T]\d\d[:-]\d\d[:-]\d\d", "<time>"),
        (r"\b\d{10}\.\d+\b", "<seconds>"),
        (r"events\.out\.tfevents\.[\w.-]+", "<event file>"),
        (r"0x[0-9a-f]{6,}", "<address>"),
    ):
        document = re.sub(pattern, stands_for, document)
    return (
        document if HAS_OWN_PLACES else re.sub(r"(\[NeMo \w <time>) \w+:\d+( rank:\d+)?\]", r"\1 <place>\2]", document)
    )


def make_repository(directory: Path) -> None:
    """Make a git repository with one commit, whose hash is the same everywhere."""
    who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    when = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}
    for arguments in (["init", "--quiet"], [*who, "commit", "--quiet", "--allow-empty", "--message", "m"]):
        subprocess.run(["git", *arguments], cwd=directory, env={**os.environ, **when}, check=True)


def main(directory: Path, document: Path, key: Key) -> None:
    """Run everything and write the document."""
    make_repository(directory)
    calls = {}
    for number, (name, case) in enumerate(CASES.items()):
        home = directory / f"case_{number}"
        home.mkdir()
        os.chdir(home)
        calls[name] = run_case(case, key)
    (directory / "direct").mkdir()
    os.chdir(directory / "direct")
    result = {
        "calls": calls,
        "direct calls": direct_calls(key),
        "functions": functions(),
        "compositions": compositions(directory / "conf"),
    }
    text = without_times(json.dumps(result, default=str), directory)
    seen = {"where": where(), "refusals": REFUSALS, **json.loads(text)}
    document.write_text(json.dumps(seen, indent=1), encoding="utf-8")


if __name__ == "__main__":
    home, target, *layout = sys.argv[1:]
    del sys.argv[1:]
    main(Path(home).resolve(), Path(target).resolve(), {"log_layout": layout[0]} if layout else {})
