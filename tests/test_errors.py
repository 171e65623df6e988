from __future__ import annotations

import errno
import pickle
from pathlib import Path

import pytest

from immutable_logs import errors

EXAMPLES: list[errors.ImmutableLogsError] = [
    errors.InvalidRunIdError("run_0"),
    errors.UnknownRunError("2026", Path("/exp"), "'2026' means several runs", ["a", "b"]),
    errors.NotAnExperimentError(Path("/exp"), "there is no such directory"),
    errors.LaunchDetectionError("MPI", "no id"),
    errors.AgreementError("the disk is full", rank=3, key="slurm 1.2", path=Path("/exp/runs")),
    errors.NotVisibleError(Path("/exp/runs/x"), 75.0),
    errors.PeerError("the other call has ended before its time"),
    errors.RecordError("/exp/run.json", "torn"),
    errors.ConfigurationError("log_layout", "movin", "expected moving or immutable"),
    errors.ManifestBusyError(Path("/exp/runs/manifest.jsonl"), 10.0),
    errors.RemovalError(Path("/exp/runs/x"), "it is not empty"),
]


def test_every_exception_of_the_module_is_an_example_here() -> None:
    """A new exception has to pass these tests too."""
    classes = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.ImmutableLogsError)
    }

    assert {type(example) for example in EXAMPLES} == classes - {errors.ImmutableLogsError}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_message_and_attributes_survive_pickling(error: errors.ImmutableLogsError) -> None:
    """A spawned worker can hand its error to the parent."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_is_also_a_built_in_one(error: errors.ImmutableLogsError) -> None:
    """Callers who do not know this package catch what they expect, and one root catches all of ours."""
    built_in = [
        base for base in type(error).__mro__ if base.__module__ == "builtins" and base not in (Exception, object)
    ]

    assert set(built_in) - {BaseException}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_no_full_stop_follows_a_path_or_id(error: errors.ImmutableLogsError) -> None:
    """People double-click a path to copy it."""
    for line in str(error).splitlines():
        assert not line.endswith(".")


def test_ambiguous_reference_names_the_first_candidates() -> None:
    """The message shows what the reference could mean and how references are written."""
    error = errors.UnknownRunError("2026", Path("/exp"), "'2026' means several runs", (f"run{n}" for n in range(9)))

    assert error.candidates == tuple(f"run{n}" for n in range(9))
    assert "run0, run1, run2, run3, run4, in /exp" in str(error)
    assert "latest~N" in str(error)


def test_long_text_is_cut_in_the_message_but_kept_in_the_attribute() -> None:
    """A file of garbage taken for a run id does not fill the screen."""
    error = errors.InvalidRunIdError("x" * 10_000)

    assert len(str(error)) < 300
    assert len(error.text) == 10_000


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/a/file"), "No space left on device: /a/file"),
        (OSError(errno.ENOENT, "No such file or directory", b"/caf\xe9"), "No such file or directory: /caf\udce9"),
        (OSError(errno.ESTALE, "Stale file handle", 3), "Stale file handle"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("in words alone"), "in words alone"),
    ],
)
def test_an_error_of_the_system_is_told_with_its_name(error: OSError, text: str) -> None:
    """Whatever stands for the name: bytes, or the number of an open directory, which nobody can look up."""
    assert errors.describe_os_error(error) == text
