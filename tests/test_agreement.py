from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import agreement, durable_files
from immutable_logs.agreement import JOIN_WINDOW, Joined, join_run
from immutable_logs.errors import AgreementError
from immutable_logs.launch import Launch, Ranks
from immutable_logs.layout import ExperimentLayout, claim
from immutable_logs.process import Process
from immutable_logs.run_id import format_run_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class Cluster:
    """Joins ranks of scripted processes, each with a pid of its own, under a clock that stands still."""

    layout: ExperimentLayout
    key: str = "key"
    unique: bool = True
    age: float = 0.0
    _numbers: Any = field(default_factory=itertools.count)
    _candidates: Any = field(default_factory=itertools.count)

    def new_run_id(self) -> str:
        """Think up the next run id, all in the same second."""
        return format_run_id(1796092095.0, next(self._candidates).to_bytes(8, "big"))

    def join(self, rank: int = 0, *, key: str | None = None) -> Joined:
        """Let a rank join, as a process that has not joined before."""
        number = next(self._numbers)
        return join_run(
            self.layout,
            Launch(key=key or self.key, unique=self.unique, ranks=Ranks(global_rank=rank), source="test"),
            process=Process(host="host", pid=number),
            process_age=lambda: self.age,
            new_run_id=self.new_run_id,
            now=1796092095.0,
            nonce=f"nonce{number}",
        )

    @property
    def claims(self) -> Path:
        """The directory of the claims of the key."""
        return self.layout.launch(Launch(self.key, unique=True, ranks=Ranks(), source="test").key_name)


@pytest.fixture
def cluster(experiment: Path) -> Cluster:
    """Ranks of a launch with a unique key, in an experiment that does not exist yet."""
    return Cluster(ExperimentLayout.of(experiment))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_ranks_agree_in_any_order_of_arrival(cluster: Cluster, order: tuple[int, ...]) -> None:
    """Rank zero may come first, last or in between."""
    joined = {cluster.join(rank) for rank in order}

    assert len(joined) == 1
    assert joined.pop().generation == 1


def test_ranks_agree_without_rank_zero(cluster: Cluster) -> None:
    """Rank zero may never come."""
    assert cluster.join(3) == cluster.join(1) == cluster.join(70)


def test_rank_entry_is_in_the_run_when_a_rank_returns(cluster: Cluster) -> None:
    """The directory is there for the rank's own log, and tells who joined."""
    joined = cluster.join(65)
    entry = cluster.layout.run(joined.run_id).rank_entry(65)

    document = json.loads(entry.read_bytes())
    assert document["global_rank"] == 65
    assert document["host"] == "host"
    assert document["nonce"] == "nonce0"


@pytest.mark.needs("links")
def test_claim_leads_to_an_empty_file_beside_it(cluster: Cluster) -> None:
    """A claim is no second way into the run for `rsync -L` or TensorBoard, and never dangles."""
    joined = cluster.join()
    link = claim(cluster.claims, 1)

    assert link.is_symlink()
    assert link.resolve() == cluster.claims / joined.run_id
    assert link.read_bytes() == b""


def test_launches_with_other_keys_have_runs_of_their_own(cluster: Cluster) -> None:
    """In the same second, too."""
    assert len({cluster.join(key=f"key {number}").run_id for number in range(32)}) == 32


def test_second_launch_with_the_same_key_gets_a_fresh_run(cluster: Cluster) -> None:
    """A second training in one `srun` step finds the entries of the first and goes on to the next generation."""
    first = {cluster.join(rank) for rank in range(3)}
    second = {cluster.join(rank) for rank in (2, 0, 1)}
    third = {cluster.join(rank) for rank in (1, 2, 0)}

    assert [len(runs) for runs in (first, second, third)] == [1, 1, 1]
    assert [runs.pop().generation for runs in (first, second, third)] == [1, 2, 3]


def test_empty_entry_counts_as_anothers(cluster: Cluster) -> None:
    """A rank that was killed between creating and writing its entry has joined, as far as anyone can know."""
    first = cluster.join()
    cluster.layout.run(first.run_id).rank_entry(1).touch()

    assert cluster.join(1).generation == 2


def test_lost_answer_is_recognised_by_the_content(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NFS the creator of an entry or a claim can be told that it exists already."""
    create_exclusive, create_link = durable_files.create_exclusive, durable_files.create_link

    def forgetful_file(path: Path, data: bytes, *, durable: bool = False) -> bool:
        create_exclusive(path, data, durable=durable)
        return False

    def forgetful_link(text: str, path: Path) -> bool:
        create_link(text, path)
        return False

    monkeypatch.setattr(durable_files, "create_exclusive", forgetful_file)
    monkeypatch.setattr(durable_files, "create_link", forgetful_link)

    assert cluster.join(0) == cluster.join(1)
    assert cluster.join(0).generation == 2


def test_rank_that_is_overtaken_takes_the_winners_run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between "there is no claim" and making one another rank makes it: only what is read back counts."""
    create_link = durable_files.create_link
    others: list[Joined] = []

    def overtaken(text: str, path: Path) -> bool:
        if not others:
            monkeypatch.setattr(durable_files, "create_link", create_link)
            others.append(cluster.join(1))
        return create_link(text, path)

    monkeypatch.setattr(durable_files, "create_link", overtaken)

    assert cluster.join(0) == others[0]


def test_many_threads_agree(cluster: Cluster) -> None:
    """Under a real race too there is one run, and every rank is in it."""
    barrier = threading.Barrier(16)
    joined: list[Joined] = []

    def join(rank: int) -> None:
        """Let a rank join, as a process that has not joined before."""
        barrier.wait()
        joined.append(cluster.join(rank))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(joined) == 16
    assert len(set(joined)) == 1


@pytest.mark.needs("links")
@pytest.mark.parametrize(
    "text", ["../../elsewhere", "/etc/passwd", "latest", "2026-12-01_02-28-15Z_k3v9q/..", "run_0"]
)
def test_claim_that_is_no_run_id_is_not_trusted(cluster: Cluster, text: str) -> None:
    """In a shared group directory anyone can put a link there; nobody follows it anywhere."""
    cluster.claims.mkdir(parents=True)
    claim(cluster.claims, 1).symlink_to(text)

    with pytest.raises(AgreementError, match="expected a run id in the claim") as caught:
        cluster.join()
    assert caught.value.path == claim(cluster.claims, 1)


def test_pruned_run_is_passed_over(cluster: Cluster) -> None:
    """A late launch with the key of a pruned run does not bring its directory back."""
    first = cluster.join()
    run = cluster.layout.run(first.run_id)
    run.rank_entry(0).unlink()
    run.rank_entry(0).parent.rmdir()
    run.ranks.rmdir()
    run.path.rmdir()
    (cluster.claims / first.run_id).write_text("pruned")

    second = cluster.join()
    assert second.generation == 2
    assert not run.path.exists()


@pytest.mark.needs("links")
def test_run_that_was_claimed_but_never_made_is_made(cluster: Cluster) -> None:
    """A rank killed after its claim leaves a name, which the other ranks of the launch fill."""
    cluster.claims.mkdir(parents=True)
    run_id = cluster.new_run_id()
    (cluster.claims / run_id).touch()
    claim(cluster.claims, 1).symlink_to(run_id)

    assert cluster.join(1) == Joined(run_id, 1)
    assert cluster.layout.run(run_id).rank_entry(1).exists()


def age_claim(cluster: Cluster, seconds: float, *, generation: int = 1) -> None:
    """Let a claim look as if it were older."""
    link = claim(cluster.claims, generation)
    written = link.lstat().st_mtime - seconds
    os.utime(link, (written, written), follow_symlinks=False)


@pytest.mark.needs("times of links")
def test_shared_key_passes_over_an_old_claim(cluster: Cluster) -> None:
    """After the join window the claim of a key that two launches can share is an earlier launch's."""
    cluster.unique = False
    first = cluster.join(0)
    age_claim(cluster, JOIN_WINDOW + 5.0)

    assert cluster.join(1) == cluster.join(0) != first


def test_shared_key_joins_within_the_window(cluster: Cluster) -> None:
    """A rank that is some minutes late still finds its launch."""
    cluster.unique = False
    first = cluster.join(0)
    age_claim(cluster, JOIN_WINDOW - 60.0)

    assert cluster.join(1) == first


def test_unique_key_joins_however_late(cluster: Cluster) -> None:
    """For a key that no other launch can have there is no window."""
    first = cluster.join(0)
    age_claim(cluster, 1_000_000.0)

    assert cluster.join(1) == first


def end(cluster: Cluster, run_id: str, seconds_ago: float) -> None:
    """Record the end of a run at a time by the file server's clock."""
    record = cluster.layout.run(run_id).finish_record
    record.write_text("{}")
    ended = record.stat().st_mtime - seconds_ago
    os.utime(record, (ended, ended))


def test_shared_key_passes_over_a_run_that_ended_before_this_process_started(cluster: Cluster) -> None:
    """Its rank cannot be one that is merely late."""
    cluster.unique = False
    cluster.age = 5.0
    first = cluster.join(0)
    end(cluster, first.run_id, seconds_ago=60.0)

    assert cluster.join(1).generation == 2


def test_shared_key_joins_a_run_that_ended_after_this_process_started(cluster: Cluster) -> None:
    """Rank zero failed early; the slow rank of the same launch still belongs there."""
    cluster.unique = False
    cluster.age = 60.0
    first = cluster.join(0)
    end(cluster, first.run_id, seconds_ago=5.0)

    assert cluster.join(1) == first


def test_unique_key_joins_a_run_that_has_ended(cluster: Cluster) -> None:
    """A launch whose first rank fails early is not split."""
    first = cluster.join(0)
    end(cluster, first.run_id, seconds_ago=60.0)

    assert cluster.join(1) == first


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, 524])
def test_mount_without_links_uses_files_for_claims(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """The ranks agree there too, and the rank that made the claim says so once."""

    def refuse(*_: object) -> None:
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    with caplog.at_level(logging.WARNING):
        assert cluster.join(1) == cluster.join(0)

    assert claim(cluster.claims, 1).is_file()
    assert not claim(cluster.claims, 1).is_symlink()
    assert [record.message for record in caplog.records] == [
        f"This mount has no symbolic links; claims are plain files there: {cluster.claims}"
    ]
    assert cluster.join(0).generation == 2


class NoWait:
    """A clock that passes only while somebody sleeps."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self._then = then

    def monotonic(self) -> float:
        """Return the scripted time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass, and do what happens meanwhile."""
        self.now += seconds
        self._then()


def test_file_claim_that_is_still_empty_is_read_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is visible a moment before it is complete."""
    cluster.claims.mkdir(parents=True)
    run_id = cluster.new_run_id()
    (cluster.claims / run_id).touch()
    claim(cluster.claims, 1).touch()
    monkeypatch.setattr(durable_files, "time", NoWait(lambda: (claim(cluster.claims, 1).write_text(run_id), None)[1]))

    assert cluster.join() == Joined(run_id, 1)


@pytest.mark.parametrize("text", ["", "2026-12-01_02"])
def test_file_claim_that_stays_cut_is_passed_over_when_it_is_old(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Whoever made it was killed before it wrote the run id, and every rank comes to the same conclusion."""
    cluster.claims.mkdir(parents=True)
    claim(cluster.claims, 1).write_text(text)
    age_claim(cluster, 120.0)
    monkeypatch.setattr(durable_files, "time", NoWait())

    assert cluster.join(0) == cluster.join(1)
    assert cluster.join(2).generation == 2


@pytest.mark.parametrize("text", ["", "2026-12-01_02"])
def test_file_claim_that_was_made_just_now_and_stays_cut_is_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Passing over it could split the launch: its maker may be about to write."""
    cluster.claims.mkdir(parents=True)
    claim(cluster.claims, 1).write_text(text)
    monkeypatch.setattr(durable_files, "time", NoWait())

    with pytest.raises(AgreementError, match=f"expected a run id in the claim, found '{text}'(.|\n)*in a minute"):
        cluster.join()


def test_claim_that_exists_but_cannot_be_seen_yet_is_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOENT after EEXIST is a cached answer: the rank lists the directory and tries again."""
    first = cluster.join(1)
    readlink = os.readlink
    hidden = [True]
    monkeypatch.setattr(durable_files, "time", NoWait(hidden.clear))

    def cached(path: Path) -> str:
        if hidden:
            raise FileNotFoundError(errno.ENOENT, "cached", str(path))
        return readlink(path)

    monkeypatch.setattr(os, "readlink", cached)

    assert cluster.join(0) == first


def test_claim_that_never_becomes_visible_is_an_error_that_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message tells what was waited for, how long, and what to look at."""
    cluster.join(1)
    clock = NoWait()
    monkeypatch.setattr(durable_files, "time", clock)

    def blind(path: Path) -> str:
        raise FileNotFoundError(errno.ENOENT, "cached", str(path))

    monkeypatch.setattr(os, "readlink", blind)
    with pytest.raises(AgreementError, match=r"waited 75 s .*\nHINT: is this directory really shared") as caught:
        cluster.join(0)
    assert caught.value.path == claim(cluster.claims, 1)
    assert clock.now >= 75.0


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "write access"),
        (errno.EROFS, "read-only"),
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "quota"),
    ],
)
def test_error_says_what_was_tried_and_what_to_do(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    """Rank, key, path, the system's words and a hint are in the message."""

    def refuse(path: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(AgreementError) as caught:
        cluster.join(5)

    message = str(caught.value)
    assert message.startswith("rank 5 could not settle on a run: ")
    assert os.strerror(number) in message
    assert str(caught.value.path) in message
    assert "launch key key" in message
    assert advice in message.partition("\nHINT: ")[2]
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("name", ["runs", "runs/.launches"])
def test_file_in_the_place_of_a_directory_is_reported(cluster: Cluster, experiment: Path, name: str) -> None:
    """The message names the file and says to move it."""
    (experiment / name).parent.mkdir(parents=True)
    (experiment / name).touch()

    with pytest.raises(AgreementError, match="HINT: move what stands there out of the way"):
        cluster.join()


def test_generations_end_somewhere(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that makes every entry look taken ends in an error, not in an endless loop."""
    monkeypatch.setattr(agreement, "_MAX_GENERATIONS", 3)
    for _ in range(3):
        cluster.join()

    with pytest.raises(AgreementError, match="3 launches with this key are there already"):
        cluster.join()


@pytest.mark.needs("times of links")
def test_passed_over_generations_end_somewhere(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a long row of claims that are passed over."""
    monkeypatch.setattr(agreement, "_MAX_GENERATIONS", 3)
    cluster.unique = False
    for generation in range(1, 4):
        assert cluster.join().generation == generation
        age_claim(cluster, JOIN_WINDOW + 5.0, generation=generation)

    with pytest.raises(AgreementError, match="3 launches with this key are there already"):
        cluster.join(1)


def test_clocks_that_cannot_be_compared_are_an_error(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that takes "now" from a node whose clock is ahead makes every new claim look old: no rank goes on."""
    monkeypatch.setattr(durable_files, "server_time", lambda _: time.time() + JOIN_WINDOW + 60.0)
    cluster.unique = False
    for rank in range(2):
        with pytest.raises(AgreementError, match=r"rank \d .* clocks .* differ, .*\nHINT: .*IMMUTABLE_LOGS_LAUNCH_ID"):
            cluster.join(rank)
    assert not list(cluster.layout.runs.glob("*Z_*"))

    cluster.unique = True
    assert cluster.join(0, key="other") == cluster.join(1, key="other")


def test_ranks_of_any_number_find_their_shard(cluster: Cluster) -> None:
    """The first rank of each shard makes its directory."""
    assert len({cluster.join(rank) for rank in (0, 63, 64, 128, 100_000)}) == 1
