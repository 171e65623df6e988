"""Which file system a directory is on, and who says that other nodes cannot see it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from immutable_logs import mounts
from immutable_logs.launch import Launch, Ranks
from immutable_logs.mounts import file_system_type, warn_of_local_file_system

FIRST_OF_SECOND_NODE = Ranks(global_rank=8, local_rank=0, node_rank=1, world_size=16)

needs_mountinfo = pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="needs Linux")


def warnings_of(
    caplog: pytest.LogCaptureFixture, directory: Path, ranks: Ranks = FIRST_OF_SECOND_NODE, call: int = 1
) -> list[str]:
    """Return what a rank is told."""
    with caplog.at_level(logging.WARNING):
        warn_of_local_file_system(directory, Launch("key", unique=True, ranks=ranks, source="test", call=call))
    return [record.getMessage() for record in caplog.records]


@needs_mountinfo
def test_type_is_that_of_the_mount(tmp_path: Path) -> None:
    """As the kernel names it, also behind a link that leads to another mount."""
    link = tmp_path / "link"
    link.symlink_to("/proc")

    assert file_system_type(Path("/proc")) == file_system_type(link) == "proc"
    assert file_system_type(tmp_path) not in (None, "proc")


def test_type_of_what_cannot_be_opened_is_unknown(tmp_path: Path) -> None:
    """No error: nothing depends on it but a warning."""
    (tmp_path / "file").touch()

    assert file_system_type(tmp_path / "absent") is None
    assert file_system_type(tmp_path / "file") is None


def test_type_is_unknown_where_the_kernel_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `/proc`, and where the mount is outside of the root directory of this process."""
    monkeypatch.setattr(mounts, "_mounts", lambda: iter(()))
    assert file_system_type(tmp_path) is None

    monkeypatch.setattr(mounts, "_PROC", tmp_path)
    assert file_system_type(tmp_path) is None


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay"])
def test_first_rank_of_the_second_node_warns_of_a_disk_of_its_own(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The line names the rank, the directory, the file system, the consequence and what to do."""
    monkeypatch.setattr(mounts, "file_system_type", lambda _: kind)
    (text,) = warnings_of(caplog, tmp_path)

    for part in ("Rank 8", str(tmp_path), f"({kind})", "each has a run of its own", "HINT: choose a directory"):
        assert part in text


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.s3fs", "9p", "virtiofs", None]
)
def test_shared_or_unknown_file_system_is_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    """Only what is surely of one machine counts."""
    monkeypatch.setattr(mounts, "file_system_type", lambda _: kind)

    assert warnings_of(caplog, tmp_path) == []


@pytest.mark.parametrize(
    ("ranks", "call"),
    [
        (Ranks(0, 0, 0, 16), 1),
        (Ranks(1, 1, 0, 16), 1),
        (Ranks(9, 1, 1, 16), 1),
        (Ranks(16, 0, 2, 24), 1),
        (FIRST_OF_SECOND_NODE, 2),
        (Ranks(), 1),
    ],
)
def test_no_other_rank_and_no_later_run_looks_at_the_mount(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Ranks, call: int
) -> None:
    """One line for a launch, and not one more call to the file server."""

    def refuse(_: Path) -> None:
        raise AssertionError

    monkeypatch.setattr(mounts, "file_system_type", refuse)

    assert warnings_of(caplog, tmp_path, ranks, call) == []


def test_mount_of_a_directory_is_that_of_the_one_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless something is mounted there, as on `/proc`; where the kernel does not tell, the devices tell."""
    (tmp_path / "below").mkdir()

    def mount_of(path: Path) -> str:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return mounts.mount_of(descriptor)
        finally:
            os.close(descriptor)

    for place in (None, tmp_path / "nothing"):
        if place is not None:
            monkeypatch.setattr(mounts, "_PROC", place)
        assert mount_of(tmp_path) == mount_of(tmp_path / "below")
        if Path("/proc/self").exists():
            assert mount_of(Path("/proc")) != mount_of(tmp_path)
