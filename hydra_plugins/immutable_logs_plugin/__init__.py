"""Found by every Hydra application where this distribution is installed: makes ``exp_manager.log_layout`` known."""

from __future__ import annotations

import logging
from typing import Any

from hydra.plugins.search_path_plugin import SearchPathPlugin

_log = logging.getLogger(__name__)


class ImmutableLogsPlugin(SearchPathPlugin):
    """The one kind of plugin that Hydra asks in every application before it loads a configuration."""

    def manipulate_search_path(self, search_path: Any) -> None:
        """Leave the search path as it is; never raises, whatever Hydra or NeMo are like."""
        try:
            from immutable_logs.nemo_integration.activation import activate
            from immutable_logs.nemo_integration.hydra_key import accept_our_keys

            accept_our_keys()
            activate()
        except Exception as error:  # noqa: BLE001 - a program that does not use the layout must not notice
            _log.warning("exp_manager.log_layout cannot be used here: %s", error)
