"""Ranks that landed in the run of an earlier launch with the same key: made with the real `join_run`."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment
from immutable_logs.agreement import join_run
from immutable_logs.launch import Launch, Ranks
from immutable_logs.layout import ExperimentLayout
from immutable_logs.process import Process
from immutable_logs.records import RunRecord, format_time
from immutable_logs.run_id import format_run_id
from immutable_logs.verification import Finding, verify_experiment

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Child, Children

START = 1_700_000_000.0
TICKS = 100
"""Clock ticks in a second."""


@dataclass
class Launches:
    """Joins ranks of launches that all have the same key, each at a scripted moment.

    Attributes:
        layout: The experiment.
        world_size: How many ranks each launch has.
        ranks_per_node: How many of them run on a node.
        has_boots: Whether the processes know the boot and their start; without, only times of joining are there.
        clocks: How many seconds the clock of a node is ahead.
    """

    layout: ExperimentLayout
    world_size: int = 4
    ranks_per_node: int = 4
    has_boots: bool = True
    clocks: dict[int, float] = field(default_factory=dict)
    _pids: Any = field(default_factory=lambda: itertools.count(100))

    def join(self, rank: int, at: float, *, delay: float = 0.0) -> str:
        """Let a rank join a number of seconds after the start of everything.

        Args:
            rank: The global rank; rank zero also writes `run.json`.
            at: When its process starts.
            delay: How long it takes until it joins.
        """
        node = rank // self.ranks_per_node
        now = START + at + delay + self.clocks.get(node, 0.0)
        pid = next(self._pids)
        joined = join_run(
            self.layout,
            Launch(
                key="master node0:29500",
                unique=False,
                ranks=Ranks(rank, rank % self.ranks_per_node, node, self.world_size),
                source="MASTER_ADDR and MASTER_PORT",
            ),
            process=Process(
                f"node{node}",
                pid,
                boot_id=f"boot{node}" if self.has_boots else "",
                start_ticks=int((at + 1000) * TICKS) if self.has_boots else None,
            ),
            process_age=lambda: delay,
            new_run_id=lambda: format_run_id(now, os.urandom(8)),
            now=now,
            nonce=f"nonce{pid}",
        )
        if rank == 0:
            record = RunRecord(joined.run_id, format_time(now), world_size=self.world_size)
            self.layout.run(joined.run_id).run_record.write_bytes(record.encode())
        return joined.run_id

    def launch(self, at: float, *ranks: int) -> list[str]:
        """Let ranks of one launch join, one after the other within a second."""
        return [self.join(rank, at + 0.1 * number) for number, rank in enumerate(ranks)]

    def findings(self) -> list[Finding]:
        """Return what a verification says of ranks."""
        found = verify_experiment(Experiment(self.layout.path), pause=lambda _: None).findings
        return [finding for finding in found if finding.kind == "rank-in-older-run"]

    def late(self) -> list[tuple[int, str, str]]:
        """Return the ranks that are told to be late, where each is, and where it belongs."""
        return [
            (finding.details["rank"], str(finding.run), finding.details["belongs_to"]) for finding in self.findings()
        ]


@pytest.fixture
def launches(experiment: Path) -> Launches:
    """Launches of four ranks on one node."""
    return Launches(ExperimentLayout.of(experiment))


@pytest.fixture(params=["one node", "a node for each rank", "one node without /proc"])
def any_launches(request: pytest.FixtureRequest, launches: Launches) -> Launches:
    """Launches whose processes can be compared in every way that there is."""
    launches.ranks_per_node = 1 if "each" in request.param else 4
    launches.has_boots = "without" not in request.param
    return launches


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("position", [0, 1, 3])
def test_the_rank_that_takes_the_place_of_a_killed_one_is_named(
    any_launches: Launches, late: int, position: int
) -> None:
    """It is told with the run where it is and the one where it belongs, whichever rank, and in whatever order."""
    others = [rank for rank in range(4) if rank != late]
    first = any_launches.launch(0.0, *others)[0]
    second = any_launches.launch(30.0, *others[:position], late, *others[position:])
    home = next(run for run in second if run != first)

    assert second[position] == first
    assert any_launches.late() == [(late, first, home)]


def test_the_finding_says_who_where_when_and_what_to_do(launches: Launches) -> None:
    """Rank, host, pid, both runs, the times compared, the log, and the variable that makes it impossible."""
    first = launches.launch(0.0, 0, 1, 2)[0]
    *_, second = launches.launch(30.0, 3, 0, 1, 2)
    (finding,) = launches.findings()

    assert (finding.severity, finding.run) == ("problem", first)
    assert finding.path == f"runs/{first}/ranks/0000/rank-000003.json"
    assert finding.details == {
        "rank": 3,
        "host": "node0",
        "pid": 103,
        "joined": format_time(START + 30.0),
        "belongs_to": second,
        "generation": 1,
        "belongs_to_generation": 2,
        "evidence": "the start of the processes on node0",
        "log": f"runs/{first}/nemo_log_globalrank-3_localrank-3.txt",
    }
    for words in (
        f"rank 3 (pid 103 on node0) is in run {first}",
        f"belongs to run {second}",
        f"rank 0 (pid 104, joined at {format_time(START + 30.1)})",
        f"rank 2 (pid 102, joined at {format_time(START + 0.2)})",
        "set IMMUTABLE_LOGS_LAUNCH_ID",
        finding.details["log"],
    ):
        assert words in finding.message


def test_a_late_rank_zero_leaves_the_later_run_without_a_record_and_that_is_said(launches: Launches) -> None:
    """The record that it writes into the older run describes the later launch; only the one cause is told."""
    first = launches.launch(0.0, 1, 2, 3)[0]
    second = launches.launch(30.0, 0, 1, 2, 3)[1]
    # So much later nothing has a sign of life, and what is absent will not come.
    experiment = Experiment(launches.layout.path, now=lambda: time.time() + 1e6)
    found = verify_experiment(experiment, pause=lambda _: None).findings

    (finding,) = (each for each in found if each.kind == "rank-in-older-run")
    assert f"`run.json` of {first} describes the later launch, and {second} has none" in finding.message
    assert [each.kind for each in found if each.run == second] == []


def test_several_late_ranks_are_all_named(any_launches: Launches) -> None:
    """More than half of a launch can be in the older run."""
    first = any_launches.launch(0.0, 2)[0]
    second = any_launches.launch(30.0, 3, 2, 0, 1)[1]

    assert any_launches.late() == [(0, first, second), (1, first, second), (3, first, second)]


def test_a_rank_that_was_never_there_is_not_looked_for_in_the_older_run(any_launches: Launches) -> None:
    """Of two ranks that the later run lacks, one is late and one was killed before it joined."""
    first = any_launches.launch(0.0, 0, 1, 3)[0]
    second = any_launches.launch(30.0, 0, 1, 2)[0]

    assert any_launches.late() == [(2, first, second)]


def test_each_launch_can_fill_the_place_of_the_one_before(any_launches: Launches) -> None:
    """The rank is then shifted in every generation but the last, and each shift is named."""
    runs = [any_launches.launch(30.0 * number, 0, 1, 2, *([3] if number else []))[0] for number in range(4)]

    assert len(set(runs)) == 4
    assert any_launches.late() == [(3, runs[0], runs[1]), (3, runs[1], runs[2]), (3, runs[2], runs[3])]


def test_a_rank_can_be_several_generations_behind(any_launches: Launches) -> None:
    """It was killed in two launches, and in the third takes the place in the first."""
    runs = [any_launches.launch(30.0 * number, 0, 1, 2)[0] for number in range(2)]
    *last, late = any_launches.launch(60.0, 0, 1, 2, 3)

    assert late == runs[0]
    assert any_launches.late() == [(3, runs[0], last[0])]


def test_two_ranks_can_be_shifted_by_different_launches(any_launches: Launches) -> None:
    """Rank 3 died in the first launch, rank 2 in the second."""
    runs = [
        any_launches.launch(0.0, 0, 1, 2)[0],
        any_launches.launch(30.0, 0, 1, 3)[0],
        any_launches.launch(60.0, 0, 1, 2, 3)[0],
    ]

    assert any_launches.late() == [(3, runs[0], runs[1]), (2, runs[1], runs[2]), (3, runs[1], runs[2])]


def test_most_ranks_can_be_shifted_by_one_launch_each(any_launches: Launches) -> None:
    """In the first launch only rank 0 joined, so that every other rank is one run behind for ever."""
    runs = [
        any_launches.launch(0.0, 0)[0],
        any_launches.launch(30.0, 0, 1, 2, 3)[0],
        any_launches.launch(60.0, 0, 1, 2, 3)[0],
    ]

    assert any_launches.late() == [(rank, runs[number], runs[number + 1]) for number in range(2) for rank in (1, 2, 3)]


def test_no_two_entries_of_a_rank_belong_to_one_launch(launches: Launches) -> None:
    """A rank of the second launch that joined when the third was about to start is still of the second."""
    launches.has_boots = False
    runs = [launches.launch(0.0, 0, 1, 2)[0], launches.launch(30.0, 0, 1, 2)[0]]
    launches.join(3, 30.3, delay=20.0)
    runs.append(launches.launch(60.0, 0, 1, 2, 3)[0])

    assert launches.late() == [(3, runs[0], runs[1]), (3, runs[1], runs[2])]


def test_a_rank_that_only_comes_late_is_no_finding(any_launches: Launches) -> None:
    """One launch, however long one of its ranks takes."""
    any_launches.launch(0.0, 0, 1, 2)
    any_launches.join(3, 0.3, delay=500.0)

    assert any_launches.late() == []


def test_a_whole_launch_after_a_whole_launch_is_no_finding(any_launches: Launches) -> None:
    """Each has all of its ranks."""
    any_launches.launch(0.0, 0, 1, 2, 3)
    any_launches.launch(30.0, 3, 2, 1, 0)

    assert any_launches.late() == []


@pytest.mark.parametrize("killed", [0, 2])
def test_a_rank_that_the_later_launch_lost_is_no_finding(any_launches: Launches, killed: int) -> None:
    """Its namesake in the run before joined with the others there."""
    any_launches.launch(0.0, 0, 1, 2, 3)
    any_launches.launch(30.0, *(rank for rank in range(4) if rank != killed))

    assert any_launches.late() == []


def test_a_slow_rank_of_the_first_launch_is_told_by_the_start_of_its_process(launches: Launches) -> None:
    """It joined nearer to the second launch, which lost that rank, but started with the first."""
    launches.launch(0.0, 0, 1, 2)
    launches.join(3, 0.3, delay=29.0)
    launches.launch(30.0, 0, 1, 2)

    assert launches.late() == []


def test_a_late_rank_that_is_slow_is_told_by_the_start_of_its_process(launches: Launches) -> None:
    """It started with the second launch, whatever it did until it joined."""
    first = launches.launch(0.0, 0, 1, 2)[0]
    second = launches.launch(30.0, 0, 1, 2)[0]
    launches.join(3, 30.3, delay=300.0)

    assert launches.late() == [(3, first, second)]


@pytest.mark.parametrize("is_copied", [False, True])
def test_clocks_of_nodes_that_differ_do_not_mislead(launches: Launches, is_copied: bool) -> None:
    """The file server's clock counts between nodes, unless a copy has lost its times."""
    launches.ranks_per_node = 1
    launches.clocks = {3: 25.0}
    first = launches.launch(0.0, 0, 1, 2, 3)[0]
    second = launches.launch(30.0, 0, 1, 2)[0]
    for run, at in ((first, 0.0), (second, 30.0)):
        for entry in launches.layout.run(run).ranks.rglob("*.json"):
            when = START + 86400.0 if is_copied else START + at
            os.utime(entry, (when, when))

    # Of a copy only the nodes' own clocks are left, and 25 is nearer to 30 than to 0.
    assert launches.late() == ([(3, first, second)] if is_copied else [])


def test_an_entry_that_cannot_be_read_takes_part_as_a_name_only(launches: Launches) -> None:
    """Nothing is known of when it was made."""
    first = launches.launch(0.0, 0, 1, 2)[0]
    launches.layout.run(first).rank_entry(3).write_bytes(b"{torn")
    launches.launch(30.0, 0, 1, 2)

    assert launches.late() == []


RANK = """
from immutable_logs import start_run
run = start_run(sys.argv[1])
report(run=run.id, pid=os.getpid())
"""
RANK_THAT_LIVES = f"{RANK}\nprint('ready', flush=True)\ntime.sleep(100)\n"


def _start(children: Children, experiment: Path, rank: int, code: str = RANK) -> Child:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "node0", "MASTER_PORT": 29500}
    return children.start(code, experiment, environ={name: str(value) for name, value in variables.items()})


@pytest.mark.parametrize("late", [0, 1])
def test_real_processes_after_a_kill(children: Children, experiment: Path, late: int) -> None:
    """One rank is killed after it joined, the other before; the second launch is told apart by its processes."""
    killed = _start(children, experiment, 1 - late, RANK_THAT_LIVES)
    assert killed.popen.stdout is not None
    assert killed.popen.stdout.readline()
    killed.wait_until_ready()
    killed.popen.kill()
    killed.popen.wait()
    # Launches are told apart by when their processes start, so the second must not follow at once.
    time.sleep(1.0)
    second = [child.report() for child in [_start(children, experiment, rank) for rank in range(2)]]

    (finding,) = verify_experiment(Experiment(experiment), pause=lambda _: None).findings
    assert finding.kind == "rank-in-older-run"
    assert (finding.details["rank"], finding.details["pid"]) == (late, second[late]["pid"])
    assert (finding.run, finding.details["belongs_to"]) == (second[late]["run"], second[1 - late]["run"])
    assert finding.details["evidence"].startswith("the start of the processes on ")
