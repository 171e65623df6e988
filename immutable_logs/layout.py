"""Name every path inside an experiment; no other module writes a path literal.

Everything is a directory or a link to one at the top level: stock NeMo, started by a colleague in the same
experiment, sweeps plain files into ``run_N``. The format is specified in ``docs/reference/on-disk-format.md``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from immutable_logs.errors import ConfigurationError

RUNS: Final = "runs"
LATEST: Final = "latest"
CHECKPOINTS: Final = "checkpoints"

RANKS_PER_SHARD: Final = 64
"""Rank entries in one directory: creating thousands of files in one directory at once is slow on GPFS and Lustre."""


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths of one run.

    Attributes:
        path: The run directory.
    """

    path: Path

    @property
    def run_record(self) -> Path:
        """Who started the run, how, from which checkpoint."""
        return self.path / "run.json"

    @property
    def finish_record(self) -> Path:
        """How the run ended."""
        return self.path / "finished.json"

    @property
    def ranks(self) -> Path:
        """The directory below which every joined rank has an entry."""
        return self.path / "ranks"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of a run that shares them with no other."""
        return self.path / CHECKPOINTS

    def rank_entry(self, global_rank: int) -> Path:
        """The file that shows that a rank has joined."""
        return self.ranks / f"{global_rank // RANKS_PER_SHARD:04d}" / f"rank-{global_rank:06d}.json"

    def rank_log(self, global_rank: int, local_rank: int) -> Path:
        """NeMo's log file of one rank, under the name that NeMo gives it."""
        return self.path / f"nemo_log_globalrank-{global_rank}_localrank-{local_rank}.txt"


@dataclass(frozen=True, slots=True)
class ExperimentLayout:
    """The paths of one experiment.

    Attributes:
        path: The experiment directory.
    """

    path: Path

    @classmethod
    def of(cls, path: os.PathLike[str] | str) -> ExperimentLayout:
        """Return the layout below any kind of path, made absolute but with its links left as they are.

        Only links before a ``..`` are followed, since the directory above what a link leads to is another than the
        one that holds the link: ``exp/name/..`` is where the kernel, and stock NeMo, take it to be.

        Raises:
            ConfigurationError: If no path can be so.
        """
        text = os.fsdecode(path)
        if "\0" in text:
            raise ConfigurationError("experiment", text, f"expected a path without a NUL character, found {text!r}")
        before, is_above, below = f"{os.path.join(os.curdir, text)}/".rpartition("/../")
        if is_above:
            text = os.path.join(os.path.realpath(f"{before}/.."), below)
        return cls(Path(os.path.abspath(text)))

    @property
    def runs(self) -> Path:
        """The directory of all runs."""
        return self.path / RUNS

    @property
    def manifest(self) -> Path:
        """The append-only index of all runs."""
        return self.runs / "manifest.jsonl"

    @property
    def latest(self) -> Path:
        """The link to the run that started last."""
        return self.path / LATEST

    @property
    def latest_text(self) -> Path:
        """What stands for `latest` on a mount without symbolic links."""
        return self.runs / "latest.txt"

    @property
    def latest_workshop(self) -> Path:
        """Where the next `latest` is made; from here its text leads to an empty file, so that nothing dangles."""
        return self.runs / ".latest"

    @property
    def tensorboard(self) -> Path:
        """The directory to point TensorBoard at."""
        return self.path / "tensorboard"

    @property
    def requeue(self) -> Path:
        """Lightning's own requeue checkpoints, apart for each Slurm job and step."""
        return self.path / "requeue"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints that resumed runs share."""
        return self.path / CHECKPOINTS

    def run(self, run_id: str) -> RunLayout:
        """The paths of a run."""
        return RunLayout(self.runs / run_id)

    @property
    def launches(self) -> Path:
        """The directory of the claims of all launches."""
        return self.runs / ".launches"

    def launch(self, key_name: str) -> Path:
        """The directory of the claims of a launch key, given as a file name."""
        return self.launches / key_name

    def latest_target(self, run_id: str) -> str:
        """The text of a `latest` link that shows a run; relative, since the tree is mounted elsewhere tomorrow."""
        return f"{RUNS}/{run_id}"

    def latest_stand_in(self, run_id: str) -> Path:
        """The empty file to which the text of a `latest` link leads from the workshop."""
        return self.latest_workshop / self.latest_target(run_id)

    def lineage(self, run_id: str) -> Path:
        """The directory of the event-file links of a lineage, named by its first run."""
        return self.tensorboard / run_id


def claim(launch_directory: Path, generation: int) -> Path:
    """The link that ties a launch and a generation to a run."""
    return launch_directory / str(generation)
