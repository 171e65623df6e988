"""Real processes that start at once, late, or never."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment, start_run
from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import read_manifest
from tests.conftest import shown_by_latest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Child, Children

START = """
    from immutable_logs import start_run
    gate()
    before = time.monotonic()
    run = start_run(sys.argv[1])
    report(path=run.path, generation=run.generation, seconds=time.monotonic() - before)
"""


def start_ranks(
    children: Children, experiment: Path, ranks: range | list[int], environ: dict[str, str], code: str = START
) -> list[Child]:
    """Start ranks of one launch, which wait at the gate."""
    return [children.start(code, experiment, environ={**environ, "RANK": str(rank)}, is_gated=True) for rank in ranks]


def by_address(world_size: int | None = None) -> dict[str, str]:
    """Return the variables of a launch that is known by its rendezvous address only."""
    environ = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    return environ if world_size is None else {**environ, "WORLD_SIZE": str(world_size)}


def events(experiment: Path) -> list[str]:
    """Return the events in the manifest, all of whose lines can be read."""
    manifest = read_manifest(ExperimentLayout.of(experiment))
    assert manifest.damaged == 0
    return [record.event for record in manifest.records]


def test_plain_processes_started_at_once_get_a_run_each(experiment: Path, children: Children) -> None:
    """Four processes started by hand all believe to be rank zero."""
    processes = [children.start(START, experiment, is_gated=True) for _ in range(4)]
    children.open_gate()
    paths = {child.report()["path"] for child in processes}

    assert len(paths) == 4
    runs = Experiment(experiment).runs()
    assert {str(run.path) for run in runs} == paths
    assert {run.status for run in runs} == {"finished"}
    assert sorted(events(experiment)) == ["finished"] * 4 + ["started"] * 4
    assert Experiment(experiment).find("latest").id == runs[-1].id


def test_starts_under_a_frozen_clock_get_a_run_each(experiment: Path, children: Children) -> None:
    """32 starts of eight processes in one and the same moment: 32 directories, 32 lines."""
    code = """
        from immutable_logs import start_run
        time.time = lambda: 1796092095.0
        gate()
        for _ in range(4):
            report(run=start_run(sys.argv[1]).id)
    """
    processes = [children.start(code, experiment, is_gated=True) for _ in range(8)]
    children.open_gate()
    names = [line["run"] for child in processes for line in child.reports()]

    assert len(set(names)) == 32
    assert {name[:20] for name in names} == {"2026-12-01_02-28-15Z"}
    assert {run.id for run in Experiment(experiment).runs()} == set(names)
    assert events(experiment).count("started") == 32


@pytest.mark.parametrize(
    "environ",
    [{"IMMUTABLE_LOGS_LAUNCH_ID": "launch", "WORLD_SIZE": "16"}, by_address(16), by_address()],
    ids=["launch id", "address and world size", "address"],
)
def test_ranks_of_a_launch_started_at_once_share_a_run(
    experiment: Path, children: Children, environ: dict[str, str]
) -> None:
    """Sixteen ranks, one directory, one set of records."""
    ranks = start_ranks(children, experiment, range(16), environ)
    children.open_gate()
    reports = [rank.report() for rank in ranks]

    assert {report["path"] for report in reports} == {str(Experiment(experiment).runs()[0].path)}
    assert {report["generation"] for report in reports} == {1}
    (run,) = Experiment(experiment).runs()
    assert run.ranks_joined is not None
    assert len(list(run.path.glob("ranks/*/rank-*.json"))) == 16
    assert sorted(events(experiment)) == ["finished", "started"]


def test_late_rank_zero_is_not_waited_for(experiment: Path, children: Children) -> None:
    """The others have their directory long before rank zero comes, and it joins them."""
    environ = {"IMMUTABLE_LOGS_LAUNCH_ID": "launch"}
    late = children.start(
        """
        from immutable_logs import start_run
        gate()
        time.sleep(8)
        report(path=start_run(sys.argv[1]).path)
        """,
        experiment,
        environ={**environ, "RANK": "0"},
        is_gated=True,
    )
    others = start_ranks(children, experiment, range(1, 5), environ)
    children.open_gate()
    reports = [rank.report() for rank in others]

    assert late.popen.poll() is None
    assert max(report["seconds"] for report in reports) < 4.0
    assert shown_by_latest(experiment) is None
    assert {report["path"] for report in reports} == {late.report()["path"]}
    assert Experiment(experiment).latest is not None


def test_rank_zero_that_never_comes_stops_nobody(experiment: Path, children: Children) -> None:
    """The others agree, their logs are in the run, it is listed, and the next launch works."""
    code = """
        from immutable_logs import start_run
        gate()
        run = start_run(sys.argv[1])
        (run.path / f"nemo_log_globalrank-{os.environ['RANK']}_localrank-0.txt").write_text("hello")
        report(path=run.path)
    """
    ranks = start_ranks(children, experiment, range(1, 4), {"IMMUTABLE_LOGS_LAUNCH_ID": "launch"}, code)
    children.open_gate()
    paths = {rank.report()["path"] for rank in ranks}
    (run,) = Experiment(experiment).runs()

    assert paths == {str(run.path)}
    assert len(list(run.path.glob("nemo_log_*"))) == 3
    assert run.ranks_joined == 3
    assert shown_by_latest(experiment) is None

    following = start_run(experiment)
    assert {each.id for each in Experiment(experiment).runs()} == {run.id, following.id}
    assert Experiment(experiment).find("latest").id == following.id


@pytest.mark.parametrize("environ", [{"IMMUTABLE_LOGS_LAUNCH_ID": "same"}, by_address(4)], ids=["id", "address"])
def test_second_launch_with_the_same_key_gets_a_fresh_run(
    experiment: Path, children: Children, environ: dict[str, str]
) -> None:
    """After a complete first launch all ranks of the second agree on generation 2."""
    found: list[dict[str, Any]] = []
    for _ in range(2):
        ranks = start_ranks(children, experiment, range(4), environ)
        children.open_gate()
        reports = [rank.report() for rank in ranks]
        assert len({report["path"] for report in reports}) == 1
        found.append(reports[0])

    assert found[0]["path"] != found[1]["path"]
    assert [report["generation"] for report in found] == [1, 2]
    assert [run.status for run in Experiment(experiment).runs()] == ["finished", "finished"]


def test_two_launches_with_other_keys_at_once_do_not_mix(experiment: Path, children: Children) -> None:
    """Two jobs of the same experiment start in the same moment."""
    launches = [
        start_ranks(children, experiment, range(4), {"IMMUTABLE_LOGS_LAUNCH_ID": name}) for name in ("one", "other")
    ]
    children.open_gate()
    paths = [{rank.report()["path"] for rank in ranks} for ranks in launches]

    assert [len(each) for each in paths] == [1, 1]
    assert paths[0] != paths[1]
    assert Experiment(experiment).find("latest").id == Experiment(experiment).runs()[-1].id


def test_training_started_by_a_training_gets_its_own_run(experiment: Path, children: Children) -> None:
    """A script that runs another script, with everything that it exports, is no launcher."""
    code = """
        import subprocess
        from immutable_logs import start_run
        run = start_run(sys.argv[1])
        report(path=run.path)
        if len(sys.argv) == 2:
            subprocess.run([sys.executable, __file__, sys.argv[1], "nested"], check=True, stdin=subprocess.DEVNULL)
    """
    outer, nested = (line["path"] for line in children.start(code, experiment).reports())

    assert outer != nested
    assert [run.status for run in Experiment(experiment).runs()] == ["finished", "finished"]


LIGHTNING = """
    import subprocess
    from immutable_logs import start_run
    first = start_run(sys.argv[1])
    children = []
    if "LOCAL_RANK" not in os.environ:
        os.environ.update(LOCAL_RANK="0", NODE_RANK="0", WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT="29501")
        for rank in (1, 2):
            environ = {**os.environ, "LOCAL_RANK": str(rank)}
            command = [sys.executable, __file__, *sys.argv[1:]]
            children.append(subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL))
    second = start_run(sys.argv[1])
    ranks = first.launch.ranks
    report(first=first.path, second=second.path, rank=ranks.global_rank, size=second.launch.ranks.world_size)
    sys.exit(max([child.wait() for child in children], default=0))
"""


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"IMMUTABLE_LOGS_LAUNCH_ID": "mine"},
        {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
    ],
    ids=["plain", "launch id", "interactive step"],
)
def test_children_of_lightnings_launcher_join_their_parents_runs(
    experiment: Path, children: Children, environ: dict[str, str]
) -> None:
    """Parent and children share the first run, and then the second one."""
    reports = children.start(LIGHTNING, experiment, environ=environ).reports()

    assert sorted(report["rank"] for report in reports) == [0, 1, 2]
    assert len({report["first"] for report in reports}) == 1
    assert len({report["second"] for report in reports}) == 1
    assert reports[0]["first"] != reports[0]["second"]
    assert [len(list(run.path.glob("ranks/*/rank-*.json"))) for run in Experiment(experiment).runs()] == [3, 3]


def test_script_started_twice_in_an_interactive_step_gets_two_sets_of_runs(
    experiment: Path, children: Children
) -> None:
    """The step's variables are the same both times; parents and children of each start agree even so."""
    environ = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    starts = [children.start(LIGHTNING, experiment, environ=environ).reports() for _ in range(2)]

    for reports in starts:
        assert len({report["first"] for report in reports}) == len({report["second"] for report in reports}) == 1
    assert len({report[name] for reports in starts for report in reports for name in ("first", "second")}) == 4
