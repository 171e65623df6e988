"""Draw what lies in an experiment."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from immutable_logs.cli.terminal import cell

if TYPE_CHECKING:
    from pathlib import Path

    from rich.tree import Tree

_MAX_ENTRIES: Final = 15
"""Entries drawn of one directory."""


def draw_tree(path: Path) -> Tree:
    """Return a tree of a directory; what is hidden is named but not opened."""
    from rich.tree import Tree

    tree = Tree(cell(f"{path}/", "bold"))
    _grow(tree, path)
    return tree


def _grow(tree: Tree, path: Path) -> None:
    with suppress(OSError), os.scandir(path) as found:
        entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries[:_MAX_ENTRIES]:
            is_hidden = entry.name.startswith(".")
            if entry.is_symlink():
                tree.add(cell(f"{entry.name} -> {os.readlink(entry.path)}", "cyan"))
            elif entry.is_dir():
                branch = tree.add(cell(f"{entry.name}/", "dim" if is_hidden else "bold"))
                if not is_hidden:
                    _grow(branch, path / entry.name)
            else:
                tree.add(cell(entry.name))
        if len(entries) > _MAX_ENTRIES:
            tree.add(cell(f"... {len(entries) - _MAX_ENTRIES} more", "dim"))
