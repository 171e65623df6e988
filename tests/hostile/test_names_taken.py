"""Something of the user's has a name of ours already: it stays as it is, and what cannot be done is told."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs import Experiment, ImmutableLogsError, start_run
from immutable_logs.errors import AgreementError
from immutable_logs.launchers.detection import ProcessLaunch
from immutable_logs.layout import ExperimentLayout
from tests.hostile.conftest import LOOKS, Told, assert_told_well, look_arguments, take_name

Command = Callable[..., Told]

KINDS = (
    "file",
    "directory",
    "dangling link",
    "link to a directory",
    "link to a file",
    "link to itself",
    "pipe",
    "socket",
    "device",
)
NO_DIRECTORY = tuple(kind for kind in KINDS if kind not in ("directory", "link to a directory"))
NO_FILE = tuple(kind for kind in KINDS if kind != "file")


def identity_of(path: Path) -> tuple[int, int, str]:
    """Return what shows that something is the same thing as before, with the same content."""
    status = path.lstat()
    content = ""
    if stat.S_ISREG(status.st_mode):
        content = path.read_text()
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    elif stat.S_ISDIR(status.st_mode):
        content = " ".join(sorted(os.listdir(path)))
    return status.st_ino, status.st_mode, content


@pytest.mark.parametrize("kind", NO_DIRECTORY)
@pytest.mark.parametrize("name", ["runs", "runs/.launches", "."])
def test_launch_is_refused_where_a_directory_it_needs_cannot_be(
    experiment: Path, tmp_path: Path, name: str, kind: str
) -> None:
    """Without a fresh directory there is no run: the error names the path and says what to do."""
    taken = Path(os.path.normpath(experiment / name))
    take_name(taken, kind, tmp_path / "elsewhere")
    before = identity_of(taken)

    with pytest.raises(AgreementError, match=r"HINT: ") as caught:
        start_run(experiment)

    assert caught.value.path == taken
    assert identity_of(taken) == before
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_latest_of_the_user_stays_and_the_run_is_in_order(
    experiment: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, command: Command, kind: str
) -> None:
    """One warning at the launch, one problem in `verify`; the catalog knows the newest run all the same."""
    latest = ExperimentLayout.of(experiment).latest
    take_name(latest, kind, tmp_path / "elsewhere")
    before = identity_of(latest)

    with caplog.at_level(logging.WARNING), start_run(experiment) as run:
        pass

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "HINT: rename it" in caplog.text
    assert identity_of(latest) == before
    assert [(each.id, each.status) for each in Experiment(experiment).runs()] == [(run.id, "finished")]
    assert Experiment(experiment).latest is None
    verified = command("verify", experiment)
    assert_told_well(verified, 1)
    assert "problem latest-foreign: latest" in verified.stdout
    assert_told_well(command("path", "-e", experiment), 2)


@pytest.mark.parametrize("kind", NO_FILE)
def test_manifest_that_is_no_file_of_ours_is_not_written_through(
    experiment: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, command: Command, kind: str
) -> None:
    """Nobody waits for a pipe, nobody's file gets our lines; when it is moved away, nothing is lost."""
    manifest = ExperimentLayout.of(experiment).manifest
    take_name(manifest, kind, tmp_path / "elsewhere")
    before = identity_of(manifest)

    with caplog.at_level(logging.WARNING), start_run(experiment) as run:
        pass

    words = [record.getMessage() for record in caplog.records]
    assert len(words) == 2, words
    assert all("expected a file, found" in each and str(manifest) in each for each in words)
    assert all(each.endswith("Training goes on") for each in words)
    assert identity_of(manifest) == before
    assert not (tmp_path / "elsewhere" / "nothing").exists()
    if kind == "link to a file":
        assert (tmp_path / "theirs.txt").read_text() == "theirs\n"
    for look in LOOKS if kind == "pipe" else LOOKS[:1]:
        looked = command(*look_arguments(look, experiment))
        assert_told_well(looked, 3)
        assert "expected a file, found" in looked.stderr
        assert "move it out of the way" in looked.stderr

    manifest.rename(tmp_path / "away")
    assert [each.id for each in Experiment(experiment).runs()] == [run.id]
    assert_told_well(command("verify", experiment, "--repair"), 0)
    assert Experiment(experiment).latest is not None


@pytest.mark.parametrize("kind", NO_DIRECTORY)
@pytest.mark.parametrize("name", ["runs/.latest", "tensorboard", "requeue"])
def test_name_that_only_bookkeeping_needs_stops_no_launch(
    experiment: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    command: Command,
    start_and_finish: Callable[[Path], str],
    name: str,
    kind: str,
) -> None:
    """Where `latest` cannot be switched there is one warning; `verify` names what stands in the way of what."""
    taken = experiment / name
    take_name(taken, kind, tmp_path / "elsewhere")
    before = identity_of(taken)
    first = start_and_finish(experiment)

    with caplog.at_level(logging.WARNING):
        second = start_and_finish(experiment)

    is_in_the_way = name == "runs/.latest"
    assert len(caplog.records) == is_in_the_way, caplog.text
    assert [each.id for each in Experiment(experiment).runs()] == [first, second]
    latest = Experiment(experiment).latest
    assert latest is not None
    assert latest.id == (first if is_in_the_way else second)
    assert identity_of(taken) == before
    verified = command("verify", experiment)
    assert_told_well(verified, 1)
    assert f"problem name-taken: {name}" in verified.stdout
    for look in LOOKS if kind == "pipe" else ():
        assert_told_well(command(*look_arguments(look, experiment)), 0, 1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_a_run_directory_holds_up_a_look(
    experiment: Path, tmp_path: Path, command: Command, start_and_finish: Callable[[Path], str], kind: str
) -> None:
    """A pipe would be waited for, a device has no end; a record that is no file is told to be unreadable."""
    layout = ExperimentLayout.of(experiment)
    start_and_finish(experiment)
    run = layout.run(start_and_finish(experiment))
    names = [run.run_record, run.finish_record, run.rank_entry(0), run.rank_log(0, 0), run.path / "hparams.yaml"]
    for number, name in enumerate([*names, run.path / "events.out.tfevents.1.host", run.rank_entry(1)]):
        if name.exists():
            name.unlink()
        take_name(name, kind, tmp_path / f"elsewhere-{number}")
    layout.manifest.unlink()

    for look in LOOKS:
        # Both started in one second, so that without the manifest either can stand first, and have none before it.
        assert_told_well(command(*look_arguments(look, experiment)), 0, 1, *((2,) if look == ("diff",) else ()))

    (latest,) = [each for each in Experiment(experiment).runs() if each.path == run.path]
    assert latest.ranks_joined == 2
    assert_told_well(command("verify", experiment), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_claim_of_any_kind_is_waited_for_by_nobody(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, kind: str
) -> None:
    """Anyone in a shared directory can put something where a claim would be; it leads nowhere."""
    layout = ExperimentLayout.of(experiment)
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "launch")
    start_run(experiment).finish()
    (claims,) = layout.launches.iterdir()
    for name in claims.iterdir():
        name.unlink()
    take_name(claims / "1", kind, tmp_path / "elsewhere")
    monkeypatch.setattr("immutable_logs.run._process_launch", ProcessLaunch())

    with pytest.raises(ImmutableLogsError) as caught:
        start_run(experiment)

    assert str(claims / "1") in str(caught.value)
    assert_told_well(command("verify", experiment), 1)
