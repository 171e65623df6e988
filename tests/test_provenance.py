from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from immutable_logs.provenance import collect_provenance, find_git_commit


def test_command_line_is_recorded_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the interpreter and its options, and without secrets."""
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "train.py", "--token", "x", "name=日本"])

    assert collect_provenance("c").arguments == ["python", "-u", "train.py", "--token", "***", "name=日本"]


def test_versions_are_those_of_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that was not imported took no part in the run, and asking for it would search the disk."""
    fake = ModuleType("torch")
    fake.__version__ = "9.9"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.delitem(sys.modules, "nemo", raising=False)
    versions = collect_provenance("c").versions

    assert versions["torch"] == "9.9"
    assert versions["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert versions["immutable-logs"] == version("immutable-logs")
    assert "nemo" not in versions


def test_commit_is_that_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout has one; a plain directory and a repository without a commit have none."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert find_git_commit() is None
    subprocess.run(["git", "init", "-q"], check=True)
    assert find_git_commit() is None
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    commit = find_git_commit()

    assert commit is not None
    assert len(commit) == 40
    assert collect_provenance().git_commit == commit
    assert collect_provenance("given").git_commit == "given"


def test_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Containers often have no git."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_git_commit() is None


def test_hanging_git_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A repository on a dead mount does not hold up the training."""
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("immutable_logs.provenance._GIT_TIMEOUT", 0.2)

    assert find_git_commit() is None


def test_working_directory_that_was_removed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job can outlive the directory that it was started in."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    found = collect_provenance("c")
    os.chdir(tmp_path)

    assert found.working_directory == "(removed)"


def test_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run under numbers that no password file knows."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)

    assert collect_provenance("c").user == str(os.getuid())
