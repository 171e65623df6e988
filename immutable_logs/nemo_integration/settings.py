"""The two configuration keys of this package, and which layout a call asks for."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Final

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from immutable_logs.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG_LAYOUT: Final = "log_layout"
LOG_EVERY_RANK: Final = "log_every_rank"
KEYS: Final = (LOG_LAYOUT, LOG_EVERY_RANK)

LAYOUT_VARIABLE: Final = "NEMO_LOG_LAYOUT"
MOVING: Final = "moving"
IMMUTABLE: Final = "immutable"
LAYOUTS: Final = (IMMUTABLE, MOVING)

_STOCK_SECONDS_TO_SLEEP: Final = 5.0


def requested_layout(cfg: Any, environ: Mapping[str, str]) -> str:
    """Return the layout that a call of ``exp_manager`` asks for; an explicit key wins over the environment.

    Raises:
        ConfigurationError: If the value is not one of `LAYOUTS`.
    """
    explicit = explicit_layout(cfg)
    if explicit is not None:
        return _checked(explicit, f"exp_manager.{LOG_LAYOUT}")
    from_environment = environ.get(LAYOUT_VARIABLE, "")
    return _checked(from_environment, f"the environment variable {LAYOUT_VARIABLE}") if from_environment else MOVING


def explicit_layout(cfg: Any) -> Any:
    """Return the layout that a configuration names, unchecked; None where it names none or is no configuration."""
    return cfg.get(LOG_LAYOUT) if LOG_LAYOUT in _our_keys(cfg) else None


def without_our_keys(cfg: Any) -> Any:
    """Return a configuration that stock NeMo understands; the same object where it holds none of our keys."""
    if not _our_keys(cfg):
        return cfg
    try:
        # Resolved first, as stock does: a copy has lost the parents that `${…}` may need.
        container = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else dict(cfg)
    except OmegaConfBaseException:
        return cfg  # stock refuses it at the same step, after what it logs before
    return {key: value for key, value in container.items() if key not in KEYS}  # type: ignore[union-attr]


def resolved(cfg: dict[Any, Any] | DictConfig) -> dict[str, Any]:
    """Return a configuration as plain values, resolved as stock does, paths of any library as text.

    ``seconds_to_sleep`` is set to 0 unless the user chose it; a structured configuration always carries stock's 5.0,
    which then is no choice.

    Raises:
        omegaconf.errors.OmegaConfBaseException: As stock, for what OmegaConf refuses.
    """
    is_structured = isinstance(cfg, DictConfig) and dataclasses.is_dataclass(OmegaConf.get_type(cfg))
    tree = cfg if isinstance(cfg, DictConfig) else OmegaConf.create(_with_text_paths(cfg))
    container: dict[str, Any] = _with_text_paths(OmegaConf.to_container(tree, resolve=True))
    is_stock_default = is_structured and container.get("seconds_to_sleep") == _STOCK_SECONDS_TO_SLEEP
    if "seconds_to_sleep" not in container or is_stock_default:
        container["seconds_to_sleep"] = 0
    return container


def _our_keys(cfg: Any) -> list[str]:
    """Return which of our keys a configuration has; a DictConfig that is null or missing as a whole has none."""
    # `in` would raise for null, and overlook a key whose value is missing.
    names = cfg.keys() if isinstance(cfg, (dict, DictConfig)) else ()
    return [key for key in KEYS if key in names]


def _checked(value: object, where: str) -> str:
    if value in LAYOUTS:
        return str(value)
    allowed = " or ".join(repr(layout) for layout in LAYOUTS)
    raise ConfigurationError(LOG_LAYOUT, value, f"expected {allowed} for {where}, found {value!r}")


def _with_text_paths(value: Any) -> Any:
    """Return nested dictionaries and lists in which every path-like object is text: OmegaConf refuses pathlib2's."""
    if isinstance(value, dict):
        return {key: _with_text_paths(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_text_paths(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
