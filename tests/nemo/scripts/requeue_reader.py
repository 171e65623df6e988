"""Ask Lightning again and again which requeue checkpoint a directory has, and read that one.

    python -m tests.nemo.scripts.requeue_reader DIRECTORY

Prints ``ready``, reads until its standard input ends, and prints one JSON object with ``passes``, ``reads`` and
``failures``: a checkpoint that is not there when it is opened, or none where there was one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lightning.pytorch as pl

from tests.watch.reader import read_until_told


def main() -> None:
    """Read until standard input ends, and report."""
    trainer = pl.Trainer(default_root_dir=sys.argv[1], accelerator="cpu", logger=False, enable_checkpointing=False)
    failures: list[dict[str, str]] = []
    known: str | None = None
    reads = 0

    def look() -> None:
        nonlocal known, reads
        try:
            found = trainer._checkpoint_connector._hpc_resume_path
            if found is not None:
                Path(found).read_bytes()
                reads += 1
            elif known is not None:
                failures.append({"path": known, "problem": "forgotten"})
            known = found
        except OSError as error:
            failures.append({"path": known or "", "problem": repr(error)})

    passes = read_until_told(look)
    json.dump({"passes": passes, "reads": reads, "failures": failures}, sys.stdout)


if __name__ == "__main__":
    main()
