"""Check the links in ``tensorboard/``: each leads to a file of a run, and that is there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from immutable_logs import durable_files
from immutable_logs.run_id import is_run_id
from immutable_logs.verification.findings import LEFTOVER, PROBLEM, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from immutable_logs.verification.state import ExperimentState


def check_event_links(state: ExperimentState) -> Iterator[Finding]:
    """Yield what is wrong with the links; TensorBoard and copies that follow links stumble over one that dangles."""
    root = state.layout.tensorboard
    if not os.path.isdir(root):
        return
    for name in sorted(name for name in os.listdir(root) if not name.startswith(".")):
        directory = state.layout.lineage(name)
        if not is_run_id(name) or not directory.is_dir() or directory.is_symlink():
            yield _foreign(state, directory, "expected the directory of a lineage, which bears a run id")
            continue
        # `prune` may take the links and the directory meanwhile.
        try:
            for entry in sorted(os.listdir(directory)):
                yield from _check_link(state, directory / entry)
        except FileNotFoundError:
            continue
        except OSError as error:
            if not durable_files.is_link_hidden(error):
                raise
            yield Finding(
                "tensorboard-unchecked",
                LEFTOVER,
                state.relative(root),
                None,
                "this mount does not show where the links lead, so they were not checked. HINT: mount SSHFS with "
                "-o no_contain_symlinks",
            )
            return


def _check_link(state: ExperimentState, path: Path) -> Iterator[Finding]:
    if not path.is_symlink():
        yield _foreign(state, path, "expected a link to an event file")
        return
    text = durable_files.read_link(path)
    target = Path(os.path.normpath(path.parent / text))
    run_id = _run_of(state, target)
    if os.path.isabs(text) or run_id is None:
        yield _foreign(state, path, f"expected a relative link to a file of a run, found one to {text!r}")
        return
    if path.exists():
        return
    yield Finding(
        "tensorboard-dangling",
        PROBLEM,
        state.relative(path),
        run_id,
        f"expected an event file of run {run_id}, found nothing at {state.relative(target)}. HINT: put the file back, "
        "or remove this link",
    )


def _run_of(state: ExperimentState, target: Path) -> str | None:
    with suppress(ValueError):
        parts = target.relative_to(state.layout.runs).parts
        if len(parts) > 1 and is_run_id(parts[0]):
            return parts[0]
    return None


def _foreign(state: ExperimentState, path: Path, words: str) -> Finding:
    return Finding("foreign-entry", LEFTOVER, state.relative(path), None, f"{words}; not ours, and left alone")
