"""What becomes of the ranks of a launch, as a test tells it: one is killed once, and the others notice, or do not.

``STORY`` is ``<rank> <moment> <others' moment> <what they do>``: the rank is killed when it has got to its moment and
all others have got to theirs. A moment is ``start`` (nothing is imported yet) or ``joined`` (it has its run). The
others then

- ``go`` on at once,
- ``fit``: the same, and the rank gives them some seconds to get where they wait for it,
- ``wait`` until they are ended,
- ``stay`` until the rank that died has joined again, and go on,
- ``die`` of SIGKILL too.

Whoever starts after the death goes on. Signs are files in the working directory.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path.cwd()
DEATH = HERE / "sign-died"
RETURN = HERE / "sign-joined-again"
STORY = os.environ.get("STORY", "").split()
HANG_GUARD = 80.0
SECONDS_TO_FIT = 4.0

is_second_attempt = DEATH.exists()
while is_second_attempt and int(time.time()) <= int(DEATH.stat().st_mtime):
    time.sleep(0.02)  # the ids of two runs of one second are in no order


def reach(moment: str) -> None:
    """Do what the story has for this rank at this moment."""
    if not STORY:
        return
    dying_rank, last_moment, others_moment, others_act = STORY
    rank = os.environ["RANK"]
    if is_second_attempt:
        if rank == dying_rank and moment == "joined":
            RETURN.touch()
    elif rank == dying_rank:
        if moment == last_moment:
            others = int(os.environ["WORLD_SIZE"]) - 1
            _wait_until(lambda: len(list(HERE.glob("sign-reached-*"))) == others)
            time.sleep(SECONDS_TO_FIT if others_act == "fit" else 0.0)
            DEATH.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    elif moment == others_moment:
        (HERE / f"sign-reached-{rank}").touch()
        if others_act == "wait":
            _wait_until(lambda: False)
        elif others_act == "stay":
            _wait_until(RETURN.exists)
        elif others_act == "die":
            _wait_until(DEATH.exists)
            os.kill(os.getpid(), signal.SIGKILL)


def _wait_until(has_come: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_GUARD
    while not has_come():
        if time.monotonic() > deadline:
            sys.exit("HANG: what this rank waits for does not come")
        time.sleep(0.02)
