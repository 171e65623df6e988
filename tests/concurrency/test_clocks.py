"""Nodes whose clocks are wrong: real processes under libfaketime, on a file server whose clock is right.

Only what a process reads as the time of day is shifted. The times of files are the kernel's, as those on a file server
are the server's, whatever the node's clock says.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment
from immutable_logs.catalog import SIGN_OF_LIFE_AGE
from immutable_logs.layout import ExperimentLayout, claim
from immutable_logs.manifest import read_manifest
from immutable_logs.process import Process
from immutable_logs.rank_entries import read_rank_entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Children

FAKETIME = shutil.which("faketime")
pytestmark = pytest.mark.skipif(FAKETIME is None, reason="needs the program faketime (Debian package faketime)")

SHARED_MEMORY = Path("/dev/shm")

DAY = 86400.0

START = """
    from immutable_logs import start_run
    os.environ["PATH"] = "/nowhere"
    run = start_run(sys.argv[1])
    report(run=run.id, generation=run.generation, clock=time.time())
    run.finish()
"""

RESUME = """
    from pathlib import Path
    from immutable_logs.layout import ExperimentLayout
    from immutable_logs.lineage import find_origin
    from immutable_logs.run import begin_run
    os.environ["PATH"] = "/nowhere"
    run = begin_run(sys.argv[1])
    layout = ExperimentLayout.of(sys.argv[1])
    checkpoint = layout.checkpoints / "last.ckpt"
    origin = find_origin(layout, run.id, checkpoint if checkpoint.exists() else None)
    run.record(origin=origin, checkpoint=checkpoint, checkpoints=layout.checkpoints)
    run.publish()
    layout.checkpoints.mkdir(exist_ok=True)
    checkpoint.write_text(run.id)
    run.finish()
    report(run=run.id, clock=time.time())
"""

STAY = """
    import signal
    from immutable_logs import start_run
    os.environ["PATH"] = "/nowhere"
    run = start_run(sys.argv[1])
    print(run.id, flush=True)
    signal.pause()
"""


def remove_leftovers() -> None:
    """Remove what killed processes under libfaketime left: one that is given the number of such a process exits."""
    for path in SHARED_MEMORY.glob("*faketime_s[eh]m_*"):
        process = path.name.rpartition("_")[2]
        if not Path("/proc", process).exists():
            path.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def clean_shared_memory() -> Iterator[None]:
    """Let a test neither meet nor leave the leftovers of processes that were killed."""
    remove_leftovers()
    yield
    remove_leftovers()


@functools.cache
def find_library() -> str:
    """Return what to preload: the library that the program `faketime` preloads."""
    assert FAKETIME is not None
    shown = subprocess.run(
        [FAKETIME, "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True
    )
    return shown.stdout.strip()


def clock(setting: str) -> dict[str, str]:
    """Return the variables that shift the clock of a child: ``+90s``, or a moment at which it stands still.

    The times of files stay the kernel's, both when they are read and when they are set to "now".
    """
    return {
        "LD_PRELOAD": find_library(),
        "FAKETIME": setting,
        "NO_FAKE_STAT": "1",
        "FAKE_UTIME": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "TZ": "UTC",
    }


def is_shifted(report: Any, seconds: float) -> bool:
    """Tell whether a child's clock was off by that much: the tests mean nothing if it was not."""
    return abs(float(report["clock"]) - time.time() - seconds) < 60.0


def command(*arguments: object) -> str:
    """Return what the installed command prints."""
    program = shutil.which("immutable-logs", path=str(Path(sys.executable).parent))
    assert program is not None
    environ = {**os.environ, "COLUMNS": "250", "NO_COLOR": "1"}
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=True, env=environ, timeout=60
    )
    return done.stdout


def listed(experiment: Path) -> list[Any]:
    """Return the runs as `ls --json` has them."""
    runs: list[Any] = json.loads(command("ls", experiment, "--json"))["runs"]
    return runs


def assert_nothing_negative(experiment: Path) -> None:
    """See that no age and no duration is below zero, in either form of the output."""
    for run in listed(experiment):
        assert run["duration_seconds"] is None or run["duration_seconds"] >= 0.0, run
    texts = [command("ls", experiment), *(command("show", run["run"], "-e", experiment) for run in listed(experiment))]
    for text in texts:
        assert not re.search(r"(^|[\s(])-\d", text), text


@pytest.mark.parametrize(
    "shifts",
    [[90, 0], [3600, 0, -3600], [0, -90, 90, -DAY, DAY, 0]],
    ids=["one node ahead", "jumps back twice", "every node another"],
)
def test_order_latest_and_lineage_are_those_of_the_starts(
    experiment: Path, children: Children, shifts: list[int]
) -> None:
    """Each launch resumes the one before it; clocks that contradict that are believed nowhere."""
    names = []
    for shift in shifts:
        report = children.start(RESUME, experiment, environ=clock(f"{shift:+.0f}s")).report()
        assert is_shifted(report, shift)
        names.append(report["run"])

    assert names != sorted(names), "the ids alone would tell the order"
    runs = listed(experiment)
    assert [run["run"] for run in runs] == names
    assert [run["resumed_from"] for run in runs] == [None, *names[:-1]]
    assert {run["lineage"] for run in runs} == {names[0]}
    assert {run["status"] for run in runs} == {"finished"}
    assert [run["is_latest"] for run in runs] == [False] * (len(runs) - 1) + [True]
    assert (experiment / "latest").resolve().name == names[-1]
    assert Experiment(experiment).find("latest~1").id == names[-2]
    assert_nothing_negative(experiment)
    shown = re.findall(r"\S+Z_[0-9a-z]{5}(?=\s+finished)", command("ls", experiment))
    assert shown == names


def test_launches_in_one_second_are_in_the_order_of_their_starts(experiment: Path, children: Children) -> None:
    """Under a clock that stands still for six launches the ids differ in their random part only."""
    environ = clock("2026-12-01 02:28:15")
    reports = [children.start(START, experiment, environ=environ).report() for _ in range(6)]
    names = [report["run"] for report in reports]

    assert {report["clock"] for report in reports} == {1796092095.0}
    assert {name[:20] for name in names} == {"2026-12-01_02-28-15Z"}
    assert len(set(names)) == 6
    assert [run.id for run in Experiment(experiment).runs()] == names
    assert (experiment / "latest").resolve().name == names[-1]


@pytest.mark.parametrize("shift", [90, DAY])
def test_run_under_a_clock_that_is_ahead_lives_no_longer_than_it_does(
    experiment: Path, children: Children, shift: float
) -> None:
    """It runs while its process does, and seen from elsewhere until ten minutes after its last write, not later."""
    child = children.start(STAY, experiment, environ=clock(f"{shift:+.0f}s"))
    assert child.popen.stdout is not None
    name = child.popen.stdout.readline().strip()
    elsewhere = Process("elsewhere", 1, "another-boot", "another-namespace", 1)

    (run,) = listed(experiment)
    assert (run["run"], run["status"], run["duration_seconds"]) == (name, "running", 0.0)
    assert datetime.fromisoformat(run["started"][:19] + "+00:00") > datetime.now(timezone.utc)
    assert Experiment(experiment, observer=elsewhere).runs()[0].status == "running"
    assert_nothing_negative(experiment)

    child.popen.send_signal(signal.SIGKILL)
    child.popen.wait()
    (run,) = listed(experiment)
    assert (run["status"], run["duration_seconds"]) == ("unknown", None)
    later = Experiment(experiment, observer=elsewhere, now=lambda: time.time() + SIGN_OF_LIFE_AGE + 1.0)
    assert later.runs()[0].status == "unknown"
    assert_nothing_negative(experiment)


@pytest.mark.parametrize(("behind", "status"), [(90.0, "running"), (SIGN_OF_LIFE_AGE + 60.0, "unknown")])
def test_last_write_in_the_future_is_said_to_be_one(
    experiment: Path, children: Children, behind: float, status: str
) -> None:
    """Seen from a node whose clock is behind, and once a machine's clock that was ahead has been put right.

    A small difference is one between two clocks; a large one proves nothing, and does not let a run live for years.
    """
    child = children.start(STAY, experiment)
    assert child.popen.stdout is not None
    child.popen.stdout.readline()
    child.popen.kill()
    elsewhere = Process("elsewhere", 1, "another-boot", "another-namespace", 1)

    (run,) = Experiment(experiment, observer=elsewhere, now=lambda: time.time() - behind).runs()
    assert run.status == status
    assert re.search(r"last write 1\d? min ahead of the clock here on \S+, no end record", run.evidence), run.evidence


def test_clock_that_jumps_back_while_a_run_goes_on_gives_no_negative_duration(
    experiment: Path, children: Children, tmp_path: Path
) -> None:
    """The recorded end is before the recorded start; both are shown as recorded, and the run is in its place."""
    setting = tmp_path / "clock"
    setting.write_text("+3600s\n")
    environ = {**clock(""), "FAKETIME_TIMESTAMP_FILE": str(setting), "FAKETIME_NO_CACHE": "1"}
    del environ["FAKETIME"]
    code = """
        from pathlib import Path
        from immutable_logs import start_run
        os.environ["PATH"] = "/nowhere"
        run = start_run(sys.argv[1])
        Path(sys.argv[2]).write_text("-3600s\\n")
        run.finish()
        report(run=run.id, clock=time.time())
    """
    report = children.start(code, experiment, setting, environ=environ).report()
    following = children.start(START, experiment).report()

    assert is_shifted(report, -3600.0)
    first, second = listed(experiment)
    assert (first["run"], first["status"], first["duration_seconds"]) == (report["run"], "finished", 0.0)
    assert first["ended"] < first["started"]
    assert (second["run"], second["is_latest"]) == (following["run"], True)
    assert_nothing_negative(experiment)


SHARED_KEY = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "4"}


def test_ranks_under_four_clocks_join_one_run(experiment: Path, children: Children) -> None:
    """The key is not unique, so the join window counts: by the file server's clock, under which all come at once."""
    shifts = [90, 0, -90, 3600]
    ranks = [
        children.start(
            START.replace("run = ", "gate(); run = "),
            experiment,
            environ={**clock(f"{shift:+d}s"), **SHARED_KEY, "RANK": str(rank)},
            is_gated=True,
        )
        for rank, shift in enumerate(shifts)
    ]
    children.open_gate()
    for shift, child in zip(shifts, ranks, strict=True):
        report = child.report()
        assert is_shifted(report, shift)
        assert report["generation"] == 1

    (run,) = Experiment(experiment).runs()
    assert (run.status, run.ranks_joined, run.world_size) == ("finished", 4, 4)
    entries = read_rank_entries(ExperimentLayout.of(experiment).run(run.id))
    joined = [datetime.fromisoformat(entry.joined[:-1] + "+00:00").timestamp() for entry in entries]
    assert joined[2] < joined[1] < joined[0] < joined[3]
    assert_nothing_negative(experiment)


@pytest.mark.parametrize("shift", [-3600, 0, 3600])
def test_join_window_ends_by_the_file_servers_clock(experiment: Path, children: Children, shift: int) -> None:
    """A claim of eleven minutes ago is an earlier launch's, and one of nine is not, whatever the node's clock says."""
    first = children.start(START, experiment, environ={**SHARED_KEY, "RANK": "1"}).report()
    (directory,) = (experiment / "runs" / ".launches").iterdir()
    link = claim(directory, 1)
    generations = []
    for minutes, rank in ((9, 2), (11, 3)):
        written = os.stat(directory).st_mtime - minutes * 60.0
        os.utime(link, (written, written), follow_symlinks=False)
        environ = {**clock(f"{shift:+d}s"), **SHARED_KEY, "RANK": str(rank)}
        report = children.start(START, experiment, environ=environ).report()
        assert is_shifted(report, shift)
        generations.append(report["generation"])

    assert first["generation"] == 1
    assert generations == [1, 2]


@pytest.mark.parametrize("shifts", [(3600, 0), (0, 3600), (-3600, 0), (0, -3600)])
def test_relaunch_with_the_same_key_is_told_from_a_late_rank_under_any_clock(
    experiment: Path, children: Children, shifts: tuple[int, int]
) -> None:
    """The first launch has ended before the second began, by the file server's clock and the age of the process."""
    names: list[str] = []
    # Rank 1 of the second launch finds no entry of its own: only the recorded end keeps it out of the first run.
    for launch, rank in ((0, 0), (1, 1), (1, 0)):
        environ = {**clock(f"{shifts[launch]:+d}s"), **SHARED_KEY, "RANK": str(rank)}
        report = children.start(START, experiment, environ=environ).report()
        assert is_shifted(report, shifts[launch])
        names.append(report["run"])
        time.sleep(0.2)  # the start of a process is known to a hundredth of a second

    assert len(set(names)) == 2
    assert names[1] == names[2]
    assert read_manifest(ExperimentLayout.of(experiment)).damaged == 0
    assert [run.id for run in Experiment(experiment).runs()] == names[:2]
