"""Switch the layout on: explicitly, or by what every Hydra application and every Lightning trainer loads.

Loads neither NeMo nor torch by itself (`enable` does): it runs in every program that uses Hydra or Lightning.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from typing import Any, Final

_log = logging.getLogger(__name__)

EXP_MANAGER_MODULE: Final = "nemo.utils.exp_manager"
_NEMO_LOGGER_MODULE: Final = "nemo.lightning.nemo_logger"

_INITIAL_VERSION_VARIABLE: Final = "_IMMUTABLE_LOGS_NEMO_EXPM_VERSION"


def _initial_nemo_version() -> str | None:
    """Return the version that the user set, and leave it to the children of Lightning's launcher.

    They inherit what stock's own `get_log_dir` has exported in the parent meanwhile; as with the launch itself, a
    child is known by its local rank and its parent's pid.
    """
    pid, _, inherited = os.environ.get(_INITIAL_VERSION_VARIABLE, "").partition(":")
    if pid == str(os.getppid()) and os.environ.get("LOCAL_RANK", "0") not in ("", "0"):
        return inherited or None
    version = os.environ.get("NEMO_EXPM_VERSION")
    if "LOCAL_RANK" not in os.environ:
        os.environ[_INITIAL_VERSION_VARIABLE] = f"{os.getpid()}:{version or ''}"
    return version


INITIAL_NEMO_VERSION: Final = _initial_nemo_version()
"""The version that the user set. Stock's own `get_log_dir` exports one later, which would redirect ours."""

_awaited_modules: Final[set[str]] = set()
_told: Final[set[str]] = set()


def enable() -> Any:
    """Make NeMo's ``exp_manager`` know the immutable layout, in this process.

    The layout is used by calls that ask for it, by ``log_layout: immutable`` in their configuration or by the
    environment variable ``NEMO_LOG_LAYOUT``; all other calls do what they always did. Call it again after a
    ``importlib.reload``.

    Returns:
        The module ``nemo.utils.exp_manager``.

    Raises:
        ImportError: If NeMo is not installed.
        UnsupportedNeMoError: If NeMo's code is not of a form that this package knows.
    """
    module = importlib.import_module(EXP_MANAGER_MODULE)
    _steer_exp_manager(module)
    return module


def activate() -> None:
    """Steer NeMo's ``exp_manager`` if it is loaded, and otherwise as soon as it is; never raises."""
    try:
        import wrapt
    except ImportError:
        return  # NeMo needs wrapt, so NeMo is not there
    for name, steer_module in ((EXP_MANAGER_MODULE, _steer_exp_manager), (_NEMO_LOGGER_MODULE, _steer_nemo_logger)):
        module = sys.modules.get(name)
        # A module that is being imported just now has no function yet; the hook is called when it has.
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _steer_without_raising(steer_module, module)
        elif name not in _awaited_modules:
            _awaited_modules.add(name)
            wrapt.register_post_import_hook(functools.partial(_steer_without_raising, steer_module), name)


def external_callbacks() -> list[Any]:
    """Activate; add no callback. Every Lightning trainer calls this, through an entry point of this distribution."""
    activate()
    return []


def _steer_without_raising(steer_module: Any, module: Any) -> None:
    try:
        steer_module(module)
    except Exception as error:  # noqa: BLE001 - a program that does not use the layout must not notice
        if str(error) not in _told:  # every trainer comes here
            _told.add(str(error))
            _log.warning("The immutable log layout cannot be used here: %s", error)


def _steer_exp_manager(module: Any) -> None:
    from immutable_logs.nemo_integration import session
    from immutable_logs.nemo_integration.schema import extend_schema, extend_stored_nodes
    from immutable_logs.nemo_integration.steering import UnsupportedNeMoError, steer

    missing = [name for name in session.REPLACED_NAMES if not hasattr(module, name)]
    if missing:
        raise UnsupportedNeMoError(f"{EXP_MANAGER_MODULE} has no {', '.join(missing)}; this NeMo is not supported")
    session.remember_schema(module)
    steer(module.exp_manager, exp_manager_shim)
    steer(module.error_checks, error_checks_shim)
    extend_schema(module.ExpManagerConfig)
    extend_stored_nodes(module.ExpManagerConfig)


def _steer_nemo_logger(module: Any) -> None:
    from immutable_logs.nemo_integration.steering import steer

    steer(module.NeMoLogger.setup, nemo_logger_setup_shim)


def exp_manager_shim(trainer: Any, cfg: Any = None) -> Any:
    """Stand in for NeMo's ``exp_manager``."""
    from immutable_logs.nemo_integration import session

    return session.exp_manager(trainer, cfg)


def error_checks_shim(trainer: Any, cfg: Any = None) -> Any:
    """Stand in for NeMo's ``error_checks``."""
    from immutable_logs.nemo_integration import session

    return session.error_checks(trainer, cfg)


def nemo_logger_setup_shim(self: Any, trainer: Any, resume_if_exists: Any = False, task_config: Any = None) -> Any:
    """Stand in for ``NeMoLogger.setup``."""
    from immutable_logs.nemo_integration import session

    return session.nemo_logger_setup(self, trainer, resume_if_exists, task_config)
