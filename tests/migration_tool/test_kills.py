from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).with_name("disturbed_migrations.py")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "least"), [("apply", 50), ("apply-apart", 40), ("undo", 30), ("finalize", 15)])
def test_a_command_killed_at_any_call_is_completed_by_the_next(
    unpack: Callable[[str], Path], tmp_path: Path, command: str, least: int
) -> None:
    """The tree is then as without the kill; and after a killed `apply`, `undo` leaves the old tree."""
    work = tmp_path / "work"
    work.mkdir()

    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(unpack("2.0.0_x_explicit_noresume")), str(work), command],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) >= least
    assert [case for case in cases if case["differences"]] == []
    seconds = {case["call"].split()[0] for case in cases if case["call"].endswith(" in the second process")}
    assert ("os.link" in seconds) == (command == "apply-apart")
