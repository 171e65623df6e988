"""How a run was started: command line, commit, versions, user."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from platform import python_version
from typing import Final

from immutable_logs.redaction import redact_arguments

_GIT_TIMEOUT: Final = 5.0
_PACKAGES: Final = ("nemo", "lightning", "pytorch_lightning", "torch", "omegaconf", "hydra")


@dataclass(frozen=True, slots=True)
class Provenance:
    """How this process was started, secrets redacted.

    Attributes:
        arguments: The command line.
        working_directory: Where it was started.
        user: The login name; the number where there is none.
        git_commit: The commit of the working directory, if it is a git checkout.
        versions: Version numbers by package name, of what is loaded.
    """

    arguments: list[str]
    working_directory: str
    user: str
    git_commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)


def collect_provenance(git_commit: str | None = None) -> Provenance:
    """Return how this process was started.

    Args:
        git_commit: The commit, where the caller knows it already.
    """
    return Provenance(
        arguments=redact_arguments(sys.orig_argv),
        working_directory=_working_directory(),
        user=_user(),
        git_commit=git_commit or find_git_commit(),
        versions=_versions(),
    )


def find_git_commit() -> str | None:
    """Return the commit checked out in the working directory, or None."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def _versions() -> dict[str, str]:
    """Return the versions of loaded packages; asking the loaded module costs no search of the disk."""
    versions = {"python": python_version(), "immutable-logs": metadata.version("immutable-logs")}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "(removed)"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
