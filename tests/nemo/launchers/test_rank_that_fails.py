"""One rank of four fails, and `immutable-logs logs --errors` says which."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.nemo.launchers.conftest import Launches

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
FOUR_RANKS = ("trainer.devices=4", "+trainer.strategy=ddp")


def errors_of(experiment: Path) -> Any:
    """Return what the command says."""
    program = shutil.which("immutable-logs", path=str(Path(sys.executable).parent))
    assert program is not None
    command = [program, "logs", "--errors", "--json", "-e", str(experiment)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)


@pytest.mark.parametrize("log_every_rank", ["true", "false"])
def test_a_rank_that_raised_is_named(launches: Launches, log_every_rank: str) -> None:
    """Every rank leaves what ended it, whether NeMo writes a log for it or not; all others are echoes."""
    launches.start(
        *FOUR_RANKS,
        f"exp_manager.log_every_rank={log_every_rank}",
        launcher=TORCHRUN,
        script="rank_two_fails.py",
        environment={"RANK_TWO": "raises"},
    ).end(status=1)

    document = errors_of(launches.experiment)

    assert document["status"] == "failed"
    assert (document["first"]["ranks"], document["first"]["kind"]) == ([2], "end")
    assert document["first"]["summary"] == "ValueError: the loss is not a number"
    assert "rank_two_fails.py" in document["first"]["text"]
    assert all(error["is_echo"] for error in document["errors"] if error["ranks"] != [2])


def test_a_rank_that_was_killed_is_known_by_its_silence(launches: Launches) -> None:
    """It leaves no error, and no other rank is blamed."""
    launches.start(
        *FOUR_RANKS,
        "exp_manager.log_every_rank=true",
        launcher=TORCHRUN,
        script="rank_two_fails.py",
        environment={"RANK_TWO": "is killed"},
    ).end(status=1)

    document = errors_of(launches.experiment)

    assert document["first"] is None
    assert document["errors"]
    assert all(error["is_echo"] for error in document["errors"])
    assert 2 in [rank["rank"] for rank in document["without_error"] if rank["has_log"]]
