"""All that can happen to launches of three ranks: the agreement as a small model, searched to its end.

Each process of the model does the steps of `immutable_logs.agreement`, one at a time, in any order with those of the
others, and can die before any of them. What a step sees and changes is what a file system guarantees: a link is made
once and by one process, an entry is made once and by one process. At the end of this file the real code is led through
the same steps.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import agreement, durable_files
from immutable_logs.launch import Launch, Ranks
from immutable_logs.layout import ExperimentLayout
from immutable_logs.process import this_process
from immutable_logs.run_id import format_run_id

READ, LINK, READ_BACK, ENTER = "read", "link", "read back", "enter"
JOINED, DEAD = "joined", "dead"


@dataclass(frozen=True, slots=True)
class Process:
    """A rank of a launch.

    Attributes:
        launch: Which launch it belongs to.
        rank: Its global rank.
        phase: Which step it does next, or how it stands.
        generation: Which claim it looks at.
        run: The run that it tries to join, or has joined.
    """

    launch: str
    rank: int
    phase: str = READ
    generation: int = 1
    run: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it makes no further step."""
        return self.phase in (JOINED, DEAD)

    @property
    def name(self) -> str:
        """Launch and rank."""
        return f"{self.launch}{self.rank}"


@dataclass(frozen=True, slots=True)
class World:
    """What is on disk, and where the processes stand.

    Attributes:
        processes: All of them.
        claims: For each generation the run that it is tied to; a run is named after the process that thought it up.
        entries: Run, rank and the launch of the process that has made the entry.
        ended: Runs whose end was recorded before the processes of the second launch started.
    """

    processes: tuple[Process, ...]
    claims: tuple[str, ...] = ()
    entries: frozenset[tuple[str, int, str]] = frozenset()
    ended: frozenset[str] = frozenset()

    def with_process(self, number: int, process: Process) -> World:
        """Return the world in which one process stands elsewhere."""
        return replace(self, processes=(*self.processes[:number], process, *self.processes[number + 1 :]))

    def of_launch(self, launch: str) -> list[Process]:
        """Return the processes of a launch."""
        return [process for process in self.processes if process.launch == launch]


def step(world: World, number: int) -> World:
    """Return the world after a process has made its next step."""
    process = world.processes[number]
    is_claimed = process.generation <= len(world.claims)
    if process.phase == READ:
        if not is_claimed:
            return world.with_process(number, replace(process, phase=LINK))
        return _look(world, number)
    if process.phase == LINK:
        if not is_claimed:
            world = replace(world, claims=(*world.claims, f"{process.name}-{process.generation}"))
        return world.with_process(number, replace(process, phase=READ_BACK))
    if process.phase == READ_BACK:
        return _look(world, number)
    assert process.phase == ENTER
    if any((run, rank) == (process.run, process.rank) for run, rank, _ in world.entries):
        return world.with_process(number, _next_generation(process))
    entered = replace(world, entries=world.entries | {(process.run, process.rank, process.launch)})
    return entered.with_process(number, replace(process, phase=JOINED))


def kill(world: World, number: int) -> World:
    """Return the world after a process has died where it stood."""
    return world.with_process(number, replace(world.processes[number], phase=DEAD))


def record_end(world: World, run: str) -> World:
    """Return the world after the end of a run was recorded."""
    return replace(world, ended=world.ended | {run})


def _look(world: World, number: int) -> World:
    process = world.processes[number]
    run = world.claims[process.generation - 1]
    if run in world.ended:
        return world.with_process(number, _next_generation(process))
    return world.with_process(number, replace(process, phase=ENTER, run=run))


def _next_generation(process: Process) -> Process:
    return replace(process, phase=READ, generation=process.generation + 1, run="")


Moves = Callable[[World], Iterable[World]]


def explore(start: World, moves: Moves) -> Iterator[World]:
    """Yield every world that can be reached, once."""
    seen = {start}
    waiting = [start]
    while waiting:
        world = waiting.pop()
        yield world
        for after in moves(world):
            if after not in seen:
                seen.add(after)
                waiting.append(after)


def at_once(*, kills: str = "") -> Moves:
    """Return the moves of launches that go on at the same time; those of the launches in `kills` can die."""

    def moves(world: World) -> Iterator[World]:
        for number, process in enumerate(world.processes):
            if not process.is_over:
                yield step(world, number)
                if process.launch in kills:
                    yield kill(world, number)

    return moves


def one_after_the_other(*, kills: str = "", records_end: bool) -> Moves:
    """Return the moves of launch B that starts when all of A have joined or died.

    Args:
        kills: Whose processes can die.
        records_end: Whether rank zero of A, if it has joined, records the end of its run before B starts.
    """
    freely = at_once(kills=kills)

    def moves(world: World) -> Iterator[World]:
        earlier = world.of_launch("A")
        if all(process.is_over for process in earlier):
            zero = next(process for process in earlier if process.rank == 0)
            if records_end and zero.phase == JOINED and zero.run not in world.ended:
                yield record_end(world, zero.run)
                return
            yield from freely(world)
            return
        for number, process in enumerate(world.processes):
            if process.launch == "A" and not process.is_over:
                yield step(world, number)
                if "A" in kills:
                    yield kill(world, number)

    return moves


RANKS = range(3)


def launches(names: str, ranks: Iterable[int] = RANKS) -> World:
    """Return the world in which each of some launches has started its ranks, and nothing is on disk."""
    return World(tuple(Process(name, rank) for name, rank in itertools.product(names, ranks)))


def ends(start: World, moves: Moves) -> Iterator[World]:
    """Yield every world in which all processes are over."""
    return (world for world in explore(start, moves) if all(process.is_over for process in world.processes))


def runs_of(world: World, launch: str) -> set[str]:
    """Return the runs in which ranks of a launch are."""
    return {process.run for process in world.of_launch(launch) if process.phase == JOINED}


def ranks_in_runs_of_a(world: World) -> set[int]:
    """Return the ranks of B that have landed in a run of A."""
    return {process.rank for process in world.of_launch("B") if process.phase == JOINED and process.run[0] == "A"}


def test_one_launch_agrees_whatever_dies() -> None:
    """P3: in any order, with any ranks killed at any step, those that join are in one run."""
    outcomes = list(ends(launches("A"), at_once(kills="A")))

    assert all(len(runs_of(world, "A")) <= 1 for world in outcomes)
    # Every number of survivors has been seen, so that this was not about the dead alone.
    assert {len([each for each in world.processes if each.phase == JOINED]) for world in outcomes} == {0, 1, 2, 3}


def test_two_launches_with_one_key_one_after_the_other() -> None:
    """P2 and P3: if every rank of the first has joined, the second gets a run of its own, even if its ranks die."""
    outcomes = list(ends(launches("AB"), one_after_the_other(kills="B", records_end=False)))

    assert outcomes
    for world in outcomes:
        assert len(runs_of(world, "A")) == 1
        assert len(runs_of(world, "B")) <= 1
        assert not runs_of(world, "A") & runs_of(world, "B")


def test_two_launches_with_one_key_the_first_recorded_its_end() -> None:
    """P3 again: with an end on record it does not matter which ranks of the first never joined."""
    outcomes = [
        world
        for world in ends(launches("AB"), one_after_the_other(kills="A", records_end=True))
        if world.of_launch("A")[0].phase == JOINED
    ]

    assert any(process.phase != JOINED for world in outcomes for process in world.of_launch("A"))
    for world in outcomes:
        assert len(runs_of(world, "B")) == 1
        assert not runs_of(world, "A") & runs_of(world, "B")


def test_what_nothing_can_decide() -> None:
    """The case that the documentation names: no end on record, and a rank of the first that died before it joined.

    Its successor lands in the first one's run: no other rank does, and it happens in no other case.
    """
    outcomes = list(ends(launches("AB"), one_after_the_other(kills="A", records_end=False)))
    astray = [world for world in outcomes if ranks_in_runs_of_a(world) and runs_of(world, "A")]

    assert astray
    for world in outcomes:
        entered = {process.rank for process in world.of_launch("A") if process.phase == JOINED}
        if entered:
            assert ranks_in_runs_of_a(world) == set(RANKS) - entered
        else:
            # A run of which nothing but the name was there is as good as a fresh one: B is in it with all ranks.
            assert len(runs_of(world, "B")) == 1


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.proof)])
def test_two_launches_at_once_need_two_keys(ranks: int) -> None:
    """With one key, ranks of both can meet in one run, which is why every launcher's own id is in the key."""
    outcomes = list(ends(launches("AB", range(ranks)), at_once()))

    assert any(runs_of(world, "A") & runs_of(world, "B") for world in outcomes)
    # Even then no two processes of one rank are in one run: no log is written by two.
    for world in outcomes:
        places = [(process.run, process.rank) for process in world.processes]
        assert len(set(places)) == len(places)


# The same steps, done by the code.


class Stepper:
    """Lets threads go one step at a time: each stops before every step, and goes on when it is told."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._go_on: list[threading.Semaphore] = []
        self._has_stopped: list[threading.Semaphore] = []
        self.stopped_before: list[str] = []
        self.results: list[Any] = []

    def start(self, act: Callable[[], Any]) -> None:
        """Start a thread, which stops before its first step."""
        number = len(self.results)
        self._go_on.append(threading.Semaphore(0))
        self._has_stopped.append(threading.Semaphore(0))
        self.stopped_before.append("")
        self.results.append(None)

        def run() -> None:
            self._local.number, self._local.linked = number, set()
            try:
                self.results[number] = act()
            except Exception as error:  # noqa: BLE001 - the test must see it
                self.results[number] = error
            self.stopped_before[number] = JOINED
            self._has_stopped[number].release()

        threading.Thread(target=run, daemon=True).start()
        assert self._has_stopped[number].acquire(timeout=20)

    def stop_before(self, phase: str, path: Path) -> None:
        """Wait for the turn of the thread that calls it; a link is read back if the thread has tried to make it."""
        number = self._local.number
        if phase == LINK:
            self._local.linked.add(path)
        self.stopped_before[number] = READ_BACK if phase == READ and path in self._local.linked else phase
        self._has_stopped[number].release()
        assert self._go_on[number].acquire(timeout=20)

    def step(self, number: int) -> None:
        """Let a thread make one step."""
        self._go_on[number].release()
        assert self._has_stopped[number].acquire(timeout=20)


@pytest.fixture
def new_stepper(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Stepper]:
    """Makes the stepper for whose threads the code stops before each of the verbs that are the steps of the model."""
    current = Stepper()
    read_link, create_link, enter = durable_files.read_link, durable_files.create_link, agreement._create_entry

    def stopping_read(path: Path) -> str:
        current.stop_before(READ, path)
        return read_link(path)

    def stopping_link(text: str, path: Path) -> bool:
        current.stop_before(LINK, path)
        return create_link(text, path)

    def stopping_enter(layout: ExperimentLayout, directory: Path, *rest: Any) -> bool:
        current.stop_before(ENTER, directory)
        return enter(layout, directory, *rest)

    monkeypatch.setattr(durable_files, "read_link", stopping_read)
    monkeypatch.setattr(durable_files, "create_link", stopping_link)
    monkeypatch.setattr(agreement, "_create_entry", stopping_enter)

    def make() -> Stepper:
        nonlocal current
        current = Stepper()
        return current

    return make


def schedules(start: World) -> Iterator[list[int]]:
    """Yield every order in which the processes of a world can make their steps until all are over."""
    waiting: list[tuple[list[int], World]] = [([], start)]
    while waiting:
        order, world = waiting.pop()
        able = [number for number, process in enumerate(world.processes) if not process.is_over]
        if not able:
            yield order
        waiting.extend(([*order, number], step(world, number)) for number in able)


@pytest.mark.parametrize(
    "processes",
    [
        (Process("A", 0), Process("A", 1)),
        (Process("A", 0), Process("B", 0)),
        (Process("A", 1), Process("B", 0)),
    ],
    ids=["two ranks of a launch", "one rank of two launches", "two ranks of two launches"],
)
def test_the_code_does_what_the_model_does(
    tmp_path: Path, new_stepper: Callable[[], Stepper], processes: tuple[Process, ...]
) -> None:
    """In every order of the steps of two processes: the same steps, and the same runs at the end."""
    count = 0
    for count, order in enumerate(schedules(World(processes)), start=1):
        experiment = tmp_path / str(count)
        experiment.mkdir()
        names: dict[str, str] = {}
        stepper = new_stepper()
        for process in processes:
            stepper.start(partial(join, experiment, process, names))
        world = World(processes)
        for number in order:
            assert stepper.stopped_before == [process.phase for process in world.processes]
            stepper.step(number)
            world = step(world, number)

        assert [(names[result.run_id], result.generation) for result in stepper.results] == [
            (process.run, process.generation) for process in world.processes
        ]
    assert count > 20


def join(experiment: Path, process: Process, names: dict[str, str]) -> agreement.Joined:
    """Join a run by the real code; in `names` is found how the model calls the runs that are thought up."""
    generations = itertools.count(1)

    def new_run_id() -> str:
        generation = next(generations)
        run_id = format_run_id(1_800_000_000.0, f"{process.name}{generation:02d}".encode())
        names[run_id] = f"{process.name}-{generation}"
        return run_id

    return agreement.join_run(
        ExperimentLayout.of(experiment),
        Launch("one key", unique=True, ranks=Ranks(process.rank), source="test"),
        process=this_process(),
        process_age=lambda: 0.0,
        new_run_id=new_run_id,
        now=1_800_000_000.0,
        nonce=process.name,
    )
