from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

import pytest

from immutable_logs import Experiment, durable_files, start_run
from immutable_logs.latest_link import read_latest, switch_latest
from immutable_logs.layout import ExperimentLayout
from tests.conftest import hidden_links

if TYPE_CHECKING:
    from pathlib import Path

RUN = "2026-12-01_02-28-15Z_k3v9q"
NEXT = "2026-12-01_02-28-16Z_00000"


@pytest.fixture
def layout(experiment: Path) -> ExperimentLayout:
    """An experiment with two run directories."""
    layout = ExperimentLayout.of(experiment)
    for run in (RUN, NEXT):
        layout.run(run).path.mkdir(parents=True)
    return layout


@pytest.mark.needs("links")
def test_first_link_is_made_in_one_step(layout: ExperimentLayout) -> None:
    """It is relative and leads to the run."""
    assert read_latest(layout) is None
    assert switch_latest(layout, RUN, unique="u")

    assert os.readlink(layout.latest) == f"runs/{RUN}"
    assert layout.latest.resolve() == layout.run(RUN).path
    assert read_latest(layout) == RUN


@pytest.mark.needs("links")
def test_switched_link_leads_to_the_next_run(layout: ExperimentLayout) -> None:
    """The private name under which the next link was made is gone."""
    switch_latest(layout, RUN, unique="u")
    assert switch_latest(layout, NEXT, unique="v")

    assert read_latest(layout) == NEXT
    assert [path.name for path in layout.latest_workshop.iterdir()] == ["runs"]


@pytest.mark.needs("links")
def test_link_in_the_making_does_not_dangle(layout: ExperimentLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill just before the rename leaves a private link that leads to an empty file."""
    switch_latest(layout, RUN, unique="u")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(durable_files, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        switch_latest(layout, NEXT, unique="v")

    assert (layout.latest_workshop / "v.link").read_bytes() == b""
    assert read_latest(layout) == RUN


@pytest.mark.needs("links")
def test_tree_that_is_moved_keeps_its_latest(layout: ExperimentLayout, tmp_path: Path) -> None:
    """The next container mounts the tree elsewhere."""
    switch_latest(layout, RUN, unique="u")
    layout.path.rename(tmp_path / "moved")

    assert (tmp_path / "moved" / "latest").resolve() == tmp_path / "moved" / "runs" / RUN


@pytest.mark.needs("links")
def test_link_of_ours_that_dangles_is_switched(layout: ExperimentLayout) -> None:
    """The run that it showed was removed by hand."""
    switch_latest(layout, RUN, unique="u")
    layout.run(RUN).path.rmdir()

    assert switch_latest(layout, NEXT, unique="v")
    assert layout.latest.resolve() == layout.run(NEXT).path


@pytest.mark.needs("links")
@pytest.mark.parametrize(
    "kind", ["directory", "file", "link elsewhere", "absolute link", "link to a run below another"]
)
def test_foreign_latest_is_left_with_a_warning(
    layout: ExperimentLayout, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """A directory, a file or a link of another form is the user's."""
    text = None
    if kind == "directory":
        (layout.latest / "inside").mkdir(parents=True)
    elif kind == "file":
        layout.latest.write_text("mine")
    else:
        text = {
            "link elsewhere": "best_run",
            "absolute link": str(layout.run(RUN).path),
            "link to a run below another": f"other/runs/{RUN}",
        }[kind]
        layout.latest.symlink_to(text)
    before = layout.latest.lstat()

    with caplog.at_level(logging.WARNING):
        assert not switch_latest(layout, NEXT, unique="u")

    after = layout.latest.lstat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(caplog.records) == 1
    assert "left as it is" in caplog.text
    assert "HINT: rename it" in caplog.text
    assert read_latest(layout) is None
    assert not layout.latest_workshop.exists()


def test_launch_that_is_overtaken_at_the_first_link_still_switches(
    layout: ExperimentLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between "there is none" and making it another launch makes it."""
    create_link = durable_files.create_link

    def overtaken(text: str, path: Path) -> bool:
        monkeypatch.setattr(durable_files, "create_link", create_link)
        layout.latest.symlink_to(layout.latest_target(RUN))
        return create_link(text, path)

    monkeypatch.setattr(durable_files, "create_link", overtaken)

    assert switch_latest(layout, NEXT, unique="u")
    assert read_latest(layout) == NEXT


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, 524])
def test_mount_without_links_gets_a_text_file(
    layout: ExperimentLayout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """The file is replaced in one step too, and a warning names it."""

    def refuse(*_: object) -> None:
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    with caplog.at_level(logging.WARNING):
        assert switch_latest(layout, RUN, unique="u")
        assert read_latest(layout) == RUN
        assert switch_latest(layout, NEXT, unique="v")

    assert read_latest(layout) == NEXT
    assert layout.latest_text.read_text() == f"{NEXT}\n"
    assert str(layout.latest_text) in caplog.text
    assert not os.path.lexists(layout.latest)


@pytest.mark.parametrize("text", ["", "run_0\n", "../../elsewhere\n", "\xff\xfe"])
def test_text_file_that_names_no_run_shows_none(layout: ExperimentLayout, text: str) -> None:
    """Damage is not followed."""
    layout.latest_text.write_text(text, encoding="latin-1")

    assert read_latest(layout) is None


def test_refused_switch_is_the_callers_to_report(layout: ExperimentLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is no mount without links."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "symlink", refuse)
    with pytest.raises(OSError, match="full"):
        switch_latest(layout, RUN, unique="u")
    assert not os.path.lexists(layout.latest)


@pytest.mark.needs("links")
def test_link_that_the_mount_does_not_tell_is_none_of_ours(experiment: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SSHFS says EPERM for a link that is absolute or goes up: `latest` is the user's then, and nothing else stops."""
    with hidden_links():
        start_run(experiment).finish()
        (experiment / "latest").unlink()
        (experiment / "latest").symlink_to("/elsewhere")
        run = start_run(experiment)

        assert Experiment(experiment).latest is None
        assert ["is not a link to a run" in record.getMessage() for record in caplog.records] == [True]
        assert run.id in {each.id for each in Experiment(experiment).runs()}
