"""Draw lines again and again on a terminal."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_PAUSE: Final = 2.0
_SHARE: Final = 5
"""Between two looks at a large experiment passes at least this many times what a look takes."""


def watch_lines(look: Callable[[], list[str]]) -> NoReturn:
    """Draw what a function returns every few seconds, until Ctrl-C; where it does not fit, the end of it.

    Raises:
        KeyboardInterrupt: At Ctrl-C, with what was drawn last still on the terminal.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            begin = time.monotonic()
            lines = look()
            room = shutil.get_terminal_size().lines - 2
            if len(lines) > room:
                lines = [f"... {len(lines) - room + 1} lines before these", *lines[len(lines) - room + 1 :]]
            frame = Text("\n", no_wrap=True, overflow="crop").join(Text.from_ansi(line) for line in lines)
            live.update(frame, refresh=True)
            time.sleep(max(_PAUSE, _SHARE * (time.monotonic() - begin)))
