"""Take the log handlers of an earlier run off, when a process starts a second one.

NeMo adds its file handlers and never removes them, so that the first run's logs would receive the second's lines.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any


def detach_handlers(nemo_logging: Any, lightning_logger: logging.Logger, directory: Path) -> None:
    """Take off and close the file handlers that write into a directory.

    Args:
        nemo_logging: NeMo's logger object, ``nemo.utils.logging``.
        lightning_logger: Lightning's logger.
        directory: The directory of the earlier run.
    """
    from nemo.utils.lightning_logger_patch import HANDLERS

    loggers = (nemo_logging._logger, lightning_logger, logging.getLogger("megatron.core"))
    for registry in (nemo_logging._handlers, HANDLERS):
        for name, handler in list(registry.items()):
            if isinstance(handler, logging.FileHandler) and Path(handler.baseFilename).parent == directory:
                for logger in loggers:
                    logger.removeHandler(handler)
                handler.close()
                del registry[name]
