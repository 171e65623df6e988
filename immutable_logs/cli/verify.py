"""`immutable-logs verify`: whether an experiment is on disk as its launches leave it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from immutable_logs.catalog import Experiment
from immutable_logs.cli.command_group import FINDING
from immutable_logs.cli.options import HERE, ExperimentArgument, JsonOption
from immutable_logs.cli.plain_text import harmless
from immutable_logs.cli.terminal import note, print_json
from immutable_logs.records import FORMAT
from immutable_logs.repair import repair_experiment
from immutable_logs.verification import verify_experiment

if TYPE_CHECKING:
    from immutable_logs.verification import Verification

RepairOption = Annotated[
    bool, typer.Option("--repair", help="Add lost lines of the manifest and mend `latest`; nothing else.")
]


def verify(experiment: ExperimentArgument = HERE, repair: RepairOption = False, as_json: JsonOption = False) -> None:
    """Check an experiment on disk: what is broken, what was lost, what a kill has left.

    Looked at are the manifest, the records and ranks of each run, `latest`, the claims by which the ranks of a launch
    find each other, and the links in `tensorboard/`. A problem is a broken promise and gives exit code 1. A leftover
    of a kill does no harm and gives 0. A rank that landed in the run of an earlier launch with the same key is named.

    It only reads. With --repair it adds lost lines of the manifest and makes or switches `latest`, also while a
    training goes on; then it looks again. It removes nothing.

    \b
    Examples:
      immutable-logs verify                       the experiment in the current directory
      immutable-logs verify exp/asr --repair
      immutable-logs verify --json | jq -r '.findings[] | select(.severity == "problem") | .message'
    """
    opened = Experiment(experiment)
    verification = verify_experiment(opened)
    done: list[str] = []
    if repair and verification.repairable:
        done = repair_experiment(opened, verification)
        verification = verify_experiment(opened)
    if as_json:
        print_json(_document(opened, verification, done))
    else:
        _print_findings(opened, verification, done)
    if verification.problems:
        raise typer.Exit(FINDING)


def _document(experiment: Experiment, verification: Verification, done: list[str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "experiment": str(experiment.path),
        "runs": verification.runs,
        "repaired": done,
        "findings": [asdict(finding) for finding in verification.findings],
    }


def _print_findings(experiment: Experiment, verification: Verification, done: list[str]) -> None:
    for each in done:
        typer.echo(f"repaired: {harmless(each)}")
    for finding in verification.findings:
        message, _, hint = finding.message.partition(" HINT: ")
        typer.echo(f"{finding.severity} {finding.kind}: {harmless(finding.path)}")
        typer.echo(f"  {harmless(message)}")
        if hint:
            typer.echo(f"  HINT: {harmless(hint)}")
    problems, leftovers = len(verification.problems), len(verification.findings) - len(verification.problems)
    looked_at = f"{_count(verification.runs, 'run')} in {experiment.path}"
    found = (
        f"{_count(problems, 'problem')}, {_count(leftovers, 'leftover')}" if problems + leftovers else "Nothing found"
    )
    note(f"{found}: {looked_at}")
    if verification.repairable:
        note(f"--repair mends {len(verification.repairable)} of them")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
