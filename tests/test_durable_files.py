from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import durable_files
from immutable_logs.errors import NotVisibleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Children


class ScriptedTime:
    """A clock that only passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        """Return the scripted time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def scripted_time(monkeypatch: pytest.MonkeyPatch) -> ScriptedTime:
    """Let the module wait without waiting."""
    scripted = ScriptedTime()
    monkeypatch.setattr(durable_files, "time", scripted)
    return scripted


@pytest.fixture
def umask() -> Iterator[Any]:
    """The function that sets the umask, put back afterwards."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def test_exclusive_file_is_created_once(tmp_path: Path) -> None:
    """The second creator is told so, and the content stays the first one's."""
    path = tmp_path / "file"

    assert durable_files.create_exclusive(path, b"first", durable=True)
    assert not durable_files.create_exclusive(path, b"second")
    assert path.read_bytes() == b"first"


def test_exclusive_file_does_not_follow_a_link(tmp_path: Path) -> None:
    """A dangling link in the place of the file is not written through."""
    (tmp_path / "file").symlink_to("elsewhere")

    assert not durable_files.create_exclusive(tmp_path / "file", b"x")
    assert not (tmp_path / "elsewhere").exists()


def test_exclusive_file_in_a_missing_directory_is_not_found(tmp_path: Path) -> None:
    """The caller learns that the directory has to be made first."""
    with pytest.raises(FileNotFoundError):
        durable_files.create_exclusive(tmp_path / "missing" / "file", b"")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel takes a few bytes at a time the file is complete all the same."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))

    assert durable_files.create_exclusive(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_only_one_of_many_threads_creates_a_name(tmp_path: Path) -> None:
    """Creation of a file and of a link is exclusive."""
    wins: list[str] = []
    barrier = threading.Barrier(8)

    def race(number: int) -> None:
        barrier.wait()
        for turn in range(50):
            if durable_files.create_exclusive(tmp_path / f"file{turn}", b""):
                wins.append(f"file{turn}")
            if durable_files.create_link(f"target{number}", tmp_path / f"link{turn}"):
                wins.append(f"link{turn}")

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(wins) == len(set(wins)) == 100


def test_second_name_leads_to_the_same_file_and_is_made_once(tmp_path: Path) -> None:
    """A taken name is told and left as it is; of a link the link itself gets the second name."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")

    assert durable_files.create_hard_link(tmp_path / "file", tmp_path / "twin")
    assert (tmp_path / "twin").stat().st_ino == (tmp_path / "file").stat().st_ino
    assert not durable_files.create_hard_link(tmp_path / "link", tmp_path / "twin")
    assert durable_files.create_hard_link(tmp_path / "link", tmp_path / "second link")
    assert os.readlink(tmp_path / "second link") == "file"
    with pytest.raises(FileNotFoundError):
        durable_files.create_hard_link(tmp_path / "gone", tmp_path / "third")


@pytest.mark.parametrize(
    ("number", "is_refusal"), [(errno.EXDEV, True), (errno.EMLINK, True), (errno.EPERM, True), (errno.ENOSPC, False)]
)
def test_refusal_of_hard_links_is_told_from_other_errors(number: int, is_refusal: bool) -> None:
    """Another file system, or too many names, is no full disk."""
    assert durable_files.is_without_hard_links(OSError(number, "")) is is_refusal


def test_extending_adds_bytes_as_they_are_and_makes_no_file(tmp_path: Path) -> None:
    """Whoever extends a file knows that it is there."""
    (tmp_path / "file").write_bytes(b"one")
    durable_files.extend(tmp_path / "file", b"two")

    assert (tmp_path / "file").read_bytes() == b"onetwo"
    with pytest.raises(FileNotFoundError):
        durable_files.extend(tmp_path / "gone", b"x")


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, 524])
def test_refusal_of_links_is_told_from_other_errors(number: int) -> None:
    """1, 38, 95 and 524 mean that the mount has no symbolic links."""
    assert durable_files.is_without_links(OSError(number, ""))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
def test_other_errors_are_no_refusal_of_links(number: int) -> None:
    """A full disk does not make the mount one without links."""
    assert not durable_files.is_without_links(OSError(number, ""))


def test_stale_handle_is_read_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ESTALE the path leads to the new file, so that a second try reads it; a third is not made."""
    (tmp_path / "link").symlink_to("text")
    readlink = os.readlink
    answers = [OSError(errno.ESTALE, "stale")]

    def flaky(path: Path) -> str:
        if answers:
            raise answers.pop()
        return readlink(path)

    monkeypatch.setattr(os, "readlink", flaky)
    assert durable_files.read_link(tmp_path / "link") == "text"
    answers.extend([OSError(errno.ESTALE, "stale")] * 2)
    with pytest.raises(OSError, match="stale"):
        durable_files.read_link(tmp_path / "link")


def test_directories_are_made_deepest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where everything is there already it costs one call, however deep the path is."""
    path = tmp_path / "a" / "b" / "c"
    durable_files.create_directory(path, like=tmp_path)
    calls: list[Path] = []
    mkdir = os.mkdir

    def counted(path: Path) -> None:
        calls.append(path)
        mkdir(path)

    monkeypatch.setattr(os, "mkdir", counted)
    durable_files.create_directory(path, like=tmp_path)

    assert path.is_dir()
    assert calls == [path]


def test_many_threads_make_the_same_directories(tmp_path: Path) -> None:
    """Whoever comes first, nobody fails."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def race() -> None:
        barrier.wait()
        try:
            for turn in range(30):
                durable_files.create_directory(tmp_path / str(turn) / "a" / "b" / "c", like=tmp_path)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not errors


def test_link_to_a_directory_is_as_good_as_a_directory(tmp_path: Path) -> None:
    """Users put `checkpoints` or a whole experiment elsewhere by a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    durable_files.create_directory(tmp_path / "link", like=tmp_path)
    durable_files.create_directory(tmp_path / "link" / "deeper", like=tmp_path)

    assert (tmp_path / "real" / "deeper").is_dir()


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_what_is_no_directory_is_reported(tmp_path: Path, kind: str) -> None:
    """A file or a dangling link in the way is an error that names it."""
    path = tmp_path / "taken"
    if kind == "file":
        path.touch()
    else:
        path.symlink_to("nowhere")

    with pytest.raises(NotADirectoryError) as caught:
        durable_files.create_directory(path, like=tmp_path)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("mask", [0o077, 0o002, 0o022])
def test_directories_take_over_the_group_permissions(tmp_path: Path, umask: Any, mask: int) -> None:
    """A colleague of the group can resume, whatever the umask of the first user; strangers get nothing by that."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    umask(mask)
    durable_files.create_directory(shared / "a" / "b", like=shared)

    for path in (shared / "a", shared / "a" / "b"):
        mode = path.stat().st_mode
        assert mode & 0o2070 == 0o2070
        assert mode & 0o007 == 0o007 & ~mask


def test_private_directory_stays_private(tmp_path: Path, umask: Any) -> None:
    """Nothing is opened that the experiment does not open."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    umask(0o077)
    durable_files.create_directory(private / "a", like=private)

    assert stat.S_IMODE((private / "a").stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root has a second group for sure")
def test_directories_take_over_the_group(tmp_path: Path) -> None:
    """The group is the experiment's also where the mount does not inherit it."""
    os.chown(tmp_path, -1, 4242)
    durable_files.create_directory(tmp_path / "a" / "b", like=tmp_path)

    assert (tmp_path / "a" / "b").stat().st_gid == 4242


def test_refused_group_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the group may not be changed the directory is still made."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not allowed")

    tmp_path.chmod(0o2770)
    monkeypatch.setattr(os, "chown", refuse)
    monkeypatch.setattr(Path, "chmod", refuse)
    durable_files.create_directory(tmp_path / "a" / "b", like=tmp_path)

    assert (tmp_path / "a" / "b").is_dir()


def test_name_that_shows_up_late_is_waited_for(tmp_path: Path, scripted_time: ScriptedTime) -> None:
    """A cached "not there" is overcome by listing the parent and trying again."""
    denials = [FileNotFoundError(), FileNotFoundError()]

    def read() -> str:
        if denials:
            raise denials.pop()
        return "content"

    assert durable_files.wait_until_visible(read, tmp_path / "name") == "content"
    assert len(scripted_time.pauses) == 2


def test_visible_name_costs_no_wait(tmp_path: Path, scripted_time: ScriptedTime) -> None:
    """On ordinary mounts nothing sleeps."""
    assert durable_files.wait_until_visible(lambda: 7, tmp_path / "name") == 7
    assert scripted_time.pauses == []


def test_name_that_never_shows_up_is_given_up_with_path_and_time(tmp_path: Path, scripted_time: ScriptedTime) -> None:
    """After longer than any cache lives the error says what was waited for, how long, and where to look."""
    with pytest.raises(NotVisibleError, match=r"waited 75 s .*/name\nHINT") as caught:
        durable_files.wait_until_visible(lambda: os.lstat(tmp_path / "name"), tmp_path / "name")

    assert caught.value.path == tmp_path / "name"
    assert 75.0 <= scripted_time.now < 78.0


def test_server_time_is_comparable_with_file_times(tmp_path: Path) -> None:
    """It is the time that a file gets that is written at this moment."""
    before = tmp_path / "before"
    before.touch()
    present = durable_files.server_time(tmp_path)

    assert present >= before.stat().st_mtime
    assert present - before.stat().st_mtime < 60.0


def test_replaced_name_is_never_missing(tmp_path: Path) -> None:
    """A reader finds the old or the new one at every moment."""
    target = tmp_path / "name"
    target.write_text("0")
    is_done = threading.Event()
    missing: list[BaseException] = []

    def read() -> None:
        while not is_done.is_set():
            try:
                target.read_text()
            except FileNotFoundError as error:
                missing.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        (tmp_path / "next").write_text(str(number))
        durable_files.replace(tmp_path / "next", target)
    is_done.set()
    reader.join()

    assert not missing


def test_locked_writer_mends_a_torn_end(tmp_path: Path) -> None:
    """Under the lock a newline is written only where the last line lacks one."""
    path = tmp_path / "lines"
    durable_files.append(path, b"one\n", after_newline=True)
    durable_files.append(path, b"two\n", after_newline=True)
    with path.open("ab") as file:
        file.write(b"torn")
    durable_files.append(path, b"three\n", after_newline=True)

    assert path.read_bytes() == b"one\ntwo\ntorn\nthree\n"


def test_writer_without_a_lock_begins_with_a_newline(tmp_path: Path) -> None:
    """Nothing that another writer left half-done can spoil the line."""
    path = tmp_path / "lines"
    durable_files.append(path, b"one\n", after_newline=False)
    durable_files.append(path, b"two\n", after_newline=False)

    assert path.read_bytes() == b"\none\n\ntwo\n"


def test_each_append_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers on one machine cannot interleave within a line."""
    writes: list[bytes] = []
    write = os.write

    def counted(descriptor: int, data: bytes) -> int:
        writes.append(bytes(data))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", counted)
    durable_files.append(tmp_path / "lines", b"one\n", after_newline=False)

    assert writes == [b"\none\n"]


def test_lock_keeps_others_out_until_it_is_released(tmp_path: Path, children: Children) -> None:
    """Another process waits for the lock for as long as it was told to, and gets it once it is free."""
    path = tmp_path / "lock"
    code = """
        from immutable_logs import durable_files
        from pathlib import Path
        with durable_files.locked(Path(sys.argv[1]), timeout=float(sys.argv[2])) as is_held:
            report(is_held=is_held)
    """
    with durable_files.locked(path, timeout=0) as is_held:
        assert is_held
        assert children.start(code, path, 0.1).report() == {"is_held": False}
    assert children.start(code, path, 0.1).report() == {"is_held": True}


def test_forked_child_does_not_keep_the_lock(tmp_path: Path, children: Children) -> None:
    """A data loader forked within the lock has a copy of the descriptor; the lock is free after the block even so."""
    code = """
        from immutable_logs import durable_files
        from pathlib import Path
        path = Path(sys.argv[1])
        with durable_files.locked(path, timeout=1) as is_held:
            assert is_held
            child = os.fork()
            if child == 0:
                sys.stdin.read()
                os._exit(0)
        report(released=True)
        gate()
        os.waitpid(child, 0)
    """
    child = children.start(code, tmp_path / "lock", is_gated=True)
    assert child.popen.stdout is not None
    assert child.popen.stdout.readline() == '{"released": true}\n'

    with durable_files.locked(tmp_path / "lock", timeout=5.0) as is_held:
        assert is_held
    children.open_gate()
    assert child.reports() == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_mount_without_locks_is_told_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted_time: ScriptedTime, number: int
) -> None:
    """Where `flock` fails the caller goes on without a lock at once."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with durable_files.locked(tmp_path / "lock", timeout=10.0) as is_held:
        assert not is_held
    assert scripted_time.pauses == []


def test_held_lock_is_given_up_after_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted_time: ScriptedTime
) -> None:
    """Bookkeeping never holds up a training for longer than that."""

    def busy(*_: object) -> None:
        raise BlockingIOError(errno.EWOULDBLOCK, "busy")

    monkeypatch.setattr(fcntl, "flock", busy)
    with durable_files.locked(tmp_path / "lock", timeout=10.0) as is_held:
        assert not is_held
    assert 10.0 <= scripted_time.now < 10.2


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS, errno.EACCES])
def test_directory_that_cannot_be_synced_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Some mounts cannot sync a directory; that is no error."""

    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    durable_files.sync_directory(tmp_path)


def test_failing_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that cannot write is reported."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="broken disk"):
        durable_files.sync_directory(tmp_path)


def test_no_descriptor_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither success nor failure leaks a descriptor."""
    before = os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else []
    (tmp_path / "file").touch()
    durable_files.create_exclusive(tmp_path / "other", b"x", durable=True)
    durable_files.append(tmp_path / "lines", b"x\n", after_newline=True)
    with durable_files.locked(tmp_path / "file", timeout=0):
        pass

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="full"):
        durable_files.create_exclusive(tmp_path / "third", b"x")
    with pytest.raises(OSError, match="full"):
        durable_files.append(tmp_path / "lines", b"x\n", after_newline=True)

    assert len(os.listdir("/proc/self/fd") if before else []) == len(before)


def test_mark_fills_an_empty_file_once(tmp_path: Path) -> None:
    """A second mark adds nothing."""
    path = tmp_path / "file"
    path.touch()

    assert durable_files.mark(path, b"pruned\n")
    assert durable_files.mark(path, b"again\n")
    assert path.read_bytes() == b"pruned\n"


def test_mark_makes_nothing_and_follows_no_link(tmp_path: Path) -> None:
    """A file that is gone is told; in a shared directory anyone can have put a link there."""
    assert not durable_files.mark(tmp_path / "gone", b"x")
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError, match="expected a file, found a symbolic link"):
        durable_files.mark(tmp_path / "link", b"x")

    assert (tmp_path / "target").read_bytes() == b""
    assert not (tmp_path / "gone").exists()


def test_a_mount_with_locks_is_told_while_another_holds_one(tmp_path: Path) -> None:
    """To ask takes no lock and frees none."""
    path = tmp_path / "lock"
    with durable_files.locked(path, timeout=0.0) as is_held:
        assert is_held
        assert durable_files.has_locks(path)
        with durable_files.locked(path, timeout=0.0) as is_held_twice:
            assert not is_held_twice


def test_a_mount_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses every call."""
    (tmp_path / "lock").touch()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)

    assert not durable_files.has_locks(tmp_path / "lock")


@pytest.mark.parametrize("verb", ["create_exclusive", "create_link", "create_hard_link"])
def test_a_taken_name_is_told_from_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """SSHFS says EPERM for a name that another client has just made, which elsewhere means that there are no links."""
    source, path = tmp_path / "source", tmp_path / "name"
    source.write_bytes(b"content")

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    for call in ("open", "symlink", "link"):
        monkeypatch.setattr(os, call, refuse)
    creates: dict[str, Callable[[], bool]] = {
        "create_exclusive": lambda: durable_files.create_exclusive(path, b"content"),
        "create_link": lambda: durable_files.create_link("target", path),
        "create_hard_link": lambda: durable_files.create_hard_link(source, path),
    }
    create = creates[verb]

    with pytest.raises(PermissionError):
        create()
    os.mkdir(path)
    assert create() is False


def test_a_directory_that_another_client_has_made_is_told_from_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For directories as for files and links: SSHFS says EPERM, and the directory is there."""
    path = tmp_path / "directory"
    real_mkdir = os.mkdir

    def refuse(name: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(name))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(PermissionError):
        durable_files.create_directory(path, like=tmp_path)
    real_mkdir(path)
    durable_files.create_directory(path, like=tmp_path)
