from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import tree_removal
from immutable_logs.errors import RemovalError
from immutable_logs.tree_removal import measure_tree, remove_if_empty, remove_link, remove_tree

LONG_AGO = 1_000_000.0
LIMIT = 2_000_000.0


class Os:
    """Passes everything on to `os` but what is given."""

    def __init__(self, **instead: Callable[..., Any]) -> None:
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        return self._instead.get(name) or getattr(os, name)


def age(directory: Path) -> None:
    """Set the times of everything in a directory to long ago."""
    for parent, directories, files in os.walk(directory, topdown=False):
        for name in (*directories, *files):
            os.utime(Path(parent, name), (LONG_AGO, LONG_AGO), follow_symlinks=False)
    os.utime(directory, (LONG_AGO, LONG_AGO))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with files, directories, links in and out, and a pipe."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    root = tmp_path / "tree"
    (root / "ranks" / "0000").mkdir(parents=True)
    (root / "ranks" / "0000" / "rank-000000.json").write_text("entry")
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "file").write_bytes(b"x" * 70)
    (root / "run.json").write_bytes(b"x" * 30)
    (root / "out").symlink_to(outside)
    (root / "out.txt").symlink_to(outside / "kept")
    (root / "dangling").symlink_to("nowhere")
    (root / "\x1b[31m\n").touch()
    os.mkfifo(root / "pipe")
    age(root)
    return root


def remove(path: Path, **options: Any) -> None:
    """Remove a directory as the one that is there now."""
    remove_tree(path, **{"identity": measure_tree(path).identity, "not_after": LIMIT, **options})


def test_everything_in_a_directory_goes_and_nothing_that_links_lead_to(tree: Path) -> None:
    """The links go, their targets stay."""
    remove(tree, first=("ranks", "run.json"))

    assert not tree.exists()
    assert (tree.parent / "outside" / "kept").read_text() == "kept"


def test_the_measure_counts_each_file_once_and_follows_no_link(tree: Path) -> None:
    """Sizes are those of the files in it; what has another name frees nothing."""
    os.link(tree / "run.json", tree.parent / "second name")
    measured = measure_tree(tree)

    assert measured.size == 105
    assert measured.freed == 75
    assert measured.names == {path.name for path in tree.iterdir()}
    assert (measured.obstacle, measured.locked) == (None, None)


def test_the_newest_write_is_found_at_any_depth(tree: Path) -> None:
    """Of a directory, which tells of a name that came or went, and of a file."""
    os.utime(tree / "run.json", (LIMIT - 1, LIMIT - 1))
    os.utime(tree / "deep", (LIMIT + 1, LIMIT + 1))
    os.utime(tree.parent / "outside" / "kept", (LIMIT, LIMIT))
    (tree / "out").unlink()
    os.utime(tree, (LONG_AGO, LONG_AGO))

    # A training writes through the link to a file.
    measured = measure_tree(tree)
    assert (measured.newest, measured.newest_file) == (LIMIT + 1, LIMIT)
    (tree / "out.txt").unlink()
    assert measure_tree(tree).newest_file == LIMIT - 1
    assert measure_tree(tree, apart=["run.json"]).newest_file == LONG_AGO


@pytest.mark.parametrize("operation", [measure_tree, remove])
def test_a_link_is_no_directory(tree: Path, operation: Callable[[Path], object]) -> None:
    """It is not followed, whatever its name."""
    link = tree.parent / "link"
    link.symlink_to(tree)

    with pytest.raises(NotADirectoryError):
        operation(link)
    assert (tree / "run.json").exists()


def test_a_directory_that_is_gone_is_fine(tree: Path) -> None:
    """Another has removed it."""
    identity = measure_tree(tree).identity
    shutil.rmtree(tree)

    remove_tree(tree, identity=identity, not_after=LIMIT)


def test_another_directory_in_its_place_is_left_alone(tree: Path) -> None:
    """Removed is what was looked at."""
    identity = measure_tree(tree).identity
    tree.rename(tree.parent / "moved")
    tree.mkdir()
    (tree / "precious").touch()
    age(tree)

    with pytest.raises(RemovalError, match="another directory has taken its place"):
        remove_tree(tree, identity=identity, not_after=LIMIT)
    assert (tree / "precious").exists()


def test_a_file_that_was_written_too_late_stops_it(tree: Path) -> None:
    """The file stays; its path is told."""
    late = tree / "deep" / "er" / "file"
    os.utime(late, (LIMIT + 1, LIMIT + 1))

    with pytest.raises(RemovalError, match="something was written meanwhile") as caught:
        remove(tree)
    assert caught.value.path == late
    assert late.exists()


def test_first_names_go_first(tree: Path) -> None:
    """A rank that has joined meanwhile stops it before anything else is gone."""
    late = tree / "ranks" / "0000" / "rank-000001.json"
    late.touch()

    with pytest.raises(RemovalError):
        remove(tree, first=("ranks", "run.json"))
    assert late.exists()
    assert (tree / "run.json").exists()
    assert (tree / "deep" / "er" / "file").exists()


def test_names_apart_may_be_new(tree: Path) -> None:
    """The record that a migration has written is not the training's."""
    os.utime(tree / "run.json", (LIMIT + 1, LIMIT + 1))

    remove(tree, apart=["run.json"])

    assert not tree.exists()


def test_a_name_that_appears_meanwhile_stays(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is not empty then."""
    late = tree / "deep" / "late"

    def rmdir(path: Any, *, dir_fd: int | None = None) -> None:
        if path == "deep":
            late.touch()
        os.rmdir(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(tree_removal, "os", Os(rmdir=rmdir))
        with pytest.raises(RemovalError, match="it is not empty") as caught:
            remove(tree)
    assert caught.value.path == tree / "deep"
    assert late.exists()
    age(tree)
    remove(tree)
    assert not tree.exists()


def test_a_file_that_nfs_keeps_for_a_process_is_left_and_told(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client answers that it is busy; it goes when the file is closed, and the next call finishes."""
    (tree / "deep" / ".nfs0001").touch()
    age(tree)

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        if str(path).startswith(".nfs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        os.unlink(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(tree_removal, "os", Os(unlink=unlink))
        with pytest.raises(RemovalError, match=r"a process has one open, which NFS then keeps as \.nfs"):
            remove(tree)
    remove(tree)
    assert not tree.exists()


def test_an_error_of_the_file_system_names_the_path(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below an open directory the kernel tells the last part alone."""

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(tree_removal, "os", Os(unlink=unlink))

    with pytest.raises(PermissionError) as caught:
        remove(tree, first=("ranks",))
    assert caught.value.filename == str(tree / "ranks" / "0000" / "rank-000000.json")


def test_directories_nested_without_end_are_refused(tmp_path: Path) -> None:
    """Each holds a descriptor; more than a hundred come from no training."""
    path = tmp_path / "tree"
    (path / "/".join(["d"] * 120)).mkdir(parents=True)
    age(path)

    assert "nested more than 100 deep" in str(measure_tree(path).obstacle)
    with pytest.raises(RemovalError, match="nested more than 100 deep"):
        remove(path)


def test_many_at_once_are_as_good_as_one(tmp_path: Path) -> None:
    """Every one of them ends well, and nothing is left."""
    root = tmp_path / "tree"
    for number in range(40):
        (root / f"{number}" / "inner").mkdir(parents=True)
        (root / f"{number}" / "inner" / "file").touch()
    age(root)
    identity = measure_tree(root).identity
    problems: list[BaseException] = []

    def go() -> None:
        try:
            remove_tree(root, identity=identity, not_after=LIMIT)
        except OSError as error:
            problems.append(error)

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []
    assert not root.exists()


def test_a_directory_that_another_host_removes_meanwhile_is_fine(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS and SSHFS say of an open directory that its handle is stale; a second look at the path finds nothing."""
    identity = measure_tree(tree).identity

    def remove_first(directory: int) -> list[str]:
        monkeypatch.undo()
        shutil.rmtree(tree)
        raise OSError(errno.ESTALE, "Stale file handle", directory)

    monkeypatch.setattr(os, "listdir", remove_first)
    remove_tree(tree, identity=identity, not_after=LIMIT)

    assert not tree.exists()


def test_a_stale_handle_of_what_is_still_there_is_an_error(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was restarted says the same, and has removed nothing."""
    identity = measure_tree(tree).identity

    def refuse(directory: int) -> list[str]:
        raise OSError(errno.ESTALE, "Stale file handle", directory)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(OSError, match="Stale file handle"):
        remove_tree(tree, identity=identity, not_after=LIMIT)

    assert (tree / "run.json").exists()


def test_a_swapped_directory_leads_nobody_elsewhere(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a directory and its opening it becomes a link: that is refused."""
    outside = tree.parent / "outside"
    real = os.open

    def swapping(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "deep":
            (tree / "deep").rename(tree.parent / "swapped")
            (tree / "deep").symlink_to(outside)
        return real(path, flags, mode, dir_fd=dir_fd)

    identity = measure_tree(tree).identity
    monkeypatch.setattr(tree_removal, "os", Os(open=swapping))

    with pytest.raises(NotADirectoryError):
        remove_tree(tree, identity=identity, not_after=LIMIT)
    assert (outside / "kept").exists()


MOUNTED = """
import os, subprocess, sys
from pathlib import Path
from immutable_logs.errors import RemovalError
from immutable_logs.tree_removal import measure_tree, remove_tree
tree, kind, source = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
identity = measure_tree(tree).identity
inside = tree / "deep" / "er"
command = ["mount", "-t", "tmpfs", "none"] if kind == "tmpfs" else ["mount", "--bind", source]
subprocess.run([*command, str(inside)], check=True)
(inside / "precious").touch()
os.utime(inside / "precious", (1, 1))
print(measure_tree(tree).obstacle)
try:
    remove_tree(tree, identity=identity, not_after=2e6)
except RemovalError as error:
    print(str(error).partition(": ")[0])
print((inside / "precious").exists())
"""


def can_mount() -> bool:
    """Tell whether a name space with mounts of its own can be had here."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount in a name space of its own")
@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_what_is_mounted_in_it_is_not_touched(tree: Path, kind: str) -> None:
    """Also where a directory of the same file system is mounted, which no device number tells."""
    (tree.parent / "source").mkdir()
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", MOUNTED, str(tree), kind, str(tree.parent / "source")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    found, refused, is_there = done.stdout.splitlines()
    assert found == "another file system is mounted in it, at deep/er/"
    assert refused == "another file system is mounted there"
    assert is_there == "True"


def test_only_a_link_is_removed_as_one(tree: Path) -> None:
    """A file that has taken its name stays; one that is gone is fine."""
    for name in ("out", "run.json", "nothing"):
        remove_link(tree / name)

    assert not os.path.lexists(tree / "out")
    assert (tree / "run.json").exists()


def test_only_an_empty_directory_is_removed_as_one(tree: Path) -> None:
    """Anything else stays."""
    (tree / "empty").mkdir()
    for name in ("empty", "deep", "run.json", "nothing"):
        remove_if_empty(tree / name)

    assert not (tree / "empty").exists()
    assert (tree / "deep").exists()
    assert (tree / "run.json").exists()
