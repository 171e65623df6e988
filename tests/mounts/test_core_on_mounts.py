"""The tests of the protocol once more, each time with all that they write on another real file system.

`make test-mounts` runs all tests of the library so, where there are links and permissions; each takes minutes.
"""

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
WITHOUT_LINKS = [*PROTOCOL, "test_manifest.py", "test_rank_entries.py", "test_records.py", "crash/test_kills.py"]

LACKS = {"exfat": "links,permissions,names", "sshfs-following": "times of links"}
"""What tests need, by their mark `needs`, that a file system has not."""


@pytest.mark.proof
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "sshfs-following", "exfat"])
def test_the_protocol_holds_on(
    run_on_mount: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, kind: str
) -> None:
    """Joining, publishing, switching, many launches at once, and mounts that lack something besides."""
    mount = tmp_path / "mounted"
    pytest_on_mount = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", mount / "tests")
    completed = run_on_mount(
        kind,
        mount,
        *pytest_on_mount,
        f"--rootdir={TESTS.parent}",
        f"--mount-lacks={LACKS.get(kind, '')}",
        *(TESTS / name for name in (WITHOUT_LINKS if kind == "exfat" else PROTOCOL)),
        timeout=380,
    )

    assert completed.returncode == 0, completed.stdout[-3000:]
    # The tests were there and wrote where they were told to.
    assert " passed" in completed.stdout
    assert "skipped" not in completed.stdout
