"""`immutable-logs path`: where a run is, for scripts."""

from __future__ import annotations

import os
import sys

from immutable_logs.catalog import Experiment
from immutable_logs.cli.options import HERE, ExperimentOption, JsonOption, ReferenceArgument
from immutable_logs.cli.terminal import print_json
from immutable_logs.layout import LATEST
from immutable_logs.records import FORMAT


def print_path(
    reference: ReferenceArgument = LATEST, experiment: ExperimentOption = HERE, as_json: JsonOption = False
) -> None:
    """Print the absolute path of a run directory, and nothing else.

    It is the run's own path, not that of the link `latest`: what a script does with it stays with that run, also
    when the next one starts.

    \b
    Examples:
      immutable-logs path                       the latest run of the experiment in the current directory
      immutable-logs path latest~1 -e exp/asr   the run before it, of another experiment
      tail -F "$(immutable-logs path)"/lightning_logs.txt
    """
    run = Experiment(experiment).find(reference)
    if as_json:
        print_json({"format": FORMAT, "run": run.id, "path": str(run.path)})
        return
    # The bytes of the name, whatever they are: a script opens what is printed here.
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(run.path) + b"\n")
    sys.stdout.buffer.flush()
