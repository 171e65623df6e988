"""Launch keys and ranks, from the environments that real launchers made and from single variables."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs.errors import LaunchDetectionError
from immutable_logs.launch import Ranks
from immutable_logs.launchers import lightning, slurm, torchrun
from immutable_logs.launchers.detection import ProcessLaunch, detect_launch
from immutable_logs.launchers.ranks import detect_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from immutable_logs.launch import Launch

ENVIRONMENTS = Path(__file__).parent / "environments"
NAMES = sorted(path.stem for path in ENVIRONMENTS.glob("*.json"))
NO_PARENT = -1

SINGLE_PROCESSES = {"slurm_requeue_batch_0", "slurm_requeue_batch_1", "slurm_sbatch_no_srun"}
WITHOUT_ANY_ID = {name for name in NAMES if name.startswith(("mpich_", "sbatch_mpich_fork_"))}

PAIRS_THAT_DIFFER = [
    ("openmpi_1", "openmpi_2"),
    ("openmpi_container_1", "openmpi_container_2"),
    ("sbatch_mpich_1", "sbatch_mpich_2"),
    ("sbatch_mpich_onenode_1", "sbatch_mpich_onenode_2"),
    ("sbatch_openmpi_1", "sbatch_openmpi_2"),
    ("sbatch_openmpi_batchhost_1", "sbatch_openmpi_batchhost_2"),
    ("sbatch_openmpi_onenode_1", "sbatch_openmpi_onenode_2"),
    ("slurm_array_0", "slurm_array_1"),
    ("slurm_requeue_sbatch_export_none_0", "slurm_requeue_sbatch_export_none_1"),
    ("slurm_requeue_srun_0", "slurm_requeue_srun_1"),
    ("slurm_requeue_srun_export_none_0", "slurm_requeue_srun_export_none_1"),
    ("slurm_requeue_batch_0", "slurm_requeue_batch_1"),
    ("slurm_sbatch_srun_step0", "slurm_sbatch_srun_step1"),
    ("slurm_srun", "slurm_srun_next"),
    ("slurm_srun_mpi_pmix_1", "slurm_srun_mpi_pmix_2"),
]
"""Two launches of one command each; torchrun's own are in `test_launches_of_torchrun_differ_by_their_store`."""

RESTARTS_OF_ONE_AGENT = [
    "torchrun_c10d",
    "torchrun_standalone",
    "torchrun_static",
    "torchrun_static_master_port",
]


class Stores(dict[tuple[str, str, str], str]):
    """Stands for the stores of torchrun's agents, which need torch; `tests/nemo` asks real ones."""

    def agree(self, environ: Mapping[str, str], key: str, proposal: str) -> str:
        """Return the first token proposed under a key of the store at an address."""
        return self.setdefault((environ["MASTER_ADDR"], environ["MASTER_PORT"], key), proposal)


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    """The stores that the ranks of one launch share."""
    made = Stores()
    monkeypatch.setattr(torchrun, "_agree_on_token", made.agree)
    return made


_numbers: Iterator[int] = itertools.count()


def detect(environ: Mapping[str, str], *, parent_pid: int = NO_PARENT, ranks_per_node: int | None = None) -> Launch:
    """Return the launch that an environment tells of, every random token being another."""
    return detect_launch(
        environ,
        parent_pid=parent_pid,
        new_token=lambda: f"token{next(_numbers)}",
        ranks_per_node=ranks_per_node,
    )


def captured(name: str) -> Any:
    """Return the description of a captured launch, with the environment of each rank."""
    return json.loads((ENVIRONMENTS / f"{name}.json").read_text(encoding="utf-8"))


def launches(name: str, stores: Stores) -> list[Launch]:
    """Return the launch that each rank of a captured launch detects, by a fresh set of agents' stores."""
    stores.clear()
    return [detect(environ) for environ in captured(name)["ranks"]]


def test_there_are_environments_of_every_launcher() -> None:
    """The data is found, so that no test below passes for want of it."""
    prefixes = {name.split("_")[0] for name in NAMES}

    assert prefixes >= {"openmpi", "mpich", "slurm", "torchrun", "sbatch", "srun"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_ANY_ID])
def test_all_ranks_of_a_launch_agree_on_the_key(name: str, stores: Stores) -> None:
    """From the environment alone every rank of a real launch comes to the same key."""
    found = launches(name, stores)

    assert len({launch.key for launch in found}) == 1
    assert len({(launch.unique, launch.source, launch.job) for launch in found}) == 1


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_ANY_ID])
def test_ranks_are_the_true_ones(name: str, stores: Stores) -> None:
    """Global ranks count up, local ranks start anew on each node, and the world is as large as it is."""
    ranks = [launch.ranks for launch in launches(name, stores)]
    is_part = name == "torchrun_static_two_agents_restart_after"  # only the second agent restarted its workers
    first = 2 if is_part else 0

    assert [rank.global_rank for rank in ranks] == list(range(first, first + len(ranks)))
    assert {rank.world_size for rank in ranks} == {None if name in SINGLE_PROCESSES else first + len(ranks)}
    if len(ranks) == 4 or is_part:
        is_one_node = name.startswith("openmpi")
        expected = [0, 1, 2, 3] if is_one_node else [0, 1, 0, 1]
        assert [rank.local_rank for rank in ranks] == expected[: len(ranks)]


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.startswith(("slurm_srun", "slurm_array", "torchrun"))]
)
def test_number_of_the_node_is_known_under_slurm_and_torchrun(name: str, stores: Stores) -> None:
    """Two nodes of two ranks, or one agent, are told as such."""
    nodes = [launch.ranks.node_rank for launch in launches(name, stores)]
    expected = {
        "slurm_srun_het": [0, 1, 1],
        "torchrun_static_two_agents_restart_after": [1, 1],
    }.get(name, [0, 0, 1, 1][: len(nodes)])

    assert nodes == expected


@pytest.mark.parametrize(("first", "second"), PAIRS_THAT_DIFFER)
def test_two_launches_of_one_command_differ(first: str, second: str, stores: Stores) -> None:
    """A second launch, the next element of an array and a requeued job have another key."""
    one, other = launches(first, stores)[0], launches(second, stores)[0]

    assert one.key_name != other.key_name
    assert one.unique
    assert other.unique


@pytest.mark.parametrize("name", [name for name in NAMES if "torchrun" in name and name.endswith("_1")])
def test_launches_of_torchrun_differ_by_their_store(name: str, stores: Stores) -> None:
    """The variables can be the same to the letter; the token in the agent's store is another."""
    one = launches(name, stores)[0]
    other = launches(f"{name[:-1]}2", stores)[0]

    assert one.key != other.key
    assert one.unique
    assert one.source == "torchrun's agent store"


@pytest.mark.parametrize("name", RESTARTS_OF_ONE_AGENT)
def test_restarted_workers_of_one_agent_are_another_launch(name: str, stores: Stores) -> None:
    """The agent's store outlives a restart, so the restart count is in the key, where it is exact."""
    before = launches(f"{name}_restart_before", stores)
    after = [detect(environ) for environ in captured(f"{name}_restart_after")["ranks"]]

    assert len({launch.key for launch in before}) == len({launch.key for launch in after}) == 1
    assert before[0].key != after[0].key
    assert after[0].unique


@pytest.mark.parametrize("name", ["torchrun_c10d_two_agents", "torchrun_static_two_agents"])
def test_restarts_of_several_agents_are_left_to_the_agreement(name: str, stores: Stores) -> None:
    """The count is local to an agent and would split the ranks; the key says that two launches may share it."""
    before = launches(f"{name}_restart_before", stores)
    after = [detect(environ) for environ in captured(f"{name}_restart_after")["ranks"]]

    assert len({launch.key for launch in before + after}) == 1
    assert not before[0].unique


def test_two_trainings_in_one_step_share_the_key(stores: Stores) -> None:
    """No variable tells them apart: the ranks' entries do, in the agreement."""
    first, second = launches("slurm_two_trainings_a", stores), launches("slurm_two_trainings_b", stores)

    assert first == second


@pytest.mark.parametrize("name", sorted(SINGLE_PROCESSES))
def test_batch_script_without_srun_is_a_single_process(name: str, stores: Stores) -> None:
    """The batch script's `SLURM_NTASKS` and `SLURM_PROCID` mean nothing without a step."""
    (launch,) = launches(name, stores)

    assert launch.source == "single process"
    assert launch.ranks == Ranks(0, 0, 0, None)
    assert launch.job == captured(name)["ranks"][0]["SLURM_JOB_ID"]


@pytest.mark.parametrize("name", sorted(WITHOUT_ANY_ID))
def test_mpi_without_an_id_is_refused_with_advice(name: str) -> None:
    """Every rank would take itself for a launch of its own, so every rank says what to set."""
    for environ in captured(name)["ranks"]:
        with pytest.raises(LaunchDetectionError, match=r"HINT: set IMMUTABLE_LOGS_LAUNCH_ID .*date "):
            detect(environ)
        launch = detect({**environ, "IMMUTABLE_LOGS_LAUNCH_ID": "mine"})
        assert launch.ranks.global_rank == int(environ["PMI_RANK"])
        assert launch.source == "IMMUTABLE_LOGS_LAUNCH_ID"


def test_single_rank_of_such_an_mpi_is_a_single_process() -> None:
    """`mpirun -np 1` needs no id."""
    assert detect({"PMI_RANK": "0", "PMI_SIZE": "1"}).source == "single process"


@pytest.mark.parametrize("name", ["srun_torchrun_c10d_1", "srun_torchrun_static_1"])
def test_torchrun_inside_srun_wins(name: str, stores: Stores) -> None:
    """`srun` starts the agents, torchrun the ranks."""
    found = launches(name, stores)

    assert found[0].source == "torchrun's agent store"
    assert [launch.ranks.global_rank for launch in found] == [0, 1, 2, 3]
    assert found[0].job == captured(name)["ranks"][0]["SLURM_JOB_ID"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_ANY_ID | SINGLE_PROCESSES])
def test_id_of_the_user_wins_over_every_launcher(name: str, stores: Stores) -> None:
    """`IMMUTABLE_LOGS_LAUNCH_ID` is the key, and the ranks stay the launcher's; torchrun's restarts count."""
    ranks = [launch.ranks for launch in launches(name, stores)]
    found = [detect({**environ, "IMMUTABLE_LOGS_LAUNCH_ID": "run 7"}) for environ in captured(name)["ranks"]]

    restart = " restart 1" if name.endswith("restart_after") and "two_agents" not in name else ""
    assert {launch.key for launch in found} == {f'id "run 7"{restart} world={ranks[0].world_size}'}
    assert [launch.ranks for launch in found] == ranks


def test_requeue_keeps_the_name_of_the_step() -> None:
    """Lightning's requeue checkpoint is found again under the step's name, which a requeue does not change."""
    before, after = (captured(f"slurm_requeue_srun_{number}")["ranks"][0] for number in (0, 1))

    assert slurm.step_name(before) == slurm.step_name(after) is not None
    assert slurm.step_name({}) is None


def test_slurm_without_a_cluster_name_still_has_a_key() -> None:
    """Old installations do not set it."""
    assert (
        detect({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2"}).key == "slurm cluster.5.0 restart 0"
    )


@pytest.mark.parametrize(
    ("environ", "source"),
    [
        ({"PALS_RANKID": "1", "PALS_APID": "a-1", "PMI_RANK": "1", "PALS_LOCAL_RANKID": "1"}, "PALS"),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_ID": "f1", "FLUX_TASK_LOCAL_ID": "1"}, "Flux"),
        (
            {"JSM_NAMESPACE_RANK": "1", "PMIX_NAMESPACE": "2", "LSB_JOBID": "3", "JSM_NAMESPACE_LOCAL_RANK": "1"},
            "jsrun",
        ),
    ],
)
def test_launchers_of_large_machines_give_their_own_id(environ: dict[str, str], source: str) -> None:
    """Written from their documentation, since these launchers run on their own machines only."""
    launch = detect(environ)

    assert launch.source == source
    assert launch.unique
    assert launch.ranks == Ranks(1, 1, 0, None)


@pytest.mark.parametrize("rank", [{"RANK": "3"}, {"NODE_RANK": "0"}])
def test_address_of_the_rendezvous_is_a_key_that_can_be_shared(rank: dict[str, str]) -> None:
    """Nothing tells one launch from the next, and the key says so."""
    launch = detect({"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "8", **rank})

    assert launch.key == "master node1:29500 world=8"
    assert not launch.unique


@pytest.mark.parametrize(
    "environ",
    [
        {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
        {"RANK": "0", "MASTER_ADDR": "node1"},
        {"MASTER_ADDR": "", "MASTER_PORT": "", "RANK": "0"},
    ],
)
def test_incomplete_address_is_a_single_process(environ: dict[str, str]) -> None:
    """Half of the variables say nothing."""
    assert detect(environ).source == "single process"


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1"},
        {"RANK": "1"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        {"PALS_RANKID": "0", "PMI_SIZE": "4"},
        {"FLUX_TASK_RANK": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
    ],
    ids=str,
)
def test_one_of_several_ranks_without_a_launch_is_refused(environ: dict[str, str]) -> None:
    """Whichever launcher told it the rank: each would make a run of its own, and rank zero's alone a record."""
    with pytest.raises(LaunchDetectionError, match=r"this is rank \d.*\nHINT: set IMMUTABLE_LOGS_LAUNCH_ID"):
        detect(environ)
    assert detect({**environ, "IMMUTABLE_LOGS_LAUNCH_ID": "mine"}).source == "IMMUTABLE_LOGS_LAUNCH_ID"


def test_world_size_alone_tells_of_no_rank() -> None:
    """The parent of Lightning's launcher, in a container that sets it for other programs."""
    assert detect({"WORLD_SIZE": "8", "LOCAL_RANK": "0"}).source == "single process"


def test_plain_processes_never_share_a_key() -> None:
    """Without any variable each process is a launch of its own."""
    assert detect({}).key != detect({}).key


@pytest.mark.parametrize("value", ["", " ", "0"])
def test_empty_variable_counts_as_not_set(value: str) -> None:
    """`RANK=` in a script is no rank."""
    assert detect_ranks({"RANK": value}) == Ranks()


@pytest.mark.parametrize("value", ["one", "-1", "1.5", "0x1", "$RANK"])
def test_rank_that_is_no_number_is_an_error(value: str) -> None:
    """Guessing would put two ranks into one file."""
    with pytest.raises(LaunchDetectionError, match=r"expected a number of 0 or more .* RANK, found"):
        detect_ranks({"RANK": value})


def test_rank_of_a_further_node_needs_the_ranks_of_a_node() -> None:
    """`NODE_RANK` alone does not give a global rank, and zero would be wrong."""
    with pytest.raises(LaunchDetectionError, match=r"NODE_RANK is 1 .*\n.*ranks_per_node"):
        detect_ranks({"NODE_RANK": "1", "LOCAL_RANK": "2"})
    assert detect_ranks({"NODE_RANK": "1", "LOCAL_RANK": "2"}, 8) == Ranks(10, 2, 1, None)
    assert detect_ranks({"NODE_RANK": "1", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}) == Ranks(6, 2, 1, None)


def exported(launch: Launch, pid: int = 77) -> dict[str, str]:
    """Return what a process leaves to the children of Lightning's launcher."""
    environ: dict[str, str] = {}
    lightning.export(environ, launch, pid)
    return environ


def test_child_of_lightnings_launcher_takes_its_parents_key() -> None:
    """The child's ranks come from Lightning's variables."""
    parent = detect({})
    child = detect({**exported(parent), "LOCAL_RANK": "3", "NODE_RANK": "0", "WORLD_SIZE": "4"}, parent_pid=77)

    assert child.key == parent.key
    assert child.ranks == Ranks(3, 3, 0, 4)
    assert child.unique


def test_child_inside_an_interactive_step_has_its_own_rank() -> None:
    """Every child inherits the `SLURM_PROCID` of the shell; only Lightning's variables count."""
    shell = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}
    parent = detect(shell)
    child = detect({**shell, **exported(parent), "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, parent_pid=77)

    assert child.key == parent.key
    assert child.ranks == Ranks(1, 1, 0, 2)
    assert child.job == "1"


@pytest.mark.parametrize(
    ("variables", "parent_pid"),
    [
        ({}, 77),  # a nested training
        ({"LOCAL_RANK": "0"}, 77),
        ({"LOCAL_RANK": "1"}, 78),  # a grandchild, or a stale export
        ({"LOCAL_RANK": "-1"}, 77),
        ({"LOCAL_RANK": "one"}, NO_PARENT),
    ],
)
def test_other_descendants_do_not_take_the_key(variables: dict[str, str], parent_pid: int) -> None:
    """A script started from the script, a shell and a stale export are launches of their own."""
    parent = detect({})
    if not variables.get("LOCAL_RANK", "0").isdecimal():
        with pytest.raises(LaunchDetectionError):
            detect({**exported(parent), **variables}, parent_pid=parent_pid)
    else:
        assert detect({**exported(parent), **variables}, parent_pid=parent_pid).key != parent.key


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"pid": 77}', "null"])
def test_damaged_export_is_ignored(text: str) -> None:
    """A variable that somebody else set is no key."""
    environ = {**exported(detect({})), "LOCAL_RANK": "1"}
    name = next(name for name in environ if name != "LOCAL_RANK")

    assert detect({**environ, name: text}, parent_pid=77).source == "single process"


def test_process_with_a_local_rank_exports_nothing() -> None:
    """It was itself started by a launcher, and what it starts would take that local rank for its own."""
    environ = {"LOCAL_RANK": "1", "RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    before = dict(environ)
    lightning.export(environ, detect(environ), 77)

    assert environ == before


def test_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning alters the environment while it trains; the second run of the process is of the same launch."""
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "first")
    process = ProcessLaunch()
    one = process.next_call("/exp")
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "second")
    monkeypatch.setenv("RANK", "5")
    two = process.next_call("/exp")

    assert one.key == "id first call=1"
    assert two.key == "id first call=2"
    assert two.ranks == one.ranks


def test_calls_are_counted_for_each_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that trains in another experiment in between stays in step with the others."""
    monkeypatch.setenv("IMMUTABLE_LOGS_LAUNCH_ID", "x")
    process = ProcessLaunch()

    assert [process.next_call(experiment).key[-1] for experiment in ("/a", "/b", "/a", "/a")] == ["1", "1", "2", "3"]


def child_of(experiments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> ProcessLaunch:
    """Return a child of Lightning's launcher, whose parent had started runs in these experiments."""
    environ: dict[str, str] = {}
    lightning.export(environ, detect({}), os.getppid(), experiments)
    for name, value in {**environ, "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    return ProcessLaunch()


def test_child_of_lightnings_launcher_follows_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts its runs where its parent had, and afterwards wherever it likes."""
    child = child_of(("/a", "/b", "/a"), monkeypatch)

    assert [child.next_call(experiment).call for experiment in ("/a", "/b", "/a", "/new")] == [1, 1, 2, 1]


@pytest.mark.parametrize("before", [(), ("/a",)])
def test_child_that_would_be_alone_in_its_experiment_is_refused(
    before: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `exp_dir=${now:...}`, which each rank makes anew; the message names both places."""
    child = child_of((*before, "/exp/10-00-00"), monkeypatch)
    for experiment in before:
        child.next_call(experiment)

    with pytest.raises(LaunchDetectionError, match=r"rank 1 .* /exp/10-00-07, but .*/exp/10-00-00\n.*\$\{now"):
        child.next_call("/exp/10-00-07")


def test_what_is_left_to_children_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts thousands of runs must still be able to start another process."""
    monkeypatch.setattr(os, "environ", {})
    process = ProcessLaunch()
    for number in range(1000):
        process.next_call(f"/experiments/{number}")

    assert sum(map(len, os.environ.values())) < 2000


def test_forked_child_is_detected_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that a process forks is no rank of its parent's launch."""
    process = ProcessLaunch()
    parent = process.next_call("/exp")
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)

    assert process.next_call("/exp").key != parent.key


def test_unreachable_store_is_an_error_and_no_fall_to_the_next_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the ranks would split off; the message says which store and what to set."""
    environ = {**captured("srun_torchrun_static_1")["ranks"][0], "MASTER_PORT": "no port"}

    with pytest.raises(
        LaunchDetectionError, match=r"agent at .*:no port .*\nHINT: set IMMUTABLE_LOGS_LAUNCH_ID"
    ) as caught:
        detect(environ)
    assert caught.value.source == "torchrun"
