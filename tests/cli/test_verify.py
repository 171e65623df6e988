from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs.run import Run
from immutable_logs.verification.findings import KINDS

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
FinishRuns = Callable[[Path, int], list[Run]]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
ACTING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
"""Characters that can act on a terminal."""


def lose_line(experiment: Path, number: int) -> None:
    """Remove a line of the manifest."""
    manifest = experiment / "runs" / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))


def snapshot(directory: Path) -> dict[str, bytes | str | None]:
    """Return every name, and what is behind it."""
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


@pytest.mark.parametrize("count", [0, 1, 3])
def test_nothing_found_is_said_on_stderr(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, count: int
) -> None:
    """There is no data, and the exit code is 0."""
    (experiment / "runs").mkdir(parents=True)
    finish_runs(experiment, count)

    completed = run_program("verify", experiment)

    assert (completed.returncode, completed.stdout) == (0, "")
    assert completed.stderr == f"Nothing found: {count} run{'' if count == 1 else 's'} in {experiment}\n"


def test_a_problem_is_told_with_what_to_do(run_program: RunProgram, finish_runs: FinishRuns, experiment: Path) -> None:
    """Severity, kind and path come first, then the message, then the hint; the exit code is 1."""
    (run,) = finish_runs(experiment, 1)
    shutil.rmtree(run.path)
    (experiment / "latest").unlink()

    completed = run_program("verify", cwd=experiment)

    assert completed.returncode == 1
    first, message, hint = completed.stdout.splitlines()
    assert first == f"problem run-missing: runs/{run.id}"
    assert message.startswith("  the manifest names this run; expected its directory, found nothing.")
    assert hint.startswith("  HINT: put it back")
    assert completed.stderr == f"1 problem, 0 leftovers: 1 run in {experiment}\n"


def test_leftovers_alone_are_no_failure(run_program: RunProgram, finish_runs: FinishRuns, experiment: Path) -> None:
    """They are listed, and the exit code is 0."""
    finish_runs(experiment, 1)
    (experiment / "runs" / "notes").touch()

    completed = run_program("verify", experiment)

    assert completed.returncode == 0
    assert completed.stdout.startswith("leftover foreign-entry: runs/notes\n  not a run directory")
    assert completed.stderr == f"0 problems, 1 leftover: 1 run in {experiment}\n"


def test_repair_mends_and_says_what_it_did(run_program: RunProgram, finish_runs: FinishRuns, experiment: Path) -> None:
    """Before, the conclusion says how many can be mended; afterwards nothing is found."""
    runs = finish_runs(experiment, 2)
    before = snapshot(experiment)
    lose_line(experiment, 3)
    (experiment / "latest").unlink()

    found = run_program("verify", experiment)
    repaired = run_program("verify", experiment, "--repair")
    again = run_program("verify", experiment, "--repair")

    assert found.returncode == 1
    assert found.stderr.endswith("\n--repair mends 2 of them\n")
    assert (repaired.returncode, repaired.stderr) == (0, f"Nothing found: 2 runs in {experiment}\n")
    assert repaired.stdout.splitlines() == [
        f"repaired: added the `finished` line of run {runs[1].id}",
        f"repaired: switched `latest` to run {runs[1].id}",
    ]
    assert (again.returncode, again.stdout) == (0, "")
    assert snapshot(experiment) == before


def test_repair_leaves_what_it_cannot_mend(run_program: RunProgram, finish_runs: FinishRuns, experiment: Path) -> None:
    """The exit code is still 1, and nothing was changed."""
    (run,) = finish_runs(experiment, 1)
    (run.path / "finished.json").write_bytes(b"{")
    before = snapshot(experiment)

    completed = run_program("verify", experiment, "--repair")

    assert completed.returncode == 1
    assert completed.stdout.startswith("problem end-record-unreadable: ")
    assert snapshot(experiment) == before


def test_the_json_document_has_the_documented_keys(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
) -> None:
    """In order, with the exit code of the text."""
    (run,) = finish_runs(experiment, 1)
    (experiment / "latest").unlink()
    (run.path / "finished.json").unlink()

    found = run_program("verify", experiment, "--json")
    repaired = run_program("verify", experiment, "--json", "--repair")

    assert (found.returncode, found.stderr) == (1, "")
    document: Any = json.loads(found.stdout)
    assert (document["format"], document["experiment"], document["runs"]) == (1, str(experiment), 1)
    assert [finding["kind"] for finding in document["findings"]] == ["end-record-missing", "latest-missing"]
    assert [finding["is_repairable"] for finding in document["findings"]] == [False, True]
    assert repaired.returncode == 1
    assert json.loads(repaired.stdout)["repaired"] == [f"switched `latest` to run {run.id}"]
    (keys,) = re.findall(
        r"^## `verify`\n.*?^\| key \|.*?\n\|[-|]+\|\n(.*?)^$",
        PAGE.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    documented = re.findall(r"^\| `(\w+)`", keys, re.MULTILINE)
    assert documented == [*document, *document["findings"][0]]


def test_the_page_has_every_kind_of_finding(run_program: RunProgram) -> None:
    """In order, and no other; the help needs none of them."""
    table = re.findall(r"^\| `([\w-]+)` \| (?:problem|leftover|both)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert tuple(table) == KINDS
    assert run_program("verify", "--help").returncode == 0


def test_a_directory_that_is_no_experiment_is_wrong_use(run_program: RunProgram, tmp_path: Path) -> None:
    """As for `ls`: exit code 2, and what makes an experiment."""
    for path in (tmp_path, tmp_path / "gone"):
        completed = run_program("verify", path)

        assert (completed.returncode, completed.stdout) == (2, "")
        assert "HINT: name the directory that holds `runs/`" in completed.stderr


def test_hostile_names_and_texts_are_shown_harmless(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
) -> None:
    """Whatever is on disk, nothing of it acts on a terminal, as text or as JSON."""
    run, other = finish_runs(experiment, 2)
    evil = "\x1b]0;title\x07\x9b31m\u202e\nproblem"
    (experiment / "runs" / evil).touch()
    Path(os.fsdecode(os.fsencode(experiment / "runs") + b"/caf\xe9")).touch()
    launches = sorted((experiment / "runs" / ".launches").iterdir())
    (launches[0] / "7").symlink_to(evil)
    (launches[0] / evil).touch()
    for name, key, owner in (("run.json", "run", run), ("finished.json", "outcome", other)):
        record = owner.path / name
        record.write_text(json.dumps({**json.loads(record.read_bytes()), key: evil}))
    entry = other.path / "ranks" / "0000" / "rank-000000.json"
    entry.write_text(json.dumps({**json.loads(entry.read_bytes()), "host": evil}))

    text = run_program("verify", experiment)
    document = run_program("verify", experiment, "--json")

    assert (text.returncode, document.returncode) == (1, 1)
    for output in (text.stdout, text.stderr, document.stdout):
        assert not ACTING.search(output)
    assert r"\x1b]0;title\x07\x9b31m\u202e\nproblem" in text.stdout
    kinds = [line.split(":")[0] for line in text.stdout.splitlines() if not line.startswith("  ")]
    assert sorted(kinds) == [
        "leftover foreign-entry",
        "leftover foreign-entry",
        "leftover foreign-entry",
        "problem claim-untrusted",
        "problem end-record-differs",
        "problem record-of-another-run",
        "problem run-of-two-launches",
    ]
    assert len(json.loads(document.stdout)["findings"]) == len(kinds)


def can_mount() -> bool:
    """Tell whether this user may make a mount name space and mount in it."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount, as root has it")
def test_a_read_only_mount_is_verified_but_not_repaired(
    program: str, plain_environ: dict[str, str], finish_runs: FinishRuns, experiment: Path
) -> None:
    """Exit code 3 and one message if there was something to mend; without, `--repair` asks for nothing."""
    (run,) = finish_runs(experiment, 1)
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'

    def verify(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "sh", experiment, program, "verify", experiment, *options],
            env=plain_environ,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=60,
        )

    assert verify("--repair").returncode == 0
    (experiment / "latest").unlink()
    before = snapshot(experiment)
    found, refused = verify(), verify("--repair")

    assert (found.returncode, refused.returncode) == (1, 3)
    assert found.stdout.startswith("problem latest-missing: latest\n")
    assert (refused.stdout, refused.stderr) == (
        "",
        f"Error: Read-only file system: {experiment / 'runs' / 'manifest.jsonl'}\n",
    )
    assert snapshot(experiment) == before
    assert run.path.is_dir()
