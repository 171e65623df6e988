"""A migrated tree is an experiment like any other to `immutable-logs verify`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from immutable_logs import Experiment, start_run
from immutable_logs.verification import verify_experiment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_nothing_is_found_in_a_migrated_tree(
    unpack: Callable[[str], Path], migrate: Callable[..., Any], corpus_name: str
) -> None:
    """Neither after the migration, nor after a launch in the same experiment."""
    tree = unpack(corpus_name)
    migrate("apply", tree)
    experiments = [tree] if (tree / "runs").is_dir() else [path.parent for path in sorted(tree.glob("**/runs"))]

    for experiment in experiments:
        assert verify_experiment(Experiment(experiment)).findings == ()
        start_run(experiment).finish()
        assert verify_experiment(Experiment(experiment)).findings == ()
    assert experiments or not os.listdir(tree) or (tree.parent / "runs").is_dir()
