"""Experiments at paths that nobody would choose, and through links."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs import Experiment, start_run
from immutable_logs.errors import AgreementError, ConfigurationError
from immutable_logs.layout import ExperimentLayout
from tests.conftest import Children
from tests.hostile.conftest import LOOKS, Told, assert_told_well, look_arguments

ODD_NAMES = {
    "spaces": "a run  of mine ",
    "newline": "first\nsecond",
    "quotes": 'it\'s "mine" $HOME `id` %s {x}',
    "no text": os.fsdecode(b"caf\xe9-\xff"),
    "markup": "[bold]x[/bold] <b>&amp;",
    "escape codes": "\x1b[2Jgone\x07",
    "turned around": "\u202egnp.exe",
    "a dash": "--help",
    "a tilde": "~root",
    "wide": "実験-🧪",
    "the longest name": "n" * 255,
    "like ours": "runs",
    "like stock's": "run_0",
}

LAUNCH = """
    from immutable_logs import start_run
    with start_run(sys.argv[1]) as run:
        (run.path / "train.log").write_text("a line")
    report(id=run.id, path=os.fsencode(run.path).hex())
"""


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
def test_every_command_takes_an_experiment_of_any_name(
    tmp_path: Path, children: Children, command: Callable[..., Told], name: str
) -> None:
    """The launch, its records and every look at it; nothing that is printed can move the cursor of a terminal."""
    experiment = tmp_path / name
    started = [children.start(LAUNCH, experiment).report() for _ in range(2)]

    assert os.readlink(experiment / "latest") == f"runs/{started[1]['id']}"
    assert (experiment / "latest" / "run.json").is_file()
    assert os.fsencode(experiment / "runs" / started[1]["id"]).hex() == started[1]["path"]
    for look in LOOKS:
        told = command(*look_arguments(look, experiment))
        assert_told_well(told, 0)
        if look not in (("path",), ("tensorboard",)):  # whose output is for scripts
            assert "\x1b" not in told.stdout + told.stderr
            assert "\u202e" not in told.stdout + told.stderr
        if "--json" in look:
            json.loads(told.stdout)


def test_path_prints_the_bytes_of_a_name_that_is_no_text(tmp_path: Path, command: Callable[..., Told]) -> None:
    """Scripts open what it prints."""
    experiment = tmp_path / ODD_NAMES["no text"]
    run = start_run(experiment)

    assert os.fsencode(command("path", "-e", experiment).stdout.rstrip("\n")).endswith(run.id.encode())
    assert json.loads(command("path", "--json", "-e", experiment).stdout)["path"] == str(run.path)


@pytest.mark.parametrize("form", ["relative", "through a link", "through a chain", "with a slash", "doubled slashes"])
def test_one_experiment_is_one_by_whichever_way_it_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children, command: Callable[..., Told], form: str
) -> None:
    """Runs started by different names stand beside each other, and no record holds one of the names."""
    real = tmp_path / "real"
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "chain").symlink_to(tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    name = {
        "relative": "./real",
        "through a link": str(tmp_path / "link"),
        "through a chain": "chain",
        "with a slash": f"{real}/",
        "doubled slashes": f"{tmp_path}//real/.",
    }[form]
    first = children.start(LAUNCH, real).report()

    second = children.start(LAUNCH, name).report()

    assert [run.id for run in Experiment(real).runs()] == [first["id"], second["id"]]
    assert os.readlink(real / "latest") == f"runs/{second['id']}"
    document = json.loads((real / "runs" / second["id"] / "run.json").read_text())
    del document["arguments"], document["working_directory"]
    assert str(tmp_path) not in json.dumps(document)
    assert_told_well(command("verify", name), 0)


def test_directory_above_a_link_is_that_of_what_it_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children
) -> None:
    """`name: ../elsewhere` with a link in the way: the kernel, and stock NeMo, goes up from where the link leads."""
    (tmp_path / "storage" / "exp").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "exp").symlink_to(tmp_path / "storage" / "exp")
    monkeypatch.chdir(tmp_path / "home")

    for name in ("exp/../elsewhere", f"{tmp_path}/home/exp/../elsewhere", "exp/../exp/../elsewhere/."):
        children.start(LAUNCH, name).report()

    assert len(Experiment(tmp_path / "storage" / "elsewhere").runs()) == 3
    assert not (tmp_path / "home" / "elsewhere").exists()
    os.chdir("exp")
    assert ExperimentLayout.of("..").path == tmp_path / "storage"
    assert ExperimentLayout.of("../..").path == tmp_path


def test_deepest_experiment_that_the_mount_takes_works(
    long_directory: Callable[[int], Path], command: Callable[..., Told]
) -> None:
    """Where the longest path of ours still fits into the 4,096 bytes of a path, everything does."""
    experiment = long_directory(3800)

    start_run(experiment).finish()

    for look in LOOKS:
        assert_told_well(command(*look_arguments(look, experiment)), 0, 2 if look == ("diff",) else 0)


@pytest.mark.parametrize("length", [4060, 4094, 4500])
def test_path_that_is_too_long_is_refused_with_what_to_do(
    long_directory: Callable[[int], Path], command: Callable[..., Told], length: int
) -> None:
    """Before anything of the run is there; and for every command it is wrong use, not a fault."""
    experiment = long_directory(length)

    with pytest.raises(AgreementError, match="File name too long") as caught:
        start_run(experiment)

    assert "HINT: the path is too long for this mount: choose a shorter one" in str(caught.value)
    for look in LOOKS:
        assert_told_well(command(*look_arguments(look, experiment)), 2)


def test_name_that_is_too_long_is_refused_with_what_to_do(tmp_path: Path, command: Callable[..., Told]) -> None:
    """256 bytes."""
    with pytest.raises(AgreementError, match=r"File name too long.*\nHINT: the path is too long"):
        start_run(tmp_path / ("n" * 256))
    for look in LOOKS:
        assert_told_well(command(*look_arguments(look, tmp_path / ("n" * 256))), 2)


def test_links_in_a_circle_are_refused_with_what_to_do(tmp_path: Path, command: Callable[..., Told]) -> None:
    """The launch and every look."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(AgreementError, match=r"symbolic links.*\nHINT: the path leads through links in a circle"):
        start_run(tmp_path / "a" / "experiment")
    for look in LOOKS:
        assert_told_well(command(*look_arguments(look, tmp_path / "a")), 2)


@pytest.mark.parametrize("path", ["/tmp/a\0b", "\0", "a/\0/b"])
def test_path_with_a_nul_is_refused(path: str) -> None:
    """A YAML can hold one; no file system can."""
    for ask in (start_run, Experiment):
        with pytest.raises(ConfigurationError, match="expected a path without a NUL character, found"):
            ask(path)


def test_working_directory_that_is_gone_is_no_obstacle(tmp_path: Path, children: Children) -> None:
    """A launch by an absolute path goes on; it is recorded that the directory was removed."""
    child = children.start(
        "os.mkdir(sys.argv[2]); os.chdir(sys.argv[2]); os.rmdir(sys.argv[2])" + LAUNCH.replace("\n    ", "\n"),
        tmp_path / "experiment",
        tmp_path / "gone",
    )

    run = child.report()

    record = json.loads((tmp_path / "experiment" / "runs" / run["id"] / "run.json").read_text())
    assert record["working_directory"] == "(removed)"
