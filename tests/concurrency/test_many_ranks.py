"""A thousand ranks of one launch, as real processes, on nodes of eight each."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment
from immutable_logs.layout import RANKS_PER_SHARD, ExperimentLayout
from immutable_logs.rank_entries import read_rank_entries

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "simulated_launch.py"
RECORDED = Path(__file__).parent.parent / "launchers" / "environments" / "slurm_srun.json"
RANKS_PER_NODE = 8
HANG_GUARD = 100.0

STRACE = ["strace", "-f", "-ff", "-y", "-s", "4096", "--seccomp-bpf", "-e", "trace=%file,%desc"]
"""With `-y` a descriptor is shown with its path, so that calls on open files are counted too."""

JOINING = ["readlink", "openat", "write", "close"]
"""Read the claim; create, write and close the entry. Two of them are sent to a file server by name."""

JOINING_A_NEW_DIRECTORY = [
    "readlink",
    "openat",
    "newfstatat",
    "mkdir",
    *["newfstatat"] * 2,
    "openat",
    "write",
    "close",
]
"""The entry's directory is missing: see that the run was not pruned, make it, compare its group with that of the
experiment, try again."""

MOST_CALLS = 48
"""As many as a rank makes that finds nothing and makes all by itself: at most five for each of the seven directories
from the experiment down, the rest for claim, entry and the number of the mount."""


def works(*command: str) -> bool:
    """Tell whether a program is there and may do what it does; some containers forbid tracing or name spaces."""
    return (
        shutil.which(command[0]) is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


needs_strace = pytest.mark.skipif(
    not works(*STRACE, "-o", "/dev/null", "true"), reason="needs strace 5.3 or newer and the right to trace"
)


@dataclass(frozen=True)
class Calls:
    """The system calls of one rank on paths below its experiment, in order.

    Attributes:
        start: Those of `start_run`.
        finish: Those of `Run.finish`.
    """

    start: list[str]
    finish: list[str]


def launch(experiment: Path, nodes: int, how: str, *, trace: Path | None = None) -> list[Any]:
    """Let all ranks of a launch start and finish, and return what they tell, in the order of the ranks."""
    command = [sys.executable, str(PROGRAM), str(experiment), str(RECORDED), str(nodes), str(RANKS_PER_NODE), how]
    if trace is not None:
        trace.mkdir()
        command = [*STRACE, "-o", str(trace / "of"), *command]
    popen = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = popen.communicate(timeout=HANG_GUARD)
    except BaseException:
        os.killpg(popen.pid, signal.SIGKILL)
        popen.communicate()
        raise
    assert popen.returncode == 0, errors
    told = sorted((json.loads(line) for line in output.splitlines()), key=lambda one: int(one["rank"]))
    assert [one["rank"] for one in told] == list(range(nodes * RANKS_PER_NODE))
    return told


def calls_of(rank: Any, experiment: Path, trace: Path) -> Calls:
    """Return what a rank asked of the file system of its experiment."""
    phases: dict[str, list[str]] = {"/begin": [], "/started": [], "/end": []}
    phase = None
    for line in (trace / f"of.{rank['pid']}").read_text(encoding="utf-8", errors="replace").splitlines():
        mark = next((mark for mark in phases if f'"{mark}"' in line), None)
        if mark is not None:
            phase = mark
        elif phase is not None and re.search(rf'["<]{re.escape(str(experiment))}[/">]', line):
            phases[phase].append(line.partition("(")[0])
    assert phase == "/end"
    return Calls(phases["/begin"], phases["/started"])


def assert_agreed(experiment: Path, told: list[Any]) -> None:
    """See that all ranks are in one run, which has an entry of each."""
    assert {one["run"] for one in told} == {told[0]["run"]}
    assert {one["generation"] for one in told} == {1}
    assert {one["source"] for one in told} == {"Slurm step"}
    (run,) = Experiment(experiment).runs()
    assert (run.id, run.status, run.ranks_joined, run.world_size) == (told[0]["run"], "finished", len(told), len(told))
    entries = read_rank_entries(ExperimentLayout.of(experiment).run(run.id))
    found = [(entry.global_rank, entry.node_rank, entry.local_rank, entry.host, entry.pid) for entry in entries]
    assert found == [
        (one["rank"], one["rank"] // RANKS_PER_NODE, one["rank"] % RANKS_PER_NODE, one["host"], one["pid"])
        for one in told
    ]


def test_thousand_ranks_let_go_at_once_agree_on_one_run(experiment: Path) -> None:
    """1,024 processes race for an experiment that does not exist: one run, one record, an entry of each rank."""
    told = launch(experiment, 128, "at-once")

    assert_agreed(experiment, told)
    assert len({one["pid"] for one in told}) == 1024
    if works("unshare", "--uts", "true"):
        assert {one["host"] for one in told} == {f"node{node}" for node in range(128)}
    assert (experiment / "latest").resolve().name == told[0]["run"]
    assert len(list((experiment / "runs").glob("[0-9]*"))) == 1


@needs_strace
def test_ranks_make_the_same_calls_in_a_launch_of_1024_as_in_one_of_16(tmp_path: Path) -> None:
    """Counted for every rank of both: what a rank asks of the file server does not depend on how many others do.

    Rank zero comes first and makes everything; the rank that opens a directory of entries makes that; all others come
    at once after them.
    """
    calls = {}
    for nodes in (2, 128):
        experiment, trace = tmp_path / f"{nodes}", tmp_path / f"trace-{nodes}"
        told = launch(experiment, nodes, "in-stages", trace=trace)
        assert_agreed(experiment, told)
        calls[nodes] = [calls_of(rank, experiment, trace) for rank in told]
    few, many = calls[2], calls[128]

    assert (len(few), len(many)) == (16, 1024)
    assert few[0] == many[0]
    assert len(many[0].start) < 80, many[0].start
    assert len(many[0].finish) < 35, many[0].finish
    openers = range(RANKS_PER_SHARD, 1024, RANKS_PER_SHARD)
    assert [many[rank].start for rank in openers] == [JOINING_A_NEW_DIRECTORY] * 15
    for ranks in (few, many):
        for rank, each in enumerate(ranks):
            assert rank == 0 or each.finish == []
            if rank == RANKS_PER_NODE:
                # The first rank of the second node also opens the experiment, to ask the kernel which mount it is.
                assert each.start == [*JOINING, "openat", "close"]
            elif rank and rank not in openers:
                assert each.start == JOINING, rank
    assert many[512 + 1] == many[1023] == few[15]


@needs_strace
def test_rank_that_comes_while_nothing_is_there_makes_a_bounded_number_of_calls(tmp_path: Path) -> None:
    """1,024 ranks come at once, before anything exists: none asks again and again, none lists a directory."""
    experiment, trace = tmp_path / "experiment", tmp_path / "trace"
    told = launch(experiment, 128, "at-once", trace=trace)

    assert_agreed(experiment, told)
    calls = [calls_of(rank, experiment, trace).start for rank in told[1:]]
    assert max(map(len, calls)) <= MOST_CALLS, max(calls, key=len)
    assert all("getdents64" not in each for each in calls)
    assert min(map(len, calls)) >= len(JOINING)
    # At its end rank zero counts who has joined: a listing of each directory of entries, and of the one above them.
    finish = calls_of(told[0], experiment, trace).finish
    assert finish.count("getdents64") <= 2 * (1 + 1024 // RANKS_PER_SHARD)
