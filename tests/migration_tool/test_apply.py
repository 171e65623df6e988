from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import durable_files, start_run
from immutable_logs.catalog import Experiment
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import read_manifest
from immutable_logs.records import FinishRecord, RunRecord
from migration.apply import Applied, apply_plan
from migration.legacy_search import find_experiments
from migration.undo import undo_migration
from migration.verify import Verified, verify_migration

if TYPE_CHECKING:
    from tests.conftest import Children
    from tests.migration_tool.conftest import Contents, OldTree

Look = Callable[[Path], "Contents"]


def apply(path: Path) -> Applied:
    """Apply the plan for one log directory."""
    (experiment,) = find_experiments([path], [])
    return apply_plan(experiment)


def verify(path: Path) -> Verified:
    """Verify one experiment."""
    (experiment,) = find_experiments([path], [])
    return verify_migration(experiment)


def twins_of(path: Path) -> dict[int, list[str]]:
    """Return the names of every file in the run directories, by inode."""
    found: dict[int, list[str]] = {}
    for run in (path / "runs").iterdir():
        if run.is_dir() and not run.name.startswith("."):
            for file in run.iterdir():
                found.setdefault(file.stat().st_ino, []).append(f"{run.name}/{file.name}")
    return found


def test_a_real_tree_is_added_to_and_nothing_else(
    corpus_name: str, unpack: Callable[[str], Path], contents: Look
) -> None:
    """Old names and bytes stay; every one is in a run; a second call changes nothing; undo leaves the old tree."""
    path = unpack(corpus_name)
    before = contents(path)

    applied = apply(path)
    after = contents(path)
    again = apply(path)

    assert applied.files > 0
    assert {name: what for name, what in after.items() if name in before} == before
    assert not again.has_changed
    assert contents(path) == after
    assert verify(path).problems == []
    assert verify(path).files >= applied.files - 2
    assert all(run.status == "adopted" for run in Experiment(path).runs())
    undone = undo_migration(ExperimentLayout.of(path))
    assert (undone.kept, undone.foreign) == ([], [])
    assert contents(path) == before


def test_a_run_holds_the_same_files_and_says_where_they_come_from(unpack: Callable[[str], Path]) -> None:
    """Names in runs are second names of the old files; the records tell start, end, command, commit and lineage."""
    path = unpack("3.0.0_torchrun_testing")

    apply(path)

    experiment = Experiment(path)
    first, second, *_ = experiment.runs()
    assert (path / "run_1" / "cmd-args.log").samefile(first.path / "cmd-args.log")
    assert (path / "run_0" / "nemo_log_globalrank-1_localrank-1.txt").samefile(
        first.path / "nemo_log_globalrank-1_localrank-1.txt"
    )
    record = RunRecord.decode((second.path / "run.json").read_bytes(), "run.json")
    assert record.arguments[:3] == ["/home/user/project/train.py", "--devices", "2"]
    assert record.git_commit == "1c577b961387f4b2871fc3b78c9ab6b1d246becd"
    assert (record.resumed_from, record.lineage, record.checkpoints) == (first.id, first.id, "checkpoints")
    assert record.adopted_from["log_directory"] == "."
    assert "run_2/cmd-args.log" in record.adopted_from["files"]
    end = FinishRecord.decode((second.path / "finished.json").read_bytes(), "finished.json")
    assert end.outcome == "finished"
    assert not (second.path / "ranks").exists()
    assert second.ended is not None
    assert second.started < second.ended


def test_runs_are_in_the_order_of_their_launches(old_tree: OldTree, start: float) -> None:
    """`run_10` after `run_2`, and a number says nothing: the manifest has the order of the starts."""
    for number in range(13):
        old_tree.launch(start + 1000 * number)
    (old_tree.path / "run_2").rename(old_tree.path / "run_77")

    apply(old_tree.path)

    records = read_manifest(ExperimentLayout.of(old_tree.path)).records
    assert [record.time for record in records] == sorted(record.time for record in records)
    assert len(records) == 13
    latest = Experiment(old_tree.path).latest
    assert latest is not None
    assert latest.id == records[-1].run


def test_checkpoints_are_never_touched(unpack: Callable[[str], Path]) -> None:
    """Not those in `checkpoints/`, nor those that lie between the logs and were moved with them."""
    path = unpack("2.7.3_x_ckpt_in_logdir")

    apply(path)

    assert all(file.stat().st_nlink == 1 for file in path.rglob("*.ckpt"))
    assert not list((path / "runs").rglob("*.ckpt"))


def test_event_files_of_a_lineage_are_in_one_directory_in_order(unpack: Callable[[str], Path]) -> None:
    """TensorBoard sees one curve over resumed launches, and one each for independent ones; no link dangles."""
    resumed, fresh = unpack("3.0.0_single"), unpack("3.0.0_x_datetime_versions")

    apply(resumed)
    apply(fresh)

    (lineage,) = (resumed / "tensorboard").iterdir()
    links = sorted(lineage.iterdir())
    assert [link.name[:5] for link in links] == ["0001_", "0002_", "0003_", "0004_"]
    assert [link.resolve().parent.name for link in links] == [run.id for run in Experiment(resumed).runs()]
    assert not any(os.path.isabs(os.readlink(link)) for link in links)
    assert len(list((fresh / "tensorboard").iterdir())) == 3


def test_a_latest_that_is_there_is_left(unpack: Callable[[str], Path]) -> None:
    """A link of the user's own keeps its text."""
    path = unpack("3.0.0_single")
    (path / "latest").symlink_to("version_3")

    apply(path)

    assert os.readlink(path / "latest") == "version_3"


def test_adopted_runs_come_before_runs_of_the_layout(unpack: Callable[[str], Path]) -> None:
    """In an experiment that uses the layout already, `latest` stays with its run and the order is that of time."""
    path = unpack("3.0.0_single")
    with start_run(path) as run:
        pass

    apply(path)

    assert [each.id for each in Experiment(path).runs()][-1] == run.id
    assert os.readlink(path / "latest") == f"runs/{run.id}"
    undo_migration(ExperimentLayout.of(path))
    assert [each.id for each in Experiment(path).runs()] == [run.id]


def test_stock_nemo_used_again_is_migrated_again(old_tree: OldTree, start: float) -> None:
    """A colleague without the add-on moved the adopted files: they are known, and only the new launch is added."""
    old_tree.launch(start, end=start + 50, pid=1)
    old_tree.launch(start + 100, end=start + 150, pid=2)
    apply(old_tree.path)
    known = [run.id for run in Experiment(old_tree.path).runs()]
    old_tree.launch(start + 200, end=start + 250, pid=3)

    applied = apply(old_tree.path)

    assert (applied.runs, applied.files) == (1, 7)
    assert [run.id for run in Experiment(old_tree.path).runs()][:2] == known
    assert verify(old_tree.path).problems == []
    assert not apply(old_tree.path).has_changed


def test_odd_names_are_linked(old_tree: OldTree, start: float, contents: Look) -> None:
    """Blanks, line ends, bytes that are no text, names as long as can be, and names that a run needs for itself."""
    names = ["a b", "line\nend", os.fsdecode(b"\xff\xfe"), "x" * 255, "run.json", "ranks", "\u202e", "-rf"]
    old_tree.launch(start, end=start + 50)
    for name in names:
        old_tree.write(name, name.encode("utf-8", "surrogateescape"), start + 10)
    old_tree.launch(start + 100)
    before = contents(old_tree.path)

    apply(old_tree.path)

    assert verify(old_tree.path).problems == []
    twins = twins_of(old_tree.path)
    for name in names:
        assert len(twins[(old_tree.path / "run_0" / name).stat().st_ino]) == 1, name
    first = Experiment(old_tree.path).runs()[0]
    assert RunRecord.decode((first.path / "run.json").read_bytes(), "run.json").run == first.id
    undo_migration(ExperimentLayout.of(old_tree.path))
    assert contents(old_tree.path) == before


def test_a_tree_is_reached_through_a_link(old_tree: OldTree, start: float, tmp_path: Path) -> None:
    """What is added holds no path through which it was added."""
    old_tree.launch(start)
    link = tmp_path / "link"
    link.symlink_to(old_tree.path)

    apply(link)

    assert not apply(old_tree.path).has_changed
    assert verify(old_tree.path).problems == []
    for file in (old_tree.path / "runs").rglob("*.json*"):
        assert str(link).encode() not in file.read_bytes()


def test_a_training_that_writes_meanwhile_loses_nothing(old_tree: OldTree, start: float, children: Children) -> None:
    """A live writer keeps writing through its open file and by its name, and both names show every line."""
    old_tree.launch(start)
    log = old_tree.path / "nemo_log_globalrank-0_localrank-0.txt"
    writer = children.start(
        """\
        with open(sys.argv[1], "a", buffering=1) as file:
            report(is_writing=True)
            for number in range(3000):
                file.write(f"line {number}\\n")
                with open(sys.argv[1], "a") as again:
                    again.write(f"by name {number}\\n")
        report(is_done=True)
        """,
        log,
    )
    assert writer.popen.stdout is not None
    writer.popen.stdout.readline()

    for _ in range(10):
        apply(old_tree.path)

    assert writer.reports() == [{"is_done": True}]
    (run,) = Experiment(old_tree.path).runs()
    lines = (run.path / log.name).read_text().splitlines()
    assert [line for line in lines if line.startswith("line")] == [f"line {number}" for number in range(3000)]
    assert sum(line.startswith("by name") for line in lines) == 3000
    assert verify(old_tree.path).problems == []


def test_a_launch_that_moves_the_files_meanwhile_is_followed(
    old_tree: OldTree, start: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan and the links stock NeMo moves everything at the top: it is found in the new archive."""
    old_tree.launch(start, end=start + 50, pid=1)
    link: Any = durable_files.create_hard_link
    is_moved = False

    def move_first(source: Path, target: Path) -> bool:
        nonlocal is_moved
        if not is_moved:
            is_moved = True
            old_tree.launch(start + 100, end=start + 150, pid=2)
        return bool(link(source, target))

    monkeypatch.setattr(durable_files, "create_hard_link", move_first)

    applied = apply(old_tree.path)

    assert applied.moved == []
    assert verify(old_tree.path).problems == []
    for run, source in zip(Experiment(old_tree.path).runs(), ("run_0", "."), strict=True):
        assert (run.path / "cmd-args.log").samefile(old_tree.path / source / "cmd-args.log")


@pytest.mark.parametrize("answer", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_what_cannot_be_linked_hard_is_linked_symbolically(
    old_tree: OldTree, start: float, monkeypatch: pytest.MonkeyPatch, contents: Look, answer: int
) -> None:
    """Such a link is relative, known by the next `apply`, and removed by `undo`."""
    old_tree.launch(start)
    before = contents(old_tree.path)

    def refuse(source: Path, target: Path) -> bool:
        raise OSError(answer, os.strerror(answer), str(source))

    monkeypatch.setattr(durable_files, "create_hard_link", refuse)

    applied = apply(old_tree.path)

    (run,) = Experiment(old_tree.path).runs()
    assert applied.symbolic == applied.files == 7
    assert os.readlink(run.path / "cmd-args.log") == "../../cmd-args.log"
    assert not apply(old_tree.path).has_changed
    assert verify(old_tree.path).problems == []
    undo_migration(ExperimentLayout.of(old_tree.path))
    assert contents(old_tree.path) == before


def test_what_cannot_be_linked_at_all_is_copied(
    old_tree: OldTree, start: float, monkeypatch: pytest.MonkeyPatch, contents: Look
) -> None:
    """With times; the next `apply` knows the copies, and `undo` removes them, but not one that is all that is left."""
    old_tree.launch(start)
    before = contents(old_tree.path)

    def refuse(*_: object) -> bool:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(durable_files, "create_hard_link", refuse)
    monkeypatch.setattr(durable_files, "create_link", refuse)

    applied = apply(old_tree.path)

    (run,) = Experiment(old_tree.path).runs()
    assert applied.copied == 7
    assert (run.path / "cmd-args.log").stat().st_mtime == (old_tree.path / "cmd-args.log").stat().st_mtime
    assert not apply(old_tree.path).has_changed
    (old_tree.path / "cmd-args.log").rename(old_tree.path / "aside")
    assert [line.split(":")[0] for line in undo_migration(ExperimentLayout.of(old_tree.path)).kept] == [
        f"runs/{run.id}/cmd-args.log"
    ]
    (old_tree.path / "aside").rename(old_tree.path / "cmd-args.log")
    undo_migration(ExperimentLayout.of(old_tree.path))
    assert contents(old_tree.path) == before


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7, 0.9])
def test_a_full_disk_is_told_and_the_next_call_goes_on(
    old_tree: OldTree, start: float, monkeypatch: pytest.MonkeyPatch, contents: Look, share: float
) -> None:
    """Whichever write or link fails, what is there stays good, and the tree is complete in the end."""
    for number in range(3):
        old_tree.launch(start + 100 * number, end=start + 100 * number + 50)
    before = contents(old_tree.path)
    real = {name: getattr(durable_files, name) for name in ("create_hard_link", "create_exclusive", "append")}
    calls = 0
    limit = int(share * 28)

    def limited(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > limit:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real[name](*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(durable_files, name, limited(name))
        with pytest.raises(OSError, match="No space left"):
            apply(old_tree.path)
    assert {name: what for name, what in contents(old_tree.path).items() if name in before} == before

    apply(old_tree.path)

    assert verify(old_tree.path).problems == []
    undo_migration(ExperimentLayout.of(old_tree.path))
    assert contents(old_tree.path) == before


_MOUNTED = """
set -e
mount -t tmpfs -o size=8m none "$1"
cp -r --preserve=timestamps "$2" "$1/tiny"
%s
"""


def in_own_mounts(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount; skip the test where that is not allowed."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount in a name space of his own")
    return subprocess.run(
        ["unshare", "-rm", "bash", "-c", _MOUNTED % script, "bash", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )


def test_a_read_only_mount_can_be_planned_and_says_why_it_cannot_be_changed(
    unpack: Callable[[str], Path], tmp_path: Path
) -> None:
    """`plan` works; `apply` ends with one sentence and exit code 3."""
    mount = tmp_path / "mount"
    mount.mkdir()

    done = in_own_mounts(
        'mount -o remount,ro "$1"; migrate-nemo-logs "$1" | tail -n 1\n'
        'set +e; migrate-nemo-logs apply "$1"; echo "status $?"',
        mount,
        unpack("3.0.0_single"),
    )

    assert "24 files to add" in done.stdout
    assert "status 3" in done.stdout
    assert "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_file_systems_in_one_tree(unpack: Callable[[str], Path], tmp_path: Path) -> None:
    """An archive on another file system is linked symbolically, and `finalize` keeps its names."""
    mount, second = tmp_path / "mount", tmp_path / "second"
    mount.mkdir()
    second.mkdir()

    done = in_own_mounts(
        'mount -t tmpfs none "$3"; cp -r --preserve=timestamps "$1"/tiny/run_1/. "$3"; touch -r "$1/tiny/run_1" "$3"\n'
        'mount --bind "$3" "$1/tiny/run_1"\n'
        'migrate-nemo-logs apply "$1"; migrate-nemo-logs apply "$1"; migrate-nemo-logs verify "$1"\n'
        'migrate-nemo-logs finalize --yes "$1"; ls "$1/tiny/run_1" | wc -l; migrate-nemo-logs verify "$1"',
        mount,
        unpack("3.0.0_single"),
        second,
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "24 files added, 4 new runs; 4 by symbolic links" in lines[0]
    assert "nothing to do" in lines[1]
    assert "24 old files are in their runs" in lines[2]
    assert "20 old names removed; 4 stay" in lines[3]
    assert "4" in lines


def test_two_migrations_at_once_are_kept_apart(old_tree: OldTree, start: float, children: Children) -> None:
    """The second waits a moment for the first, then says that another is at work."""
    old_tree.launch(start)
    apply(old_tree.path)
    holder = children.start(
        """\
        from pathlib import Path
        from immutable_logs.layout import ExperimentLayout
        from migration.journal import Journal
        with Journal(ExperimentLayout(Path(sys.argv[1]))).held():
            gate()
        """,
        old_tree.path,
        is_gated=True,
    )
    holder.wait_until_ready()
    holder.is_gated = False

    with pytest.raises(RuntimeError, match="another migrate-nemo-logs is at work"):
        apply(old_tree.path)

    children.open_gate()
    assert holder.communicate()[0] == ""
    assert not apply(old_tree.path).has_changed


def test_without_nemo_and_torch(unpack: Callable[[str], Path]) -> None:
    """The program loads neither, nor Lightning, OmegaConf or Hydra."""
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom migration.cli import app\n"
        "result = CliRunner().invoke(app, ['apply', sys.argv[1]])\n"
        "heavy = {'torch', 'nemo', 'lightning', 'omegaconf', 'hydra', 'numpy'} & set(sys.modules)\n"
        "assert result.exit_code == 0 and not heavy, (result.output, heavy)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(unpack("3.0.0_single"))], check=True, timeout=100)
