"""The page on exit codes says what the programs do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from immutable_logs.cli import command_group

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).parents[2] / "docs" / "reference"
PAGE = DOCS / "exit-codes.md"

CODES = re.compile(r"^\| ([0-9]+) \| ([^|]+) \|", re.MULTILINE)
CALL = re.compile(r"^\| `((?:immutable-logs|migrate-nemo-logs) [^`]+)` \| ([0-9]+) \|", re.MULTILINE)


def test_the_page_has_the_codes_of_the_program() -> None:
    """Every code that the one place knows is on the page, and the reference of the commands says the same."""
    codes = CODES.findall(PAGE.read_text(encoding="utf-8"))
    known = {getattr(command_group, name) for name in ("FINDING", "WRONG_USE", "COULD_NOT")}
    known |= {command_group._INTERRUPTED, command_group._READER_GONE}

    assert [int(code) for code, _ in codes] == [0, *sorted(known)]
    assert codes == CODES.findall((DOCS / "cli.md").read_text(encoding="utf-8"))


def test_every_call_of_the_page_ends_with_its_code(
    tmp_path: Path, finish_runs: Callable[..., list[Any]], plain_environ: dict[str, str]
) -> None:
    """In the order of the page, by a shell, in directories that are as the page says."""
    for name in ("my_exp", "no_latest", "no_manifest"):
        finish_runs(tmp_path / name, 2)
    (tmp_path / "no_latest" / "latest").unlink()
    manifest = tmp_path / "no_manifest" / "runs" / "manifest.jsonl"
    manifest.unlink()
    manifest.mkdir()
    (tmp_path / "empty").mkdir()
    for name in ("old", "in_the_way"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cmd-args.log").write_text("train.py\n")
        (tmp_path / name / "lightning_logs.txt").write_text("GPU available: False\n")
    (tmp_path / "in_the_way" / "runs").touch()
    environ = plain_environ | {"PATH": f"{Path(sys.executable).parent}:{plain_environ['PATH']}"}

    calls = CALL.findall(PAGE.read_text(encoding="utf-8"))
    assert len(calls) > 15
    for call, code in calls:
        done = subprocess.run(
            ["bash", "-c", call], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == int(code), (call, done.stderr)
        assert "Traceback" not in done.stderr, call
