"""`immutable-logs tensorboard`: the directory to point TensorBoard at, or TensorBoard itself."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand

from immutable_logs.catalog import Experiment
from immutable_logs.cli.options import HERE, ExperimentArgument, JsonOption
from immutable_logs.cli.terminal import note, print_json
from immutable_logs.curves import curve_sources, has_hidden_links
from immutable_logs.errors import ConfigurationError, ImmutableLogsError
from immutable_logs.records import FORMAT

_PROGRAM: Final = "tensorboard"
_SEPARATOR: Final = "--"


class _CommandWithMore(TyperCommand):
    """A command that keeps what stands after `--` for another program, instead of taking it for its own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse what stands before `--`."""
        own, more = args, None
        if _SEPARATOR in args:
            position = args.index(_SEPARATOR)
            own, more = args[:position], args[position + 1 :]
        ctx.meta[_SEPARATOR] = more
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Name what may follow in the usage line too."""
        return [*super().collect_usage_pieces(ctx), f"[{_SEPARATOR} ...]"]


app: Final = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command("tensorboard", cls=_CommandWithMore)
def tensorboard(
    ctx: typer.Context,
    experiment: ExperimentArgument = HERE,
    per_run: Annotated[
        bool, typer.Option("--per-run", help="One curve for each run, with the steps that were trained again.")
    ] = False,
    start: Annotated[bool, typer.Option("--start", help="Start TensorBoard there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the directory to point TensorBoard at, or start TensorBoard there.

    It is `tensorboard/` in the experiment: one curve for each lineage, which is a run and those that resumed it. Where
    a run was resumed from step 20 after it had reached 25, the curve goes on from 20, and the steps up to 25 that were
    trained twice are drawn once. With --per-run it is `runs/`. The experiment itself is the wrong directory: there the
    newest run would be listed once more under `latest`.

    With --start, or with anything after `--`, TensorBoard is started; what stands after `--` is passed on to it.

    \b
    Examples:
      immutable-logs tensorboard                    the directory, for the experiment in the current directory
      immutable-logs tensorboard --start
      immutable-logs tensorboard exp/asr -- --port 6007 --bind_all
      tensorboard --logdir "$(immutable-logs tensorboard exp/asr --per-run)"
    """
    opened = Experiment(experiment)
    directory = opened.layout.runs if per_run else opened.layout.tensorboard
    more: list[str] | None = ctx.meta[_SEPARATOR]
    is_started = start or more is not None
    if as_json:
        if is_started:
            raise ConfigurationError("--json", "--start", "expected --json or a start of TensorBoard, found both")
        print_json(_document(opened, directory, per_run=per_run))
        return
    if not _has_curves(opened, per_run=per_run):
        note(_explain_nothing(opened, per_run=per_run))
    if is_started:
        _become_tensorboard(directory, more or [])
    # The bytes of the name, whatever they are: a script opens what is printed here.
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(directory) + b"\n")
    sys.stdout.buffer.flush()


def _document(experiment: Experiment, directory: Path, *, per_run: bool) -> dict[str, Any]:
    runs = [run.id for run in experiment.runs()]
    return {
        "format": FORMAT,
        "experiment": str(experiment.path),
        "directory": str(directory),
        "curves": [
            {"name": name, "runs": behind} for name, behind in curve_sources(experiment.layout, runs, per_run=per_run)
        ],
    }


def _has_curves(experiment: Experiment, *, per_run: bool) -> bool:
    runs = [run.id for run in experiment.runs()] if per_run else []
    return any(True for _ in curve_sources(experiment.layout, runs, per_run=per_run))


def _explain_nothing(experiment: Experiment, *, per_run: bool) -> str:
    if not per_run and has_hidden_links(experiment.layout):
        return (
            f"This mount does not follow the links in {experiment.layout.tensorboard}. HINT: --per-run, or mount "
            "SSHFS with -o no_contain_symlinks"
        )
    if not per_run and _has_curves(experiment, per_run=True):
        return (
            f"No curve is linked in {experiment.layout.tensorboard}, but runs have event files, written without "
            "exp_manager. --per-run shows them"
        )
    return f"No run has event files yet: {experiment.path}"


def _become_tensorboard(directory: Path, more: list[str]) -> NoReturn:
    """Replace this process by TensorBoard, so that signals and the exit code are its own.

    The program beside this Python comes first. It is not started with ``python -m``: that would take modules from the
    current directory.
    """
    program = shutil.which(_PROGRAM, path=os.path.dirname(sys.executable)) or shutil.which(_PROGRAM)
    if program is None:
        raise ImmutableLogsError(
            f"expected the program `{_PROGRAM}` beside {sys.executable} or on the PATH, found none\n"
            "HINT: pip install tensorboard"
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, [program, "--logdir", os.fspath(directory), *more])  # noqa: S606 - no shell is wanted
