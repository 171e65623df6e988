"""The tests of the protocol once more, each time with all that they write on another real file system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

PROTOCOL = [
    "test_agreement.py",
    "test_latest_link.py",
    "test_run.py",
    "concurrency/test_launches.py",
    "crash/test_weak_file_systems.py",
]


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay"])
def test_the_protocol_holds_on(
    run_on_mount: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, kind: str
) -> None:
    """Joining, publishing, switching, many launches at once, and mounts that lack something besides."""
    mount = tmp_path / "mounted"
    pytest_on_mount = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", mount / "tests")
    completed = run_on_mount(
        kind, mount, *pytest_on_mount, f"--rootdir={TESTS.parent}", *(TESTS / name for name in PROTOCOL), timeout=280
    )

    assert completed.returncode == 0, completed.stdout[-3000:]
    # The tests were there and wrote where they were told to.
    assert " passed" in completed.stdout
    assert "skipped" not in completed.stdout
