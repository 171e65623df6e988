"""Let Hydra accept our keys as if NeMo's configurations had them.

Hydra refuses an override of a key that the composed configuration lacks, and ``+key`` where it has it. For our keys,
and for no other, both mean what ``++key`` means: set it. Loads neither NeMo nor torch.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from typing import Any, Final

from immutable_logs.nemo_integration.settings import IMMUTABLE, KEYS, LAYOUT_VARIABLE, LOG_LAYOUT

_log = logging.getLogger(__name__)

_OVERRIDE: Final = re.compile(rf"\A\+{{0,2}}(exp_manager\.(?:{'|'.join(KEYS)})=)")
_JOB_END: Final = {"_target_": "immutable_logs.nemo_integration.run_end.HydraJobEnd"}


def accept_our_keys() -> None:
    """Wrap Hydra's loading of configurations; does nothing the second time."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    stock = ConfigLoaderImpl.load_configuration
    if hasattr(stock, "_knows_our_keys"):
        return

    @functools.wraps(stock)
    def load_configuration(self: Any, config_name: Any, overrides: Any, *arguments: Any, **keywords: Any) -> Any:
        cfg = stock(self, config_name, [with_forced_key(each) for each in overrides], *arguments, **keywords)
        try:
            _watch_job_end(cfg)
        except Exception as error:  # noqa: BLE001 - a program that does not use the layout must not notice
            _log.debug("The end of Hydra jobs is not watched: %s", error)
        return cfg

    load_configuration._knows_our_keys = True  # type: ignore[attr-defined]
    ConfigLoaderImpl.load_configuration = load_configuration


def with_forced_key(override: str) -> str:
    """Return an override of one of our keys with ``++`` before it, and any other as it is."""
    return _OVERRIDE.sub(r"++\1", override, count=1)


def _watch_job_end(cfg: Any) -> None:
    """Add our Hydra callback to a configuration that asks for the immutable layout."""
    from omegaconf import OmegaConf, open_dict

    explicit = OmegaConf.select(cfg, f"exp_manager.{LOG_LAYOUT}")
    if (explicit or os.environ.get(LAYOUT_VARIABLE)) == IMMUTABLE:
        with open_dict(cfg.hydra):
            cfg.hydra.callbacks["immutable_logs"] = _JOB_END
