"""Calls to the file system: few, and no more of them with more ranks or more earlier runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from immutable_logs import start_run
from immutable_logs.agreement import join_run
from immutable_logs.launch import Launch, Ranks
from immutable_logs.layout import ExperimentLayout
from immutable_logs.process import Process
from immutable_logs.run_id import format_run_id

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Children


def has_working_strace() -> bool:
    """Tell whether there is strace and it may trace; some containers forbid it."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0


needs_strace = pytest.mark.skipif(not has_working_strace(), reason="needs strace and the right to trace")

ATTACHED = """
    from immutable_logs import start_run
    os.environ["PATH"] = ""
    gate()
    run = start_run(sys.argv[1])
    run.finish()
"""

AUDITED = """
    import immutable_logs
    seen = []
    def hook(event, arguments):
        if event == "open" or event.startswith(("os.", "shutil.", "glob.")):
            path = arguments[1] if event == "os.symlink" else arguments[0] if arguments else None
            if str(path).startswith(sys.argv[1]):
                seen.append(event)
    sys.addaudithook(hook)
    run = immutable_logs.start_run(sys.argv[1])
    report(events=list(seen))
"""


def prepare(experiment: Path, *, earlier_runs: int, ranks: int, key: str = "id launch", unique: bool = True) -> None:
    """Make an experiment with earlier runs, and let the first ranks of a launch join."""
    for _ in range(earlier_runs):
        start_run(experiment).finish()
    for rank in range(ranks):
        join_run(
            ExperimentLayout.of(experiment),
            Launch(key=f"{key} call=1", unique=unique, ranks=Ranks(rank), source="test"),
            process=Process("elsewhere", rank),
            process_age=lambda: 0.0,
            new_run_id=lambda: format_run_id(1796092095.0, bytes(8)),
            now=0.0,
            nonce=str(rank),
        )


def traced_calls(children: Children, experiment: Path, trace: Path, environ: dict[str, str]) -> list[str]:
    """Return the system calls on paths of the experiment that one launch makes."""
    child = children.start(ATTACHED, experiment, environ=environ, is_gated=True)
    strace = subprocess.Popen(
        ["strace", "-f", "-e", "trace=%file,fsync", "-o", str(trace), "-p", str(child.popen.pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert strace.stderr is not None
        assert "attached" in strace.stderr.readline()
        children.open_gate()
        child.reports()
        strace.communicate(timeout=60)
    finally:
        strace.kill()
        strace.wait()
    lines = [line.partition(" ")[2].strip() for line in trace.read_text().splitlines()]
    return [re.split(r"\(", line, maxsplit=1)[0] for line in lines if str(experiment) in line]


RANK = {"IMMUTABLE_LOGS_LAUNCH_ID": "launch"}
SHARED_KEY = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


@needs_strace
@pytest.mark.parametrize(
    ("environ", "key", "count"),
    [(RANK, "id launch", 2), (SHARED_KEY, "master node1:29500", 6)],
    ids=["a unique key", "a key that launches can share"],
)
def test_rank_that_joins_makes_as_few_calls_among_many_ranks_and_runs(
    children: Children, tmp_path: Path, environ: dict[str, str], key: str, count: int
) -> None:
    """The same few calls, whether it is one of 3 ranks in a new experiment or one of 201 after 60 earlier runs."""
    prepare(tmp_path / "small", earlier_runs=0, ranks=2, key=key, unique=environ is RANK)
    prepare(tmp_path / "large", earlier_runs=60, ranks=200, key=key, unique=environ is RANK)
    small = traced_calls(children, tmp_path / "small", tmp_path / "a", {**environ, "RANK": "2"})
    large = traced_calls(children, tmp_path / "large", tmp_path / "b", {**environ, "RANK": "200"})

    assert small == large
    assert len(small) == count, small


@needs_strace
def test_rank_zero_makes_as_many_calls_after_many_runs(children: Children, tmp_path: Path) -> None:
    """Record, line, link and end cost the same in an old experiment."""
    prepare(tmp_path / "small", earlier_runs=2, ranks=0)
    prepare(tmp_path / "large", earlier_runs=80, ranks=0)
    small = traced_calls(children, tmp_path / "small", tmp_path / "a", {})
    large = traced_calls(children, tmp_path / "large", tmp_path / "b", {})

    assert small == large
    assert len(small) < 60, small


def test_rank_that_joins_makes_as_few_changes_among_many_ranks_and_runs(children: Children, tmp_path: Path) -> None:
    """Seen by Python's own audit events, where there is no strace: one file is created, nothing else."""
    prepare(tmp_path / "small", earlier_runs=0, ranks=2)
    prepare(tmp_path / "large", earlier_runs=60, ranks=200)
    small = children.start(AUDITED, tmp_path / "small", environ={**RANK, "RANK": "2"}).report()
    large = children.start(AUDITED, tmp_path / "large", environ={**RANK, "RANK": "200"}).report()

    assert small["events"] == large["events"] == ["open"]
