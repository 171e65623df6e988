"""Find the ranks that landed in the run of an earlier launch with the same key; pure.

Where two launches can share a key and a rank of the first was killed before it joined, that rank of the second finds
its place in the first run free and takes it, while the others find theirs taken and go on to the next generation. On
disk the later run then lacks a rank that the earlier one has. So does it if the later launch's own rank was killed
before it joined: what tells the two apart is with which of the two groups of processes the rank started.

The groups are known: a rank that is in both runs was in the earlier one first. For a rank that only the earlier run
has, the nearest of the groups is the one that it belongs to. Compared is, in this order, what can be had of both:

1. the start of the processes, among those of the same boot of a node: right however late a process joins
2. the times of the entries by the clock of its node, among those of the same node
3. the times of the entries' files by the one clock of the file server, unless a copy has lost them
4. the times of the entries by the clocks of all nodes

A rank can be shifted in several generations, when each next launch fills the place that the one before should have
had; so the last generations are settled first, and a place in which a foreign rank sits counts as free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from immutable_logs.records import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from immutable_logs.records import RankRecord

_MAX_CLOCK_DIFFERENCE: Final = 300.0
"""Seconds between a node's clock and the file server's beyond which a file time is taken for that of a copy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A rank's entry.

    Attributes:
        record: What it holds.
        written: When the file was written, by the file server's clock.
    """

    record: RankRecord
    written: float


@dataclass(frozen=True, slots=True)
class Generation:
    """One claim of a launch key, and who joined.

    Attributes:
        number: Counted from 1.
        run: The run id.
        entries: The readable entries by rank.
        ranks: All ranks that have an entry, readable or not.
    """

    number: int
    run: str
    entries: dict[int, Entry]
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that is in the run of an earlier launch.

    Attributes:
        entry: Its entry.
        found: The generation where it is.
        home: The generation where it belongs.
        found_peer: The rank of that generation which is nearest in time.
        home_peer: The same, where it belongs.
        evidence: What was compared, in words.
    """

    entry: Entry
    found: Generation
    home: Generation
    found_peer: Entry
    home_peer: Entry
    evidence: str


def lacks_ranks(ranks: Sequence[frozenset[int]]) -> bool:
    """Tell from the ranks of a key's generations, in order, whether a later one lacks a rank of an earlier one."""
    return any(earlier - later for index, earlier in enumerate(ranks) for later in ranks[index + 1 :] if later)


def find_late_ranks(generations: Sequence[Generation]) -> list[LateRank]:
    """Return the ranks that are in an older run than they belong to, by generation and rank.

    Args:
        generations: Those of one launch key that have entries, in order.
    """
    late: list[LateRank] = []
    strangers: dict[int, set[int]] = {generation.number: set() for generation in generations}
    arrived: dict[int, set[int]] = {generation.number: set() for generation in generations}
    for index in range(len(generations) - 2, -1, -1):
        found = generations[index]
        for rank, entry in sorted(found.entries.items()):
            homes = [
                later
                for later in generations[index + 1 :]
                if (rank not in later.ranks or rank in strangers[later.number]) and rank not in arrived[later.number]
            ]
            moved = _nearest(entry, found, homes, strangers)
            if moved is not None:
                late.append(moved)
                arrived[moved.home.number].add(rank)
                strangers[found.number].add(rank)
    return sorted(late, key=lambda each: (each.found.number, each.entry.record.global_rank))


def _nearest(
    entry: Entry, found: Generation, homes: Sequence[Generation], strangers: dict[int, set[int]]
) -> LateRank | None:
    """Return where a rank belongs, if that is one of the later generations that lack it."""
    best: tuple[float, LateRank] | None = None
    for home in homes:
        # Only these are surely of two launches: the later entry was made because the earlier one was there.
        common = (found.entries.keys() & home.entries.keys()) - {entry.record.global_rank} - strangers[home.number]
        here = [found.entries[rank] for rank in sorted(common)]
        there = [home.entries[rank] for rank in sorted(common)]
        for clock, words, before, after in _clocks(entry, here, there):
            found_peer, found_distance = _closest(entry, before, clock)
            home_peer, home_distance = _closest(entry, after, clock)
            if found_distance == home_distance:
                continue
            if home_distance < found_distance and (best is None or home_distance < best[0]):
                best = home_distance, LateRank(entry, found, home, found_peer, home_peer, words)
            break
    return None if best is None else best[1]


def _clocks(
    entry: Entry, here: list[Entry], there: list[Entry]
) -> Iterator[tuple[Callable[[Entry], float | None], str, list[Entry], list[Entry]]]:
    """Yield each clock that shows a time for this rank and for ranks of both groups, in words too, and those ranks."""
    host = entry.record.host
    candidates: list[tuple[Callable[[Entry], float | None], str, Callable[[Entry], bool]]] = [
        (_start, f"the start of the processes on {host}", lambda other: _is_same_boot(entry, other)),
        (_joined, f"the times at which ranks on {host} joined", lambda other: other.record.host == host),
        (_written, "the times of the entries on the file server", lambda _: True),
        (_joined, "the times at which the ranks joined, by the clocks of their nodes", lambda _: True),
    ]
    for clock, words, counts in candidates:
        before, after = (
            [other for other in group if counts(other) and clock(other) is not None] for group in (here, there)
        )
        if before and after and clock(entry) is not None:
            yield clock, words, before, after


def _closest(entry: Entry, others: list[Entry], clock: Callable[[Entry], float | None]) -> tuple[Entry, float]:
    """Return the entry of a group that is nearest in time, and the distance."""
    moment = clock(entry) or 0.0
    distances = [abs((clock(other) or 0.0) - moment) for other in others]
    shortest = min(distances)
    return others[distances.index(shortest)], shortest


def _is_same_boot(entry: Entry, other: Entry) -> bool:
    return bool(entry.record.boot_id) and entry.record.boot_id == other.record.boot_id


def _start(entry: Entry) -> float | None:
    return entry.record.start_ticks


def _joined(entry: Entry) -> float | None:
    return parse_time(entry.record.joined)


def _written(entry: Entry) -> float | None:
    joined = _joined(entry)
    is_kept = joined is None or abs(entry.written - joined) <= _MAX_CLOCK_DIFFERENCE
    return entry.written if is_kept else None
