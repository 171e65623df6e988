"""The tests of the protocol once more, each time with all that they write on another real file system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CANNOT_MOUNT = 77

PROTOCOL = [
    "test_agreement.py",
    "test_latest_link.py",
    "test_run.py",
    "concurrency/test_launches.py",
    "crash/test_weak_file_systems.py",
]

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can mount, and needs unshare"
    ),
]


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay"])
def test_the_protocol_holds_on(tmp_path: Path, kind: str) -> None:
    """Joining, publishing, switching, many launches at once, and mounts that lack something besides."""
    mount = tmp_path / "mounted"
    mount.mkdir()
    completed = subprocess.run(
        [
            *(sys.executable, str(TESTS / "mounts" / "on_mount.py"), kind, str(mount)),
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(mount / "tests")),
            *(str(TESTS / name) for name in PROTOCOL),
        ],
        cwd=TESTS.parent,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=280,
    )
    if completed.returncode == CANNOT_MOUNT:
        pytest.skip(completed.stderr[-300:])

    assert completed.returncode == 0, completed.stdout[-3000:]
    # The tests were there and wrote where they were told to.
    assert " passed" in completed.stdout
    assert "skipped" not in completed.stdout
