from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from immutable_logs.catalog import RunSummary
from immutable_logs.retention import Conditions, Contents, Decision, decide_retention, describe_distance

NOW = 1796092095.0
DAY = 86400.0


def run(name: str, *, days_ago: float = 50, status: str = "finished", **values: Any) -> RunSummary:
    """Return a run that started, and ended within the hour, so many days ago; its name stands for its id."""
    started = NOW - days_ago * DAY
    ended = None if status in ("running", "unknown") else started + 3000
    return RunSummary(
        **{
            "id": name,
            "path": Path("/runs", name),
            "status": status,
            "evidence": "evidence",
            "started": started,
            "ended": ended,
            **values,
        }
    )


class Retention:
    """Runs with their contents, and what is decided of them."""

    def __init__(self, *runs: RunSummary) -> None:
        self.runs = runs
        self.contents = {
            each.id: Contents(100, 100, each.started + 3000, has_checkpoints=False, obstacle=None) for each in runs
        }
        self.present = {each.id for each in runs if each.status != "missing"}
        self.latest: str | None = runs[-1].id if runs else None
        self.looked_into: list[str] = []

    def put(self, name: str, **values: Any) -> Retention:
        """Alter what lies in a run."""
        self.contents[name] = replace(self.contents[name], **values)
        return self

    def decide(self, **conditions: Any) -> dict[str, Decision]:
        """Return the decisions by run."""

        def look(each: RunSummary) -> Contents:
            self.looked_into.append(each.id)
            return self.contents[each.id]

        decisions = decide_retention(
            self.runs,
            Conditions(**conditions),
            latest=self.latest,
            present=self.present,
            look_into=look,
            now=NOW,
        )
        return {each.run.id: each for each in decisions}

    def taken(self, **conditions: Any) -> list[str]:
        """Return the runs that are taken, in order."""
        return [name for name, decision in self.decide(**conditions).items() if decision.is_taken]


def reason(retention: Retention, name: str, **conditions: Any) -> str:
    """Return why a run stays."""
    decision = retention.decide(**conditions)[name]
    assert not decision.is_taken
    return decision.reason


def test_no_condition_is_told_from_one_that_lets_everything_through() -> None:
    """Nothing asked for is not the same as all runs but none."""
    assert Conditions().is_empty
    assert not Conditions(keep_last=0).is_empty
    assert not Conditions(only_failed=True).is_empty


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"keep_last": 2}, ["a", "b", "c"]),
        ({"keep_last": 0}, ["a", "b", "c", "d"]),
        ({"keep_last": 9}, []),
        ({"only_failed": True}, ["b", "d"]),
        ({"older_than": 30 * DAY}, ["a", "b"]),
        ({"keep_last": 2, "only_failed": True}, ["b"]),
        ({"older_than": 30 * DAY, "only_failed": True, "keep_last": 4}, []),
        ({"older_than": 10 * DAY, "only_failed": True}, ["b", "d"]),
    ],
)
def test_a_run_is_taken_only_if_all_conditions_hold(conditions: dict[str, Any], expected: list[str]) -> None:
    """They are combined, and each alone means what it says."""
    retention = Retention(
        run("a", days_ago=50),
        run("b", days_ago=40, status="failed"),
        run("c", days_ago=30),
        run("d", days_ago=20, status="failed"),
        run("e", days_ago=10),
    )

    assert retention.taken(**conditions) == expected


def test_what_is_kept_anyway_is_not_looked_into() -> None:
    """To walk through a run on a network mount is slow."""
    retention = Retention(run("a"), run("b", days_ago=5), run("c"))

    retention.decide(older_than=30 * DAY)

    assert retention.looked_into == ["a"]


@pytest.mark.parametrize("latest", ["a", None])
def test_what_latest_shows_and_what_started_last_stay(latest: str | None) -> None:
    """`latest` can be behind after a kill, and can be the user's own directory."""
    retention = Retention(run("a"), run("b"), run("c"))
    retention.latest = latest

    assert retention.taken(keep_last=0) == (["b"] if latest else ["a", "b"])
    assert reason(retention, "c", keep_last=0) == "it started last"
    if latest:
        assert reason(retention, "a", keep_last=0) == "`latest` shows it"


def test_pruned_and_missing_runs_are_none_of_the_last() -> None:
    """Two that are there are kept, not two names."""
    retention = Retention(run("a"), run("b"), run("c"), run("d", status="missing"), run("e", status="pruned"))
    retention.latest = "c"
    retention.present = {"a", "b", "c"}

    assert retention.taken(keep_last=2) == ["a"]
    assert set(retention.decide(keep_last=2)) == {"a", "b", "c"}


def test_a_sign_of_life_keeps_a_run() -> None:
    """The evidence is told."""
    retention = Retention(run("a", status="running", evidence="process 7 is alive"), run("b"))

    assert reason(retention, "a", keep_last=0) == "sign of life: process 7 is alive"


def test_a_run_without_an_end_is_judged_by_its_writes() -> None:
    """As after a SIGKILL."""
    retention = Retention(run("a", status="unknown"), run("b", status="unknown"), run("c"))
    retention.put("b", last_write=NOW - DAY / 2)

    assert retention.taken(keep_last=0) == ["a"]
    assert reason(retention, "b", keep_last=0) == "last write 12 h ago, which is less than a day"


@pytest.mark.parametrize(("hours", "is_taken"), [(23, False), (25, True)])
def test_a_run_that_ended_less_than_a_day_ago_stays(hours: float, is_taken: bool) -> None:
    """A day, not more."""
    retention = Retention(run("a", ended=NOW - hours * 3600), run("b"))

    assert retention.decide(keep_last=0)["a"].is_taken is is_taken


@pytest.mark.parametrize(("hours", "is_taken"), [(23, False), (25, True), (-2, False)])
def test_a_run_that_was_written_in_less_than_a_day_ago_stays(hours: float, is_taken: bool) -> None:
    """Whatever its end record says: another rank may go on. A write ahead of the clock is no old one."""
    retention = Retention(run("a"), run("b")).put("a", last_write=NOW - hours * 3600)

    decision = retention.decide(keep_last=0)["a"]
    assert decision.is_taken is is_taken
    assert ("ahead of the clock here" in decision.reason) is (hours < 0)


def test_age_counts_from_the_last_write() -> None:
    """A run that trained for months is not old on the day after its end."""
    retention = Retention(run("a", days_ago=90), run("b")).put("a", last_write=NOW - 20 * DAY)

    assert reason(retention, "a", older_than=30 * DAY) == "not old enough"
    assert retention.taken(older_than=10 * DAY) == ["a"]


def test_an_obstacle_keeps_a_run() -> None:
    """It is the reason that is shown."""
    retention = Retention(run("a"), run("b")).put("a", obstacle="something is mounted in it")

    assert reason(retention, "a", keep_last=0) == "something is mounted in it"


class TestResumed:
    """A run whose checkpoints lie in its directory is needed by the runs that were resumed from it."""

    @staticmethod
    def chain(*, has_checkpoints: bool | None) -> Retention:
        """Three runs that resumed each other, and a fourth that has nothing to do with them."""
        retention = Retention(run("a"), run("b", resumed_from="a"), run("c", resumed_from="b"), run("d"), run("e"))
        for name in "abc":
            retention.put(name, has_checkpoints=has_checkpoints)
        return retention

    @pytest.mark.parametrize("has_checkpoints", [True, None])
    def test_it_stays_as_long_as_the_end_of_the_chain(self, has_checkpoints: bool | None) -> None:
        """From one that stays to the first; where nobody knows where the checkpoints are, too."""
        retention = self.chain(has_checkpoints=has_checkpoints)
        retention.put("c", obstacle="in use")

        assert retention.taken(keep_last=0) == ["d"]
        assert reason(retention, "a", keep_last=0).startswith("run b was resumed from it")
        assert reason(retention, "b", keep_last=0).startswith("run c was resumed from it")

    def test_it_goes_with_the_whole_chain(self) -> None:
        """Nobody needs it then; the plan says that checkpoints go."""
        retention = self.chain(has_checkpoints=True)

        assert retention.taken(keep_last=0) == ["a", "b", "c", "d"]
        assert retention.decide(keep_last=0)["a"].reason.endswith("; its checkpoints go too")

    def test_it_goes_if_its_checkpoints_are_elsewhere(self) -> None:
        """As where resumed runs share them."""
        retention = self.chain(has_checkpoints=False).put("c", obstacle="in use")

        assert retention.taken(keep_last=0) == ["a", "b", "d"]

    def test_a_run_that_is_gone_needs_nothing(self) -> None:
        """Neither a pruned nor a missing one."""
        retention = self.chain(has_checkpoints=True)
        retention.runs = tuple(replace(each, status="pruned") if each.id == "c" else each for each in retention.runs)
        retention.present -= {"c"}

        assert retention.taken(keep_last=0) == ["a", "b", "d"]

    def test_a_loop_of_records_ends(self) -> None:
        """Anyone in a shared directory can have written them."""
        retention = Retention(run("a", resumed_from="b"), run("b", resumed_from="a"), run("c", resumed_from="c"))
        for name in "abc":
            retention.put(name, has_checkpoints=True)

        assert retention.taken(keep_last=0) == ["a", "b"]


class TestUnfinished:
    """A run that an earlier call has taken, and whose directory is still there."""

    def test_it_is_finished_whatever_the_conditions(self) -> None:
        """It was decided then."""
        retention = Retention(run("a", status="pruned"), run("b"))

        decision = retention.decide(keep_last=5)["a"]
        assert decision.is_taken
        assert decision.is_unfinished
        assert decision.reason == "an earlier prune was interrupted"

    def test_it_stays_while_someone_writes_in_it(self) -> None:
        """A late rank may have joined."""
        retention = Retention(run("a", status="pruned"), run("b")).put("a", last_write=NOW - 60)

        assert reason(retention, "a", keep_last=5) == "last write 1 min ago, which is less than a day"

    def test_it_stays_if_latest_shows_it(self) -> None:
        """Somebody has made the link by hand, and P4 counts."""
        retention = Retention(run("a", status="pruned"), run("b"))
        retention.latest = "a"

        assert reason(retention, "a", keep_last=0) == "`latest` shows it"


def test_adopted_run_says_that_it_frees_nothing() -> None:
    """As long as its files have their old names."""
    retention = Retention(run("a", status="adopted"), run("b", status="adopted"), run("c"))
    retention.put("a", is_adopted=True, freed=0).put("b", is_adopted=True)

    decisions = retention.decide(keep_last=0)
    assert decisions["a"].reason.endswith("adopted: what old names still lead to frees no space")
    assert "adopted" not in decisions["b"].reason


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s ago"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (7200, "2 h ago"),
        (3 * DAY, "3 d ago"),
        (-0.5, "0 s ago"),
        (-1, "1 s ahead of the clock here"),
        (-7200, "2 h ahead of the clock here"),
    ],
)
def test_distances_are_told_in_one_unit(seconds: float, expected: str) -> None:
    """That is enough for a reason."""
    assert describe_distance(seconds) == expected


def test_nothing_is_decided_of_nothing() -> None:
    """An experiment without runs."""
    assert Retention().decide(keep_last=0) == {}
