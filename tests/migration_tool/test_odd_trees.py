"""Old trees with things in them that NeMo did not make, or that this user may not read, and disks that are full."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from immutable_logs.catalog import Experiment
from immutable_logs.layout import ExperimentLayout
from migration.apply import apply_plan
from migration.finalize import finalize_migration
from migration.legacy_search import find_experiments
from migration.undo import undo_migration
from migration.verify import verify_migration

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.migration_tool.conftest import Contents, OldTree


def test_what_is_not_nemos_is_not_touched_by_any_command(
    old_tree: OldTree, start: float, contents: Callable[[Path], Contents]
) -> None:
    """A file `run_5`, an empty `run_4`, `run_scripts/`, NeMo-RL's `run_7`, links that dangle or loop: all stay.

    Neither `apply` nor `finalize` changes them, also where their times are those of a launch, and nothing in a run
    leads to them.
    """
    for number in range(3):
        old_tree.launch(start + 100 * number, end=start + 100 * number + 50)
    top = old_tree.path
    (top / "run_4").mkdir()
    for name in ("run_5", "run_scripts/go.sh", "run_7/step_100/weights", "run_7/notes.txt", "run_best/a.txt"):
        old_tree.write(name, name, start + 220)
    for name, text in {
        "dangling": "nowhere",
        "looping": "looping",
        "run_0/up": "..",
        "run_1/dangling": "../gone/file",
        "run_1/absolute": "/nonexistent/file",
    }.items():
        (top / name).symlink_to(text)
    before = contents(top)
    foreign = {name for name in before if name.split(b"/")[0] in {b"run_4", b"run_5", b"run_7", b"run_best"}}
    foreign |= {name for name, what in before.items() if what.startswith("link ") or b"run_scripts" in name}
    (experiment,) = find_experiments([top], [])

    apply_plan(experiment)

    (experiment,) = find_experiments([top], [])
    assert verify_migration(experiment).problems == []
    linked = {path.stat().st_ino for run in Experiment(top).runs() for path in run.path.iterdir()}
    assert not linked & {os.lstat(os.fsencode(top) + b"/" + name).st_ino for name in foreign}
    assert {name: what for name, what in contents(top).items() if name in before} == before
    undo_migration(ExperimentLayout.of(top))
    assert contents(top) == before
    (experiment,) = find_experiments([top], [])
    apply_plan(experiment)
    (experiment,) = find_experiments([top], [])
    assert finalize_migration(experiment, now=start + 1e6).objections == []
    assert {name: contents(top).get(name) for name in foreign} == {name: before[name] for name in foreign}


def migrate_without_privileges(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the program as a user whom permissions bind, which those of root do not."""
    program = shutil.which("migrate-nemo-logs", path=os.path.dirname(sys.executable))
    assert program is not None
    command = [program, *map(str, arguments)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("without setpriv root cannot give up its privileges here")
        dropped = ("dac_override", "dac_read_search", "fowner", "sys_admin")
        command = ["setpriv", "--bounding-set", ",".join(f"-{name}" for name in dropped), *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_files_without_read_permission_are_adopted(
    old_tree: OldTree, start: float, contents: Callable[[Path], Contents]
) -> None:
    """A log that cannot be read is judged by its times, and the plan says so; its bytes and permissions stay."""
    old_tree.launch(start, end=start + 50, ranks=(0, 1))
    old_tree.launch(start + 1000, end=start + 1050)
    closed = old_tree.path / "run_0" / "nemo_log_globalrank-1_localrank-1.txt"
    closed.chmod(0)

    planned = migrate_without_privileges("plan", "--files", old_tree.path)
    applied = migrate_without_privileges("apply", old_tree.path)
    verified = migrate_without_privileges("verify", old_tree.path)

    assert "its content cannot be read (Permission denied)" in planned.stdout
    assert (applied.returncode, verified.returncode) == (0, 0), applied.stderr + verified.stderr
    first = Experiment(old_tree.path).runs()[0]
    assert (first.path / closed.name).samefile(closed)
    assert closed.stat().st_mode & 0o777 == 0
    assert migrate_without_privileges("undo", old_tree.path).returncode == 0
    assert not (old_tree.path / "runs").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else")
def test_a_file_of_somebody_else_that_cannot_be_read_is_linked_symbolically(old_tree: OldTree, start: float) -> None:
    """Linux lets nobody link hard what is another's and closed to him (`protected_hardlinks`)."""
    old_tree.launch(start)
    closed = old_tree.path / "lightning_logs.txt"
    closed.chmod(0o600)
    os.chown(closed, 12345, 12345)

    applied = migrate_without_privileges("apply", old_tree.path)

    assert applied.returncode == 0, applied.stderr
    (run,) = Experiment(old_tree.path).runs()
    is_protected = Path("/proc/sys/fs/protected_hardlinks").read_text(encoding="ascii").strip() == "1"
    assert (run.path / closed.name).is_symlink() == is_protected
    assert migrate_without_privileges("verify", old_tree.path).returncode == 0


def test_a_directory_that_cannot_be_read_is_named(old_tree: OldTree, start: float) -> None:
    """The rest is migrated, and the exit code says that somebody should look."""
    old_tree.launch(start, end=start + 50)
    old_tree.launch(start + 1000, end=start + 1050)
    closed = old_tree.path / "run_0"
    closed.chmod(0)

    try:
        planned = migrate_without_privileges("plan", old_tree.path)
        applied = migrate_without_privileges("apply", old_tree.path)
    finally:
        closed.chmod(0o755)

    assert planned.returncode == applied.returncode == 1
    for done in (planned, applied):
        assert f"cannot look into a directory (Permission denied): {closed}" in done.stderr
        assert "Traceback" not in done.stderr
    assert (Experiment(old_tree.path).runs()[-1].path / "cmd-args.log").samefile(old_tree.path / "cmd-args.log")


_FULL = """
set -e
mount -t tmpfs -o size=4m,nr_inodes=1000 none "$1"
cp -r --preserve=timestamps "$2" "$1/tiny"
list() { (cd "$1/tiny" && find . ! -type d -print0 | sort -z | xargs -0 sha256sum; find . -type d | sort); }
list "$1" > "$1/../before"
free=%s
set +e
migrate-nemo-logs apply "$1"; echo "status $?"
set -e
%s
migrate-nemo-logs apply "$1"
migrate-nemo-logs verify "$1"
migrate-nemo-logs undo "$1"
list "$1" | diff - "$1/../before" && echo same
"""
_FEW_NAMES = 'mount -o "remount,nr_inodes=$(( $(df --output=iused "$1" | tail -n 1) + %d ))" "$1"'
_MORE_NAMES = 'mount -o remount,nr_inodes=1000 "$1"'
_FEW_BLOCKS = """
head -c "$(( $(df -B1 --output=avail "$1" | tail -n 1) - %d ))" /dev/zero > "$1/filler"
"""
_MORE_BLOCKS = 'rm "$1/filler"'


@pytest.mark.parametrize(
    ("fill", "clear"),
    [
        *(pytest.param(_FEW_NAMES % left, _MORE_NAMES, id=f"names-{left}") for left in (0, 3, 20, 42)),
        *(pytest.param(_FEW_BLOCKS % left, _MORE_BLOCKS, id=f"bytes-{left}") for left in (0, 4096, 16384)),
    ],
)
def test_a_disk_that_is_really_full(unpack: Callable[[str], Path], tmp_path: Path, fill: str, clear: str) -> None:
    """Whether names or blocks run out: one sentence, exit code 3, and with room again the next call goes on."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount in a name space of his own")
    mount = tmp_path / "mount"
    mount.mkdir()

    done = subprocess.run(
        [
            "unshare",
            "-rm",
            "bash",
            "-c",
            _FULL % ("\n" + fill, clear),
            "bash",
            str(mount),
            str(unpack("3.0.0_single")),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "status 3" in done.stdout
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "24 old files are in their runs" in done.stdout
    assert done.stdout.endswith("same\n")
