"""Real NeMo on two ranks under the eyes of the kernel and of readers: what the layout keeps, and stock NeMo moves."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment
from immutable_logs.verification import verify_experiment

if TYPE_CHECKING:
    from tests.nemo.conftest import ForkingServer

SCRIPT = Path(__file__).parent / "scripts" / "requeued_train.py"
LAUNCHES = 50
TRAINED = range(0, LAUNCHES, 10)
"""The launches that train; all others end when `exp_manager` has returned."""

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Job:
    """A job of two ranks that Slurm starts again and again.

    Attributes:
        servers: One for each rank, so that the two start at once.
        directory: The working directory; the experiment is `exp/tiny` below it.
        environment: Variables for both ranks.
        overrides: Hydra overrides for all launches.
    """

    servers: list[ForkingServer]
    directory: Path
    environment: dict[str, str]
    overrides: tuple[str, ...]

    @property
    def experiment(self) -> Path:
        """Where the job writes."""
        return self.directory / "exp" / "tiny"

    def launch(self, number: int) -> list[dict[str, str]]:
        """Let both ranks start and end, and return what each of them said."""
        training = ("stop_before_fit=false", f"trainer.max_epochs={number + 1}")
        what = training if number in TRAINED else ("stop_before_fit=true",)
        outputs = [self.directory / f"output_{number}_{rank}.txt" for rank in range(len(self.servers))]
        for rank, (server, output) in enumerate(zip(self.servers, outputs, strict=True)):
            server.start(
                SCRIPT,
                f"exp_manager.exp_dir={self.directory / 'exp'}",
                "trainer.devices=2",
                *what,
                *self.overrides,
                directory=self.directory,
                environment={**self.environment, **step_variables(rank, number)},
                output=output,
            )
        statuses = [server.end() for server in self.servers]
        texts = [output.read_text(encoding="utf-8", errors="replace") for output in outputs]
        assert statuses == [0, 0], "\n".join(text[-3000:] for text in texts)
        return [dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in texts]


def step_variables(rank: int, restart: int) -> dict[str, str]:
    """Return what Slurm gives a task of a step of two tasks on one node, in a job that was requeued so often."""
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_CLUSTER_NAME": "cluster",
        "SLURM_JOB_NAME": "train",
        "SLURM_NODELIST": "localhost",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        **({"SLURM_RESTART_COUNT": str(restart)} if restart else {}),
    }


@pytest.fixture
def job(
    tmp_path: Path,
    clean_environment: dict[str, str],
    free_port: int,
    forking_server: Callable[..., AbstractContextManager[ForkingServer]],
    stock_packages: Path,
    request: pytest.FixtureRequest,
) -> Any:
    """The job under the layout that the test names; `stock` cannot see this distribution at all."""
    is_stock = request.param == "stock"
    overrides = ("+exp_manager.seconds_to_sleep=0",) if is_stock else ("exp_manager.log_layout=immutable",)
    options, packages = (("-S",), {"PYTHONPATH": str(stock_packages)}) if is_stock else ((), {})
    # NeMo 3 writes the logs of all ranks only so.
    environment = {**clean_environment, **packages, "MASTER_PORT": str(free_port), "NEMO_TESTING": "True"}
    with ExitStack() as stack:
        servers = [stack.enter_context(forking_server(*options, environment=packages)) for _ in range(2)]
        yield Job(servers, tmp_path, environment, overrides)


def launch_under_watch(
    job: Job, watched: Callable[..., AbstractContextManager[list[Any]]], requeue: Path
) -> tuple[list[list[dict[str, str]]], list[Any]]:
    """Let the job start fifty times, and return what the ranks said and what the onlookers saw."""
    job.experiment.mkdir(parents=True)
    onlookers = (
        ("tests.watch.name_watch", job.experiment),
        ("tests.watch.reader", job.experiment, "files"),
        ("tests.watch.reader", job.experiment, "fsspec"),
        ("tests.nemo.scripts.requeue_reader", requeue),
    )
    with watched(*onlookers) as reports:
        said = [job.launch(number) for number in range(LAUNCHES)]
    assert reports[0]["overflows"] == 0
    return said, reports


def outside_checkpoints(paths: list[str]) -> list[str]:
    """Leave out what is below `checkpoints/`, where NeMo and Lightning rotate."""
    return [path for path in paths if not path.startswith("checkpoints/")]


@pytest.mark.parametrize("job", ["immutable"], indirect=True)
def test_fifty_launches_move_nothing_and_no_reader_fails(
    job: Job, watched: Callable[..., AbstractContextManager[list[Any]]]
) -> None:
    """The only name that is given up is that of the next `latest`, and Lightning finds its requeue checkpoint."""
    said, (seen, *read) = launch_under_watch(job, watched, job.experiment / "requeue" / "cluster.7.0-1")

    assert outside_checkpoints(seen["deleted"]) == []
    away = outside_checkpoints(seen["moved_away"])
    assert [path for path in away if not (path.startswith("runs/.latest/") and path.endswith(".link"))] == []
    assert set(outside_checkpoints(seen["replaced"])) == {"latest"}
    assert [path for path in outside_checkpoints(seen["missing"]) if not path.endswith(".link")] == []
    failures = [Path(each["path"]) for found in read for each in found["failures"]]
    assert [path for path in failures if path.parent != job.experiment / "checkpoints"] == []
    assert min(each["reads"] for each in read) > LAUNCHES

    assert all(zero["LOG_DIR"] == one["LOG_DIR"] for zero, one in said)
    runs = Experiment(job.experiment).runs()
    assert [str(run.path) for run in runs] == [zero["LOG_DIR"] for zero, _ in said]
    assert {(run.status, run.ranks_joined) for run in runs} == {("finished", 2)}
    assert all(len(list(run.path.glob("nemo_log_globalrank-*"))) == 2 for run in runs)
    assert [zero["HPC"] == "None" for zero, _ in said] == [True] + [False] * (LAUNCHES - 1)
    assert [int(said[number][0]["STEP"]) for number in TRAINED] == [4 * (number + 1) for number in TRAINED]
    assert verify_experiment(Experiment(job.experiment)).problems == ()


@pytest.mark.parametrize("job", ["stock"], indirect=True)
def test_stock_moves_what_readers_know(job: Job, watched: Callable[..., AbstractContextManager[list[Any]]]) -> None:
    """The control: the same job, watch and readers see names moved, reads fail, and the requeue checkpoint go."""
    said, (seen, files, fsspec, requeue) = launch_under_watch(job, watched, job.experiment)

    moved = Counter(Path(path).name for path in outside_checkpoints(seen["moved_away"]))
    assert moved["cmd-args.log"] == LAUNCHES - 1
    assert moved["hpc_ckpt_1.ckpt"] == len(TRAINED)
    assert (job.experiment / f"run_{LAUNCHES - 2}").is_dir()
    assert files["failures"]
    assert requeue["failures"]
    assert {zero["HPC"] for zero, _ in said} == {"None"}
    year, month, *_ = importlib.metadata.version("fsspec").split(".")
    if (int(year), int(month)) < (2024, 12):  # later ones pass over what goes while they list
        assert fsspec["failures"]
