from __future__ import annotations

import os
import random
import time

import pytest

from immutable_logs.errors import InvalidRunIdError
from immutable_logs.run_id import RANDOM_BYTES, format_run_id, is_cut_run_id, is_run_id, parse_run_time

EXAMPLE = "2026-12-01_02-28-15Z_k3v9q"


def test_run_id_is_utc_time_to_the_second_and_five_random_characters() -> None:
    """A run id reads as the time of the launch in UTC, with a random part of fixed length."""
    run_id = format_run_id(1796092095.9, bytes(RANDOM_BYTES))

    assert run_id == "2026-12-01_02-28-15Z_00000"


def test_time_zone_of_the_machine_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines in different time zones name the same second alike."""
    names = set()
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        names.add(format_run_id(1796092095.0, bytes(RANDOM_BYTES)))
        assert parse_run_time(EXAMPLE) == 1796092095.0
    monkeypatch.undo()
    time.tzset()

    assert len(names) == 1


def test_every_run_id_is_recognised_and_gives_its_time_back() -> None:
    """What is formatted can be parsed, whatever the time and the random bytes."""
    choice = random.Random(7)
    for _ in range(500):
        seconds = choice.randrange(0, 4_000_000_000)
        run_id = format_run_id(seconds, os.urandom(RANDOM_BYTES))
        assert is_run_id(run_id)
        assert parse_run_time(run_id) == seconds


def test_random_part_uses_every_character_evenly() -> None:
    """No character of the random part is much likelier than another."""
    counts = dict.fromkeys("0123456789abcdefghijklmnopqrstuvwxyz", 0)
    choice = random.Random(7)
    for _ in range(7200):
        for character in format_run_id(0, choice.randbytes(RANDOM_BYTES))[-5:]:
            counts[character] += 1

    assert min(counts.values()) > 800
    assert max(counts.values()) < 1200


def test_largest_random_number_stays_in_the_form() -> None:
    """The remainder is taken, so that the largest number of random bytes makes a run id too."""
    assert is_run_id(format_run_id(0, b"\xff" * RANDOM_BYTES))


def test_no_run_id_matches_what_stock_nemo_sweeps_or_counts() -> None:
    """A run directory is never taken for a `run_N` of stock NeMo."""
    assert not EXAMPLE.startswith("run_")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "latest",
        "run_0",
        EXAMPLE[:-1],
        EXAMPLE + "x",
        EXAMPLE + "\n",
        EXAMPLE.upper(),
        EXAMPLE.replace("Z", ""),
        "../" + EXAMPLE,
        EXAMPLE + "/..",
        "\uff12026-12-01_02-28-15Z_k3v9q",
        "2026-12-01_02-28-15Z_k3v9ß",
    ],
)
def test_other_texts_are_no_run_ids(text: str) -> None:
    """Only the exact form counts, so that no claim or link can lead out of `runs/`."""
    assert not is_run_id(text)
    with pytest.raises(InvalidRunIdError) as caught:
        parse_run_time(text)
    assert caught.value.text == text


def test_beginning_of_a_run_id_is_told_from_other_texts() -> None:
    """A write that was cut is finished by nobody; what somebody else wrote there is something else."""
    whole = format_run_id(1796092095.0, bytes(8))
    assert all(is_cut_run_id(whole[:length]) for length in range(len(whole)))
    assert not any(is_cut_run_id(text) for text in (whole, f"{whole}x", "mine\n", "2026-12-01T", "run_0"))


def test_impossible_time_is_no_time() -> None:
    """An id of the right form whose month does not exist is refused when its time is asked for."""
    with pytest.raises(InvalidRunIdError):
        parse_run_time("2026-13-01_02-28-15Z_k3v9q")
