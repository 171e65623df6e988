"""A rank that only joins its run, without NeMo, for tests with many launches.

Takes the command line of the trainings, of which only the experiment counts. What it prints: one `NAME=value` a line.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from one_rank_dies import reach  # type: ignore[import-not-found] # the module beside this one

reach("start")

from immutable_logs import start_run  # noqa: E402 - see above

(directory,) = (each.partition("=")[2] for each in sys.argv[1:] if each.startswith("exp_manager.exp_dir="))
begin = time.monotonic()
run = start_run(Path(directory) / "tiny")
print(f"SECONDS={time.monotonic() - begin:.3f}", flush=True)
print(f"LOG_DIR={run.path}", flush=True)
print(f"JOINED={run.launch.ranks.global_rank} {run.id} {os.getpid()}", flush=True)
reach("joined")
