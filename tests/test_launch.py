from __future__ import annotations

import re

import pytest

from immutable_logs.launch import Launch, Ranks, format_key


def launch(key: str, rank: int = 0) -> Launch:
    """Return a launch by its key."""
    return Launch(key=key, unique=True, ranks=Ranks(global_rank=rank), source="test")


@pytest.mark.parametrize(
    "key",
    [
        "slurm cluster.12.0 restart 0",
        "",
        "../../etc/passwd",
        "a/b",
        ".",
        "x" * 5000,
        "日本",
        "caf\udce9",
        "a\nb\0c",
        "-rf",
    ],
)
def test_key_gives_a_safe_file_name(key: str) -> None:
    """Whatever a launcher or a user puts into a key, the claim stays in its directory."""
    name = launch(key).key_name

    assert re.fullmatch(r"[0-9A-Za-z-]+", name)
    assert len(name) <= 100


def test_beginning_of_the_key_stays_readable() -> None:
    """A person who looks into the claims recognises the job."""
    assert launch("slurm alpha.123.0 restart 2").key_name.startswith("slurm-alpha-123-0-restart-2-")


def test_keys_that_differ_only_in_unsafe_or_late_characters_have_names_of_their_own() -> None:
    """No two keys share a directory of claims."""
    keys = ["a b", "a/b", "a-b", "A b", "a b ", "x" * 200 + "1", "x" * 200 + "2", "日", "本"]

    assert len({launch(key).key_name for key in keys}) == len(keys)


def test_later_calls_are_launches_of_their_own() -> None:
    """The second trainer of a process does not get the directory of the first."""
    first = launch("key")

    assert first.numbered(1).key_name != first.numbered(2).key_name
    assert first.numbered(1).key_name != launch("key call=1 call=1").key_name


def test_parts_of_a_key_cannot_be_mixed_up() -> None:
    """A part with a space in it is no two parts."""
    keys = [format_key("a b"), format_key("a", "b"), format_key('"a', 'b"'), format_key("a", ""), format_key("a")]

    assert len(set(keys)) == len(keys)
    assert format_key("slurm", "alpha.1.0") == "slurm alpha.1.0"


def test_only_global_rank_zero_keeps_the_records() -> None:
    """Rank zero of a further node is not it."""
    assert launch("key").is_rank_zero
    assert not launch("key", rank=8).is_rank_zero
