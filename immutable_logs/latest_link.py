"""Point ``latest`` at a run, so that it never dangles and is never missing once it exists."""

from __future__ import annotations

import errno
import logging
import os
import stat
from typing import TYPE_CHECKING

from immutable_logs import durable_files
from immutable_logs.layout import RUNS
from immutable_logs.run_id import is_run_id

if TYPE_CHECKING:
    from pathlib import Path

    from immutable_logs.layout import ExperimentLayout

_log = logging.getLogger(__name__)


def read_latest(layout: ExperimentLayout) -> str | None:
    """Return the run that ``latest`` shows; None if there is none, or it is not ours."""
    try:
        text = durable_files.read_link(layout.latest)
    except FileNotFoundError:
        return _read_text(layout)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return _read_text(layout)
        if durable_files.is_link_hidden(error):
            return None
        raise
    return _run_in(text)


def switch_latest(layout: ExperimentLayout, run_id: str, *, unique: str) -> bool:
    """Make ``latest`` show a run, in one step.

    Who may call: rank zero of the run, when ``run.json`` is complete, within the manifest's lock where there is one.

    1. Look what is there. A directory, a file or a link of another form is the user's: warn, leave it.
    2. Nothing there: create the link.
    3. A link of ours: create the empty file in the workshop to which the text of the new link leads from there, then
       the link under a private name in the workshop, then rename it over ``latest``.

    After a crash: at 3, an empty file and perhaps a link that leads to it, both in a hidden directory. ``latest``
    shows the run before or this one, never none.
    Not promised: that ``latest`` shows the newest run; the caller sees to that.

    Args:
        layout: The experiment.
        run_id: The run to show.
        unique: A text for the private name that no other process uses: host, pid, random.

    Returns:
        Whether ``latest`` is ours and was switched.

    Raises:
        OSError: If the file system refuses.
    """
    target = layout.latest_target(run_id)
    try:
        mode = os.lstat(layout.latest).st_mode  # 1
    except FileNotFoundError:
        try:
            if durable_files.create_link(target, layout.latest):  # 2
                return True
        except OSError as error:
            if not durable_files.is_without_links(error):
                raise
            return _write_text(layout, run_id, unique)
        mode = stat.S_IFLNK  # another launch was quicker
    if not stat.S_ISLNK(mode) or read_latest(layout) is None:
        _log.warning(
            "%s is not a link to a run, so it is left as it is and does not show the newest run. "
            "HINT: rename it, and the next launch makes the link",
            layout.latest,
        )
        return False
    stand_in = layout.latest_stand_in(run_id)  # 3
    durable_files.create_directory(stand_in.parent, like=layout.path)
    durable_files.create_exclusive(stand_in, b"")
    private = layout.latest_workshop / f"{unique}.link"
    durable_files.create_link(target, private)
    durable_files.replace(private, layout.latest)
    return True


def _run_in(text: str) -> str | None:
    directory, _, name = text.rpartition("/")
    return name if directory == RUNS and is_run_id(name) else None


def _read_text(layout: ExperimentLayout) -> str | None:
    try:
        text = durable_files.read_bytes(layout.latest_text).strip().decode("ascii", "replace")
    except FileNotFoundError:
        return None
    return text if is_run_id(text) else None


def _write_text(layout: ExperimentLayout, run_id: str, unique: str) -> bool:
    """Write the text file that stands for ``latest`` where there are no links."""
    _log.warning("This mount has no symbolic links; the newest run is named in %s", layout.latest_text)
    private: Path = layout.latest_workshop / f"{unique}.txt"
    durable_files.create_directory(private.parent, like=layout.path)
    durable_files.create_exclusive(private, f"{run_id}\n".encode("ascii"))
    durable_files.replace(private, layout.latest_text)
    return True
