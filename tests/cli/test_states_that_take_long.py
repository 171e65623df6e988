"""Every command that only looks, on an experiment of ten thousand runs and on one that is mounted read-only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs.run import Run
from immutable_logs.run_id import format_run_id

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
FinishRuns = Callable[[Path, int], list[Run]]

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

COMMANDS = {
    "ls": ["ls", "--json"],
    "ls --graph": ["ls", "--graph"],
    "ls --metrics": ["ls", "--metrics", "--json", "--since", "3d"],
    "show": ["show", "--json"],
    "path": ["path"],
    "logs": ["logs"],
    "logs --errors": ["logs", "--errors"],
    "diff": ["diff"],
    "prune": ["prune", "--keep-last", "10", "--json"],
    "tensorboard": ["tensorboard"],
    "verify": ["verify"],
    "report": ["report", "-o", "-"],
}


def multiply(experiment: Path, count: int) -> list[str]:
    """Copy the runs of an experiment under new ids, an hour apart, until there are so many; return them in order."""
    runs = experiment / "runs"
    templates = sorted(path for path in runs.iterdir() if path.is_dir() and not path.name.startswith("."))
    manifest = runs / "manifest.jsonl"
    lines = {
        path.name: b"".join(line for line in manifest.read_bytes().splitlines(True) if path.name.encode() in line)
        for path in templates
    }
    begin = time.time() - (count + 24) * 3600
    ids = [format_run_id(begin + 3600 * number, number.to_bytes(4, "big")) for number in range(count)]
    with manifest.open("wb") as index:
        for number, run_id in enumerate(ids):
            template = templates[number % len(templates)]
            shutil.copytree(template, runs / run_id, symlinks=True)
            for name in ("run.json", "finished.json"):
                path = runs / run_id / name
                path.write_bytes(path.read_bytes().replace(template.name.encode(), run_id.encode()))
            index.write(lines[template.name].replace(template.name.encode(), run_id.encode()))
    for directory in (*templates, runs / ".launches", runs / ".latest", experiment / "tensorboard"):
        shutil.rmtree(directory, ignore_errors=True)
    (experiment / "latest").unlink()
    (experiment / "latest").symlink_to(f"runs/{ids[-1]}")
    return ids


def test_ten_thousand_runs(run_program: RunProgram, start: Callable[[Path], Run], experiment: Path) -> None:
    """Each command answers, about all of them where it is asked so, and without a word too many."""
    for _ in range(3):
        start(experiment).finish()
    ids = multiply(experiment, 10_000)

    said: dict[str, Any] = {}
    for name, arguments in COMMANDS.items():
        completed = run_program(*arguments, cwd=experiment)
        assert completed.returncode == 0, (name, completed.stderr)
        said[name] = json.loads(completed.stdout) if "--json" in arguments else completed.stdout

    assert [run["run"] for run in said["ls"]["runs"]] == ids
    assert said["show"]["run"] == ids[-1]
    assert said["path"] == f"{experiment / 'runs' / ids[-1]}\n"
    assert [run["run"] for run in said["prune"]["runs"]] == ids
    assert {run["action"] for run in said["prune"]["runs"]} == {"keep"}  # they have ended just now
    assert ids[-1] in said["report"]
    assert len(said["report"]) < 20_000_000


def test_read_only_mount(
    run_program: RunProgram,
    program: str,
    plain_environ: dict[str, str],
    finish_runs: FinishRuns,
    experiment: Path,
    tmp_path: Path,
) -> None:
    """What only looks works there; what would write says so, and ends with 3."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    finish_runs(experiment, 2)
    mounted = tmp_path / "mounted"
    mounted.mkdir()

    def run_there(*arguments: str) -> subprocess.CompletedProcess[str]:
        # In a mount namespace of its own, which ends with the command.
        script = 'mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && cd "$2" && shift 2 && exec "$@"'
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "sh", str(experiment), str(mounted), program, *arguments],
            env=plain_environ,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=60,
        )

    for name, arguments in COMMANDS.items():
        there, here = run_there(*arguments), run_program(*arguments, cwd=experiment)
        assert (there.returncode, there.stderr.count("Traceback")) == (0, 0), (name, there.stderr)
        if name in {"logs", "path", "tensorboard"}:
            assert there.stdout.replace(str(mounted), str(experiment)) == here.stdout, name

    for arguments in (["report"], ["prune", "--keep-last", "0", "--yes"], ["verify", "--repair"]):
        completed = run_there(*arguments)
        assert completed.returncode in {0, 3}, (arguments, completed.stderr)
        assert "Traceback" not in completed.stderr
        if completed.returncode:
            assert "Read-only file system" in completed.stderr, arguments
