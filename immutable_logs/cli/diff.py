"""`immutable-logs diff`: what differs between two runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from immutable_logs.catalog import Experiment
from immutable_logs.cli.columns import Column, lay_out, paint
from immutable_logs.cli.options import HERE, ExperimentOption, JsonOption, complete_reference
from immutable_logs.cli.plain_text import NOTHING, harmless
from immutable_logs.cli.terminal import has_colours, note, print_json, terminal_width
from immutable_logs.comparison import ADDED, CHANGED, REMOVED, Difference, show_values
from immutable_logs.layout import LATEST
from immutable_logs.records import FORMAT
from immutable_logs.run_comparison import RunComparison, compare_runs

_MARKS: Final = {ADDED: "+", REMOVED: "-", CHANGED: "~"}
_MARK_STYLES: Final = {"+": "green", "-": "red", "~": "yellow"}
_MAX_SHOWN: Final = 60
_PREVIOUS: Final = f"{LATEST}~1"


def _reference(words: str) -> Any:
    return typer.Argument(metavar="REF", help=words, autocompletion=complete_reference, show_default=True)


def compare(
    before: Annotated[str, _reference("The first run: an id, the unique beginning of one, `latest~N`.")] = _PREVIOUS,
    after: Annotated[str, _reference("The second run.")] = LATEST,
    experiment: ExperimentOption = HERE,
    full: Annotated[
        bool, typer.Option("--full", help="Show values whole, and how the stored uncommitted changes differ.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two runs; by default what has changed since the run before the latest.

    Compared are what each started from, the configuration, the command line, the git commit and the uncommitted
    changes that NeMo stored, versions, hparams.yaml where both have one, and host, world size, launcher, user and
    working directory. What is the same is not shown. What is not known of one of the runs, as of an adopted one, is
    no difference, and is said on stderr. Secrets are taken out.

    A ~ marks what has changed, a + what only the second run has, a - what only the first has. The exit code is 0
    whether the runs differ or not.

    \b
    Examples:
      immutable-logs diff                              the latest run and the one before it
      immutable-logs diff 2026-12-01_02 latest         the run that worked, and the latest
      immutable-logs diff latest~3 --full -e exp/asr
      immutable-logs diff --json | jq -r '.differences[] | select(.section == "configuration").name'
    """
    opened = Experiment(experiment)
    first, second = opened.find(before), opened.find(after)
    comparison = compare_runs(opened, first, second, with_stored_diff=full)
    if as_json:
        print_json(_document(opened, comparison, is_full=full))
        return
    if comparison.differences:
        typer.echo("\n".join(_table(comparison, is_full=full)), color=True)
    else:
        note("No difference is known")
    for line in comparison.stored_diff or ():
        text = harmless(line.expandtabs())
        style = {"+": "green", "-": "red", "@": "bold"}.get(text[:1], "")
        typer.echo(paint(text, style) if has_colours() else text, color=True)
    for line in _unknown(comparison):
        note(line)


def _document(experiment: Experiment, comparison: RunComparison, *, is_full: bool) -> dict[str, Any]:
    document = {
        "format": FORMAT,
        "experiment": str(experiment.path),
        "before": comparison.before.id,
        "after": comparison.after.id,
        "differences": [asdict(each) for each in comparison.differences],
        "unknown": [asdict(each) for each in comparison.unknown],
    }
    if is_full:
        document["stored_diff"] = comparison.stored_diff
    return document


def _table(comparison: RunComparison, *, is_full: bool) -> list[str]:
    columns = [
        Column("", style=lambda text: _MARK_STYLES.get(text, "")),
        Column("SECTION"),
        Column("NAME"),
        Column(comparison.before.id, can_be_cut=not is_full),
        Column(comparison.after.id, can_be_cut=not is_full),
    ]
    rows = [
        (_MARKS[each.kind], each.section, each.name, *_cells(each, is_full=is_full)) for each in comparison.differences
    ]
    return list(lay_out(columns, rows, width=terminal_width(), has_colours=has_colours()))


def _cells(difference: Difference, *, is_full: bool) -> tuple[str, str]:
    before, after = show_values(difference.before, difference.after)
    if not is_full:
        before, after = _cut(before, after), _cut(after, before)
    return NOTHING if difference.kind == ADDED else before, NOTHING if difference.kind == REMOVED else after


def _cut(text: str, other: str) -> str:
    """Return a text short enough for a table: the part where it begins to differ from another is in it."""
    if len(text) <= _MAX_SHOWN:
        return text
    same = next((index for index, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1]), len(other))
    start = max(0, min(same - _MAX_SHOWN // 3, len(text) - _MAX_SHOWN))
    end = start + _MAX_SHOWN
    return f"{'..' if start else ''}{text[start:end]}{'..' if end < len(text) else ''}"


def _unknown(comparison: RunComparison) -> list[str]:
    runs: dict[tuple[str, str], dict[str, None]] = {}
    for each in comparison.unknown:
        runs.setdefault((each.section, each.reason), {})[each.run] = None
    return [
        f"Not compared: {section}, not known of {' and '.join(f'run {run}' for run in named)}: {reason}"
        for (section, reason), named in runs.items()
    ]
