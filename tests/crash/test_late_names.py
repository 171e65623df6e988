"""A mount that shows what other nodes have made only after 35 s, as NFS can: the ranks agree all the same."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment, durable_files, start_run
from immutable_logs.agreement import Joined, join_run
from immutable_logs.launch import Launch, Ranks
from immutable_logs.layout import ExperimentLayout
from immutable_logs.process import Process
from immutable_logs.run_id import format_run_id
from tests.conftest import shown_by_latest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from tests.conftest import Children

DELAY = 35.0
ASKING = ("stat", "lstat", "readlink", "utime", "chmod", "chown")


class LateMount:
    """A client's view of a directory: names that others have made are not found, nor listed, for `DELAY` seconds.

    The server knows them: making such a name in a directory that the client sees is refused with `EEXIST`. Listing a
    directory does not help, which is worse than NFS. Time passes only while somebody sleeps.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.hidden: set[str] = set()
        self._real = {name: getattr(os, name) for name in (*ASKING, "open", "mkdir", "symlink", "scandir")}
        for name in ASKING:
            monkeypatch.setattr(os, name, self._ask(self._real[name]))
        monkeypatch.setattr(os, "open", self._open)
        monkeypatch.setattr(os, "mkdir", self._mkdir)
        monkeypatch.setattr(os, "symlink", self._symlink)
        monkeypatch.setattr(os, "scandir", self._scandir)
        monkeypatch.setattr(durable_files, "time", self)

    def hide(self, names: set[Path]) -> None:
        """From now on these names are late."""
        self.now = 0.0
        self.hidden = {str(name) for name in names}

    def monotonic(self) -> float:
        """Return the scripted time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass; in the end everything is seen."""
        self.now += seconds
        if self.now >= DELAY:
            self.hidden = set()

    def _find(self, path: Any, *, itself: bool) -> None:
        """Raise `ENOENT` if the client does not see a part of a path."""
        if not isinstance(path, (str, os.PathLike)):
            return
        parts = [*Path(path).parents, *([Path(path)] if itself else [])]
        if any(str(part) in self.hidden for part in parts):
            raise FileNotFoundError(errno.ENOENT, "a cached answer", str(path))

    def _ask(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(path: Any, *arguments: Any, **options: Any) -> Any:
            self._find(path, itself=True)
            return real(path, *arguments, **options)

        return ask

    def _open(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        self._find(path, itself=not flags & os.O_CREAT)
        descriptor: int = self._real["open"](path, flags, *arguments, **options)
        return descriptor

    def _mkdir(self, path: Any, *arguments: Any, **options: Any) -> None:
        self._find(path, itself=False)
        self._real["mkdir"](path, *arguments, **options)

    def _symlink(self, text: str, path: Any) -> None:
        self._find(path, itself=False)
        self._real["symlink"](text, path)

    def _scandir(self, path: Any) -> _Listing:
        self._find(path, itself=True)
        return _Listing(self._real["scandir"](path), self.hidden)


class _Listing:
    """What `os.scandir` gives, without the names that are hidden."""

    def __init__(self, entries: Any, hidden: set[str]) -> None:
        self._entries = entries
        self._hidden = hidden

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return (entry for entry in self._entries if entry.path not in self._hidden)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.close()


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> LateMount:
    """The mount under everything that the test does."""
    return LateMount(monkeypatch)


NUMBERS = itertools.count()


def join(experiment: Path, rank: int, *, unique: bool) -> Joined:
    """Let a rank join, as a process of its own."""
    number = next(NUMBERS)
    return join_run(
        ExperimentLayout.of(experiment),
        Launch("key", unique=unique, ranks=Ranks(rank), source="test"),
        process=Process("host", number),
        process_age=lambda: 0.0,
        new_run_id=lambda: format_run_id(1796092095.0, number.to_bytes(8, "big")),
        now=0.0,
        nonce=str(number),
    )


@pytest.mark.parametrize("unique", [True, False], ids=["a unique key", "a shared key"])
@pytest.mark.parametrize("rank", [0, 1, 64], ids=lambda rank: f"rank {rank}")
def test_rank_that_sees_nothing_of_the_others_joins_their_run(
    experiment: Path, mount: LateMount, rank: int, unique: bool
) -> None:
    """Not the experiment, not the claim, not the run; the other rank's directory is 64 ranks wide."""
    first = join(experiment, 2, unique=unique)
    mount.hide({experiment, *experiment.rglob("*")})

    assert join(experiment, rank, unique=unique) == first
    assert DELAY <= mount.now < 2 * DELAY


@pytest.mark.parametrize("unique", [True, False], ids=["a unique key", "a shared key"])
def test_rank_joins_whichever_names_are_late(tmp_path: Path, mount: LateMount, unique: bool) -> None:
    """Every set of the names that a rank can have made before."""
    join(tmp_path / "like", 2, unique=unique)
    names = sorted(path.relative_to(tmp_path / "like") for path in (tmp_path / "like").rglob("*"))
    assert len(names) > 6
    waited = 0
    for number, is_late in enumerate(itertools.product([False, True], repeat=len(names))):
        experiment = tmp_path / str(number)
        first = join(experiment, 2, unique=unique)
        mount.hide({path for path, late in zip(sorted(experiment.rglob("*")), is_late, strict=True) if late})
        late_names = sorted(mount.hidden)
        assert join(experiment, 1, unique=unique) == first, late_names
        waited += mount.now >= DELAY

    assert waited > number / 2


OTHER_NODE = """
    from immutable_logs import start_run
    run = start_run(sys.argv[1])
    run.finish()
    report(run=run.id)
"""


@pytest.mark.needs("links")
def test_rank_zero_that_sees_nothing_of_the_others_records_everything(
    experiment: Path,
    mount: LateMount,
    children: Children,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An earlier run, `latest`, the manifest and another rank's entry were made on another node just now."""
    environments = [{"IMMUTABLE_LOGS_LAUNCH_ID": "earlier"}, {"IMMUTABLE_LOGS_LAUNCH_ID": "launch", "RANK": "70"}]
    earlier, joined = [
        children.start(OTHER_NODE, experiment, environ=environ).report()["run"] for environ in environments
    ]
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "launch")
    monkeypatch.setenv("RANK", "0")
    mount.hide({experiment, *experiment.rglob("*")})
    run = start_run(experiment)
    run.finish()

    assert run.id == joined
    assert mount.now >= DELAY
    assert caplog.records == []
    assert shown_by_latest(experiment) == run.path
    assert [(each.id, each.status) for each in Experiment(experiment).runs()] == [
        (earlier, "finished"),
        (joined, "finished"),
    ]
