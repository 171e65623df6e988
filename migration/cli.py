"""The command line `migrate-nemo-logs`: arguments in, text or JSON out."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from immutable_logs.cli.command_group import FINDING, WRONG_USE, CommandGroup, run_reporting_bugs
from immutable_logs.cli.plain_text import harmless
from immutable_logs.cli.terminal import note, print_json
from immutable_logs.layout import ExperimentLayout
from immutable_logs.records import FORMAT
from migration.apply import Applied, apply_plan
from migration.finalize import Finalization, finalize_migration, plan_finalization
from migration.legacy_search import find_experiments
from migration.plan import ExperimentPlan
from migration.rendering import JsonStream, file_document, print_plan, progress, run_document
from migration.undo import undo_migration
from migration.verify import verify_migration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from migration.legacy_layout import LegacyExperiment

PROGRAM: Final = "migrate-nemo-logs"
_DEFAULT: Final = "plan"
_MAX_DIRECTORIES: Final = 10


class _PlanByDefault(CommandGroup):
    """Takes ``migrate-nemo-logs DIR`` for ``migrate-nemo-logs plan DIR``."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click, which may be a part of Typer
        """Return the names of the commands; those of other packages belong to `immutable-logs`."""
        return [name for name in super().list_commands(ctx) if name in self.commands]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - click, which may be a part of Typer
        """Put the default command before arguments that name none."""
        own = {"-h", "--help", "--install-completion", "--show-completion"}
        if args and args[0] not in own and args[0] not in self.commands:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app: Final = typer.Typer(
    name=PROGRAM,
    cls=_PlanByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PathsArgument = Annotated[
    list[Path], typer.Argument(metavar="PATH...", help="Log directories, or directories above them.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]


def main() -> None:
    """Run the command line: the entry of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A file name that is no text must not end the listing with an error.
            stream.reconfigure(errors="backslashreplace")
    run_reporting_bugs(app, PROGRAM)


@app.callback()
def _describe() -> None:
    """Bring log directories that stock NeMo left behind under the immutable layout.

    Nothing is moved, and as a rule nothing is copied: each old launch becomes a run directory with hard links to its
    files. Old names stay until `finalize`. PATHs are searched for log directories, without following links below them.

    \b
    Examples:
      migrate-nemo-logs nemo_experiments            what would be done, and why; changes nothing
      migrate-nemo-logs apply nemo_experiments      add the new layout; safe while a training runs
      migrate-nemo-logs verify nemo_experiments     is every old file in its run?
      migrate-nemo-logs undo nemo_experiments       remove exactly what was added
      migrate-nemo-logs finalize nemo_experiments   which old names could go; with --yes, remove them

    \b
    Exit codes:
      0  done
      1  a finding: something that a person should look at
      2  wrong use: unknown option, no such directory
      3  could not: a file system that refuses, another migration at work
    """  # noqa: D301 - the escape tells click not to wrap the next lines


@app.command("plan")
def show_plan(
    paths: PathsArgument,
    shows_files: Annotated[bool, typer.Option("--files", help="List every file with its evidence.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say which old file belongs to which run, and why; changes nothing.

    STATE is `to add`, `adopted` (done before), `to complete` (files have appeared since), `pruned`, or `uncertain`: a
    run of its own for files that several launches, or none that is known, could have written.
    """
    problems: list[str] = []
    stream = JsonStream() if as_json else None
    has_findings = False
    found = pending = 0
    for experiment in _find(paths, problems):
        found += 1
        with progress("Reading", experiment.files, is_wanted=not as_json and not shows_files) as advance:
            plan = ExperimentPlan(experiment, on_file=advance)
            if stream is None:
                counts = print_plan(plan, shows_files=shows_files)
                pending += counts["pending"]
                has_findings |= counts["uncertain"] > 0
            else:
                stream.write(
                    {"experiment": str(experiment.path)},
                    (file_document(planned) for planned in plan.files()),
                    lambda plan=plan: _plan_document(plan),  # type: ignore[misc]
                )
                has_findings |= any(run.launch.is_uncertain and run.files for run in plan.runs)
        has_findings |= any(item.is_conflict for item in plan.left_alone)
        problems += plan.problems
    if stream is not None:
        stream.end({"problems": problems})
    elif pending:
        typer.echo(f"{pending} files to add. Next: {PROGRAM} apply " + " ".join(harmless(path) for path in paths))
    elif found:
        typer.echo("Nothing to add: every file that belongs to a run is in it already")
    _end(problems, is_finding=has_findings or bool(problems))


@app.command("apply")
def apply(paths: PathsArgument, as_json: JsonOption = False) -> None:
    """Add run directories with links to the old files; a second call changes nothing.

    Stopped at any point, the next `apply` goes on. Checkpoints stay where they are.
    """
    problems: list[str] = []

    def work(experiment: LegacyExperiment, advance: Callable[[], None]) -> dict[str, Any]:
        applied = apply_plan(experiment, on_file=advance)
        problems.extend(f"moved by a launch meanwhile; apply again: {path}" for path in applied.moved)
        if not as_json:
            typer.echo(f"{harmless(experiment.path)}: {_applied_words(applied)}")
        return {
            "has_changed": applied.has_changed,
            "runs": applied.runs,
            "files": applied.files,
            "symbolic": applied.symbolic,
            "copied": applied.copied,
            "moved": applied.moved,
        }

    _for_each(paths, "Linking", 1, work, problems, as_json=as_json)


@app.command("verify")
def verify(paths: PathsArgument, as_json: JsonOption = False) -> None:
    """Check that every old file is reachable under the new layout; what is not is printed, with exit code 1."""
    problems: list[str] = []

    def work(experiment: LegacyExperiment, advance: Callable[[], None]) -> dict[str, Any]:
        verified = verify_migration(experiment, on_file=advance)
        problems.extend(f"{experiment.path}: {problem}" for problem in verified.problems)
        if not as_json:
            words = f"{verified.files} old files are in their runs"
            if verified.finalized:
                words += f", and {verified.finalized} whose old names were removed"
            if verified.problems:
                words += f"; {len(verified.problems)} problems"
            typer.echo(f"{harmless(experiment.path)}: {words}")
        return {"files": verified.files, "finalized": verified.finalized, "problems": verified.problems}

    _for_each(paths, "Checking", 1, work, problems, as_json=as_json)


@app.command("undo")
def undo(paths: PathsArgument, as_json: JsonOption = False) -> None:
    """Remove exactly what `apply` added.

    Refused after `finalize`. A name that may be the only one left of its file is kept, and named.
    """
    problems: list[str] = []

    def work(experiment: LegacyExperiment, advance: Callable[[], None]) -> dict[str, Any]:
        undone = undo_migration(ExperimentLayout.of(experiment.path), on_file=advance)
        problems.extend(f"{experiment.path}: kept: {line}" for line in undone.kept)
        if not as_json:
            typer.echo(f"{harmless(experiment.path)}: {undone.names} names removed")
            for name in undone.foreign:
                typer.echo(f"  left, since something else is in it: {harmless(name)}")
        return {"removed": undone.names, "kept": undone.kept, "foreign": undone.foreign}

    _for_each(paths, "Removing", 1, work, problems, as_json=as_json)


@app.command("finalize")
def finalize(
    paths: PathsArgument,
    is_meant: Annotated[
        bool, typer.Option("--yes", help="Remove the names; without it they are only counted.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old names whose files are safe in their runs; without --yes, say which.

    Refused while a process of this host has one open, a run is live, a file was written in the last ten minutes, or
    `verify` finds anything. Checkpoints, and files at the top that are not NeMo's, are never touched.
    """
    problems: list[str] = []

    def work(experiment: LegacyExperiment, advance: Callable[[], None]) -> dict[str, Any]:
        do = finalize_migration if is_meant else plan_finalization
        found = do(experiment, now=time.time(), on_file=advance)
        problems.extend(f"{experiment.path}: {reason}" for reason in found.objections)
        is_removed = is_meant and not found.objections
        if not as_json:
            _print_finalization(experiment, found, is_removed=is_removed)
        return {
            "is_removed": is_removed,
            "names": found.names,
            "directories": found.directories,
            "kept": found.kept,
            "objections": found.objections,
            "notes": found.notes,
        }

    _for_each(paths, "Checking", 3 if is_meant else 2, work, problems, as_json=as_json)


def _for_each(
    paths: list[Path],
    words: str,
    passes: int,
    work: Callable[[LegacyExperiment, Callable[[], None]], dict[str, Any]],
    problems: list[str],
    *,
    as_json: bool,
) -> None:
    """Do something with each experiment, print the results and end with the exit code."""
    documents = []
    unreadable: list[str] = []
    for experiment in _find(paths, unreadable):
        with progress(words, passes * experiment.files, is_wanted=not as_json) as advance:
            documents.append({"experiment": str(experiment.path), **work(experiment, advance)})
    if as_json:
        print_json({"format": FORMAT, "experiments": documents, "problems": unreadable + problems})
    _end(unreadable + problems, is_finding=bool(unreadable or problems))


def _find(paths: list[Path], problems: list[str]) -> Iterator[LegacyExperiment]:
    missing = [path for path in paths if not path.is_dir()]
    for path in missing:
        note(f"Error: expected a directory, found {'a file' if path.exists() else 'nothing'}: {path}")
    if missing:
        raise typer.Exit(WRONG_USE)
    is_empty = True
    for experiment in find_experiments(paths, problems):
        is_empty = False
        yield experiment
    if is_empty:
        note("No log directory of NeMo was found: " + " ".join(str(path) for path in paths))


def _end(problems: list[str], *, is_finding: bool) -> None:
    for problem in problems:
        note(problem)
    if is_finding:
        raise typer.Exit(FINDING)


def _plan_document(plan: ExperimentPlan) -> dict[str, Any]:
    return {
        "runs": [run_document(run) for run in plan.runs if run.files],
        "left_alone": [
            {"path": item.path, "reason": item.reason, "is_conflict": item.is_conflict} for item in plan.left_alone
        ],
        "problems": plan.problems,
    }


def _applied_words(applied: Applied) -> str:
    if not applied.has_changed:
        return "nothing to do, everything is in its run already"
    words = f"{applied.files} files added, {applied.runs} new run{'' if applied.runs == 1 else 's'}"
    if applied.symbolic:
        words += f"; {applied.symbolic} by symbolic links, since they cannot be linked hard"
    if applied.copied:
        words += f"; {applied.copied} by copying, since they cannot be linked"
    return words


def _print_finalization(experiment: LegacyExperiment, found: Finalization, *, is_removed: bool) -> None:
    verb = "removed" if is_removed else "would be removed"
    typer.echo(f"{harmless(experiment.path)}: {found.names} old names {verb}; {found.kept} stay")
    directories = ", ".join(found.directories[:_MAX_DIRECTORIES])
    if len(found.directories) > _MAX_DIRECTORIES:
        directories += f" and {len(found.directories) - _MAX_DIRECTORIES} more"
    if directories:
        typer.echo(f"  directories{'' if is_removed else ', if empty then'}: {harmless(directories)}")
    for line in found.notes:
        typer.echo(f"  {harmless(line)}")
    if found.objections:
        typer.echo("  nothing is removed; the reasons are on standard error")
    elif not is_removed and found.names:
        typer.echo("  run again with --yes to remove them")
