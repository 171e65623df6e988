"""Directories of other users, groups that work together, and whatever umask they have."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs import Experiment, start_run
from immutable_logs.layout import ExperimentLayout
from tests.hostile.conftest import LOOKS, User, look_arguments


def started_by(experiment: Path, key: str | None = None) -> Callable[[], str]:
    """Return what a user does who starts a run, writes into it and finishes it."""

    def act() -> str:
        for name in ("IMMUTABLE_LOGS_LAUNCH_ID", "RANK", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        if key:
            os.environ.update({"RANK": "0", "MASTER_ADDR": key, "MASTER_PORT": "29500"})
        with start_run(experiment) as run:
            (run.path / "train.log").write_text("a line\n")
        return run.id

    return act


def test_directory_of_another_user_is_refused_with_the_path_and_what_to_do(
    common_place: Path, alice: User, mallory: User, make_for: Callable[..., Path]
) -> None:
    """Nothing is made there, and the error says whose access is needed where."""
    experiment = make_for(common_place / "experiment", alice, 0o755)

    said = mallory.does(lambda: _error_of(started_by(experiment)))

    assert "AgreementError: rank 0 could not settle on a run: " in said
    assert "Permission denied" in said
    assert f"HINT: give this user write access to {experiment}" in said
    assert list(experiment.iterdir()) == []


def test_private_records_are_told_to_be_out_of_reach_and_not_to_be_damaged(
    common_place: Path, alice: User, bob: User, make_for: Callable[..., Path]
) -> None:
    """Whoever may not read a record is not told to restore it from a copy; what the manifest tells is shown."""
    experiment = make_for(common_place / "experiment", alice, 0o750)
    run = alice.does(started_by(experiment), umask=0o077)

    code, said = bob.runs_command("ls", experiment)
    assert (code, run in said, "finished" in said) == (0, True, True)
    code, said = bob.runs_command("show", "-e", experiment)
    assert code == 0
    assert "Permission denied" in said
    code, said = bob.runs_command("verify", experiment)
    assert code == 1
    assert said.count("Permission denied. HINT: look as a user who may read it".replace(" HINT", "\n  HINT")) == 2
    assert "copy" not in said


def test_directory_that_may_not_be_entered_is_told_as_such(
    common_place: Path, alice: User, mallory: User, make_for: Callable[..., Path]
) -> None:
    """It is no experiment without runs, and no fault of the program."""
    experiment = make_for(common_place / "experiment", alice, 0o755)
    alice.does(started_by(experiment), umask=0o077)

    for look in LOOKS:
        code, said = mallory.runs_command(*look_arguments(look, experiment))

        assert code == 3, said
        assert f"Error: Permission denied: {experiment}" in said


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
@pytest.mark.parametrize("mode", [0o2775, 0o2770, 0o775])
def test_colleagues_of_a_group_take_turns_whatever_their_umask(
    common_place: Path, alice: User, bob: User, make_for: Callable[..., Path], mode: int, umask: int
) -> None:
    """Each starts where the other has started, the manifest has every line, and `latest` is switched by both."""
    experiment = make_for(common_place / "experiment", alice, mode)

    started = [user.does(started_by(experiment), umask=umask) for user in (alice, bob, alice, bob)]

    runs = Experiment(experiment).runs()
    assert [(run.id, run.status) for run in runs] == [(each, "finished") for each in started]
    latest = Experiment(experiment).latest
    assert latest is not None
    assert latest.id == started[-1]
    for directory in (experiment / "runs", *(run.path for run in runs), experiment / "runs" / ".launches"):
        status = directory.stat()
        assert status.st_gid == alice.gid
        assert status.st_mode & 0o070 == mode & 0o070
        assert status.st_mode & stat.S_ISGID == mode & stat.S_ISGID
    code, said = bob.runs_command("verify", experiment)
    assert "Traceback" not in said
    if umask != 0o077:
        assert (code, said.strip()) == (0, f"Nothing found: 4 runs in {experiment}")
    assert sorted(os.listdir(experiment)) == ["latest", "runs"]


@pytest.mark.parametrize("umask", [0o077, 0o022])
def test_users_with_the_same_key_that_others_can_have_get_a_run_each(
    common_place: Path, alice: User, bob: User, make_for: Callable[..., Path], umask: int
) -> None:
    """`localhost:29500` is everybody's; an entry that this user may not read is another's."""
    experiment = make_for(common_place / "experiment", alice, 0o2775)

    first = alice.does(started_by(experiment, "localhost"), umask=umask)
    second = bob.does(started_by(experiment, "localhost"), umask=umask)

    assert first.splitlines()[-1] != second.splitlines()[-1]
    assert len(Experiment(experiment).runs()) == 2


def test_sticky_directory_costs_a_warning_and_no_run(
    common_place: Path, alice: User, mallory: User, make_for: Callable[..., Path]
) -> None:
    """As in `/tmp`, another's `latest` cannot be replaced there: it stays, and the catalog knows the newest run."""
    experiment = make_for(common_place / "experiment", alice, 0o1777)
    first = alice.does(started_by(experiment), umask=0)
    for directory in (experiment / "runs", experiment / "runs" / ".launches"):
        directory.chmod(0o1777)
    (experiment / "runs" / "manifest.jsonl").chmod(0o666)

    said = mallory.does(started_by(experiment), umask=0)

    second = said.splitlines()[-1]
    assert "Could not publish run" in said
    assert "Operation not permitted" in said
    assert os.readlink(experiment / "latest") == f"runs/{first}"
    assert [run.id for run in Experiment(experiment).runs()] == [first, second]
    code, told = alice.runs_command("verify", experiment)
    assert code == 1
    assert "problem latest-behind: latest" in told


def test_manifest_that_cannot_be_written_costs_warnings_and_no_run(
    common_place: Path, alice: User, mallory: User, make_for: Callable[..., Path]
) -> None:
    """The run directory is the proof: the run is found all the same."""
    experiment = make_for(common_place / "experiment", alice, 0o777)
    first = alice.does(started_by(experiment))
    for directory in (experiment / "runs", experiment / "runs" / ".launches"):
        directory.chmod(0o777)

    said = mallory.does(started_by(experiment))

    assert said.count("Permission denied") == 2
    assert "Could not publish run" in said
    assert {run.id for run in Experiment(experiment).runs()} == {first, said.splitlines()[-1]}


def test_link_planted_by_a_colleague_does_not_choose_the_file_that_is_written_to(
    common_place: Path, alice: User, bob: User, make_for: Callable[..., Path]
) -> None:
    """A line of ours in somebody's profile would be a way into the account."""
    experiment = make_for(common_place / "experiment", alice, 0o2775)
    home = make_for(common_place / "home", alice, 0o755)
    profile = home / ".profile"
    profile.write_text("export A=1\n")
    os.chown(profile, alice.uid, alice.gid)
    layout = ExperimentLayout.of(experiment)

    def plant() -> None:
        layout.runs.mkdir(mode=0o775)
        layout.manifest.symlink_to(profile)
        layout.latest_workshop.mkdir()

    bob.does(plant, umask=0o002)
    said = alice.does(started_by(experiment))

    assert "expected a file, found a symbolic link" in said
    assert profile.read_text() == "export A=1\n"
    assert profile.stat().st_mode & 0o777 == 0o644


def test_directory_that_may_be_entered_and_not_listed_is_no_obstacle(
    common_place: Path, alice: User, make_for: Callable[..., Path]
) -> None:
    """A parent without the right to read, as homes often are."""
    parent = make_for(common_place / "parent", User(0, 0), 0o711)
    experiment = make_for(parent / "experiment", alice, 0o755)

    run = alice.does(started_by(experiment))

    assert [each.id for each in Experiment(experiment).runs()] == [run]


def _error_of(act: Callable[[], str]) -> str:
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - what it says is looked at
        return f"{type(error).__name__}: {error}"
