from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from migration import evidence
from migration.evidence import FileEvidence, read_evidence
from migration.legacy_layout import Place, Source

if TYPE_CHECKING:
    from tests.migration_tool.conftest import OldTree

TOP = Source("", Place.TOP, 0.0)
RANK_LOG = "nemo_log_globalrank-0_localrank-0.txt"


def read(tree: OldTree, name: str) -> FileEvidence:
    """Return what a file at the top tells."""
    return read_evidence(tree.path, TOP, name)


@pytest.mark.parametrize("zone", [0.0, 1.0, -7.0, 5.5, -3.5, 14.0])
def test_the_last_line_and_the_last_write_tell_the_zone(old_tree: OldTree, start: float, zone: float) -> None:
    """A stamp plus the zone is Unix time."""
    old_tree.zone = zone
    old_tree.write(RANK_LOG, old_tree.log([start, start + 7]), start + 7.4)

    found = read(old_tree, RANK_LOG)

    assert found.zone == -zone * 3600
    assert found.first is not None
    assert found.first + found.zone == start
    assert found.last == found.first + 7


@pytest.mark.parametrize("late", [60.0, 1000.0, 90_000.0, 400 * 24 * 3600.0])
def test_a_lost_time_of_the_last_write_tells_no_zone(old_tree: OldTree, start: float, late: float) -> None:
    """A copy without times was written at no quarter of an hour from the last line, or years later."""
    old_tree.write(RANK_LOG, old_tree.log([start, start + 7]), start + 7 + late)

    assert read(old_tree, RANK_LOG).zone is None


def test_headings_are_found_wherever_they_are(old_tree: OldTree, start: float) -> None:
    """Also beyond a megabyte, across the borders of what is read at once, and after lines without a stamp."""
    long_text = "no stamp here\n" * 100_000
    text = old_tree.log([start]) + long_text + old_tree.log([start + 50, start + 60]) + "Traceback\n  x" * 10
    old_tree.write(RANK_LOG, text, start + 60)

    found = read(old_tree, RANK_LOG)

    assert found.headers == (start, start + 50)
    assert (found.first, found.last) == (start, start + 60)


@pytest.mark.parametrize("shift", range(-40, 41, 8))
def test_a_heading_on_the_border_of_a_block_is_found_once(old_tree: OldTree, start: float, shift: int) -> None:
    """Logs are read a megabyte at a time."""
    head = old_tree.log([start], has_header=False)
    filler = "x" * (evidence._BLOCK - len(head) - 1 + shift) + "\n"
    old_tree.write(RANK_LOG, head + filler + old_tree.log([start + 5]), start + 5)

    found = read(old_tree, RANK_LOG)

    assert (found.first, found.last, found.headers) == (start, start + 5, (start + 5,))


def test_what_was_written_before_a_launch_ends_at_the_longest_pause(old_tree: OldTree, start: float) -> None:
    """NeMo keeps its first messages until it has a file: they come before the heading, and after a pause."""
    earlier = old_tree.log([start - 30], has_header=False) + old_tree.log([start, start + 10, start + 20])
    kept = old_tree.log([start + 50, start + 53], has_header=False)
    old_tree.write(RANK_LOG, earlier + kept + old_tree.log([start + 55, start + 60]), start + 60)

    found = read(old_tree, RANK_LOG)

    assert (found.headers, found.ends) == ((start, start + 55), (start - 30, start + 20))


def test_an_endless_line_needs_no_endless_memory(old_tree: OldTree, start: float) -> None:
    """A log without line ends is gone through, and its first stamp is kept."""
    old_tree.write(RANK_LOG, old_tree.log([start]) + "y" * (3 * evidence._BLOCK), start)

    assert read(old_tree, RANK_LOG).headers == (start,)


@pytest.mark.parametrize("text", ["", "\n", "[NeMo I 2025-99-99 00:00:00 x:1] y\n", "[NeMo I", "\0" * 100])
def test_a_log_without_a_stamp_tells_nothing(old_tree: OldTree, start: float, text: str) -> None:
    """Empty, cut and damaged logs are no error."""
    old_tree.write(RANK_LOG, text, start)

    found = read(old_tree, RANK_LOG)

    assert (found.first, found.last, found.headers, found.zone) == (None, None, (), None)


def test_an_event_file_tells_when_it_was_made_and_by_whom(old_tree: OldTree, start: float) -> None:
    """To the microsecond by its first record; to the second by its name where there is none."""
    path = old_tree.events(start + 0.25, start + 9, pid=77, directory=".")
    empty = old_tree.write(f"events.out.tfevents.{int(start)}.a.b-c.9.1", "", start)

    assert read(old_tree, path.name).born == start + 0.25
    assert read(old_tree, path.name).writer == ("node", 77)
    assert read(old_tree, empty.name).born == start
    assert read(old_tree, empty.name).writer == ("a.b-c", 9)


def test_lightning_tells_the_checkpoint_and_the_end(old_tree: OldTree, start: float) -> None:
    """Which checkpoint was restored, the last step, and whether `fit` came to its end."""
    text = (
        "Restoring states from the checkpoint path at /data/tiny/checkpoints/a=1-last.ckpt\n"
        "Epoch 2, global step 26: 'val_loss' reached 1.0\n`Trainer.fit` stopped: `max_steps=30` reached.\n"
    )
    old_tree.write("lightning_logs.txt", text, start)

    found = read(old_tree, "lightning_logs.txt")

    assert (found.text, found.step, found.has_ended) == ("/data/tiny/checkpoints/a=1-last.ckpt", 30, True)


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_file_that_cannot_be_read_still_tells_its_times(
    old_tree: OldTree, start: float, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Its problem is told, whichever call is refused, and the name and the last write count."""
    old_tree.write(RANK_LOG, "x", start)

    def refuse(path: str | int, *_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        found = read(old_tree, RANK_LOG)

    assert (found.rank, found.mtime) == (0, start)
    assert found.problem == "its content cannot be read (Permission denied)"


def test_what_is_read_is_never_the_target_of_a_link(old_tree: OldTree, start: float) -> None:
    """A link that has taken a log's place tells nothing of what it leads to, and its inode is its own."""
    old_tree.write("elsewhere.txt", old_tree.log([start]), start)
    (old_tree.path / RANK_LOG).symlink_to("elsewhere.txt")

    found = read(old_tree, RANK_LOG)

    assert found.inode == (old_tree.path / RANK_LOG).lstat().st_ino
    assert found.first is None


@pytest.mark.parametrize("rest", ["", "x\n" * 40_000])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (RANK_LOG, "exp_manager:1] Experiments will be logged at /data/tiny"),
        (
            "nemo_error_log.txt",
            "no checkpoint folder at checkpoint_dir :/data/tiny/checkpoints. Training from scratch.",
        ),
        ("lightning_logs.txt", "'val_loss' reached 2.4, saving model to '/data/tiny/checkpoints/a=1.ckpt' as top 2"),
    ],
)
def test_logs_name_the_log_directory(old_tree: OldTree, start: float, name: str, words: str, rest: str) -> None:
    """The heading does, and messages about checkpoints do where there is no log of a rank."""
    old_tree.write(name, f"[NeMo I {old_tree.stamp(start)} {words}\n{rest}", start)

    assert read(old_tree, name).log_directory == "/data/tiny"
