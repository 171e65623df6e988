from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import append_record
from immutable_logs.records import ADOPTED, ManifestRecord, RunRecord, format_time
from immutable_logs.run import Run
from immutable_logs.run_id import format_run_id

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Run]

ACTING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
"""Characters that can act on a terminal."""


@pytest.fixture
def pair(start: Start, experiment: Path) -> tuple[Run, Run]:
    """Two runs that differ in a few things."""
    before = start(
        experiment,
        configuration={"trainer": {"devices": 2, "precision": 16}, "old": True},
        git_commit="c0ffee",
        world_size=2,
    )
    after = start(
        experiment,
        resumed_from=before,
        configuration={"trainer": {"devices": 4, "precision": 16}, "new": [1, 2]},
        git_commit="decade",
        world_size=4,
    )
    return before, after


def document(run_program: RunProgram, experiment: Path, *arguments: str) -> Any:
    """Return the JSON output."""
    completed = run_program("diff", *arguments, "-e", experiment, "--json")
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def told(run_program: RunProgram, experiment: Path, section: str, *arguments: str) -> dict[str, tuple[str, Any, Any]]:
    """Return kind and values of the differences of a section, by name."""
    return {
        each["name"]: (each["kind"], each["before"], each["after"])
        for each in document(run_program, experiment, *arguments)["differences"]
        if each["section"] == section
    }


def test_the_latest_run_is_compared_with_the_one_before(
    run_program: RunProgram, pair: tuple[Run, Run], experiment: Path
) -> None:
    """A table of what differs, aligned, with a mark for what has become of it."""
    before, after = pair

    completed = run_program("diff", cwd=experiment)

    assert completed.returncode == 0
    heading, *lines = completed.stdout.splitlines()
    assert re.split(r"  +", heading.strip()) == ["SECTION", "NAME", before.id, after.id]
    rows = [re.split(r"  +", line) for line in lines]
    assert ["~", "configuration", "trainer.devices", "2", "4"] in rows
    assert ["-", "configuration", "old", "true", "-"] in rows
    assert ["+", "configuration", "new", "-", "[1, 2]"] in rows
    assert ["~", "git", "commit", "c0ffee", "decade"] in rows
    assert ["~", "environment", "world_size", "2", "4"] in rows
    assert ["~", "start", "resumed_from", "null", before.id] in rows
    assert "precision" not in completed.stdout
    assert len({line.index(f"{row[1]} ") for line, row in zip(lines, rows, strict=True)}) == 1


def test_runs_are_named_by_references(run_program: RunProgram, pair: tuple[Run, Run], experiment: Path) -> None:
    """In either order; one alone is compared with the latest."""
    before, after = pair

    assert told(run_program, experiment, "git", after.id, before.id)["commit"] == ("changed", "decade", "c0ffee")
    assert document(run_program, experiment, before.id)["after"] == after.id
    completed = run_program("diff", "nothing", cwd=experiment)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert "no run is called 'nothing'" in completed.stderr


def test_runs_that_do_not_differ_are_said_to_be_the_same(
    run_program: RunProgram, pair: tuple[Run, Run], experiment: Path
) -> None:
    """On stderr; there is no data, and the exit code is the same."""
    completed = run_program("diff", "latest", "latest", cwd=experiment)

    assert (completed.returncode, completed.stdout) == (0, "")
    assert "No difference is known" in completed.stderr


def test_the_command_line_is_compared_word_by_word(
    run_program: RunProgram, pair: tuple[Run, Run], experiment: Path
) -> None:
    """A changed override is one difference."""
    for run, words in zip(pair, (["train.py", "lr=0.1", "--fast"], ["train.py", "lr=0.2"]), strict=True):
        record = json.loads((run.path / "run.json").read_bytes())
        (run.path / "run.json").write_text(json.dumps({**record, "arguments": words}))

    assert told(run_program, experiment, "arguments") == {
        "lr": ("changed", "0.1", "0.2"),
        "--fast": ("removed", "", None),
    }


def test_versions_are_compared(run_program: RunProgram, pair: tuple[Run, Run], experiment: Path) -> None:
    """A package that one of them had not loaded is a difference."""
    for run, versions in zip(pair, ({"torch": "2.12", "nemo": "3.0"}, {"torch": "2.13"}), strict=True):
        record = json.loads((run.path / "run.json").read_bytes())
        (run.path / "run.json").write_text(json.dumps({**record, "versions": versions}))

    assert told(run_program, experiment, "versions") == {
        "torch": ("changed", "2.12", "2.13"),
        "nemo": ("removed", "3.0", None),
    }


def test_hparams_are_compared_where_both_have_some(
    run_program: RunProgram, pair: tuple[Run, Run], experiment: Path
) -> None:
    """If one has none that is said; if neither has, nothing is."""
    before, after = pair
    assert "hparams" not in {each["section"] for each in document(run_program, experiment)["unknown"]}
    (before.path / "hparams.yaml").write_text("model: {lr: 0.1, dropout: 0}\napi_key: abc\n")
    (unknown,) = [each for each in document(run_program, experiment)["unknown"] if each["section"] == "hparams"]
    assert unknown == {"section": "hparams", "run": after.id, "reason": "there is no hparams.yaml"}

    (after.path / "hparams.yaml").write_text("model: {lr: 0.2, dropout: 0}\napi_key: def\n")

    assert told(run_program, experiment, "hparams") == {"model.lr": ("changed", 0.1, 0.2)}


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(
    run_program: RunProgram, pair: tuple[Run, Run], experiment: Path
) -> None:
    """It is said, and the rest is compared."""
    before, _ = pair
    os.mkfifo(before.path / "hparams.yaml")  # the other run has none
    os.mkfifo(before.path / "git-info.log")

    found = document(run_program, experiment)

    reasons = [each["reason"] for each in found["unknown"] if each["section"] == "hparams"]
    assert any(reason.startswith("expected a file of at most") for reason in reasons)
    assert found["differences"]


class TestStoredDiff:
    """The uncommitted changes, as NeMo writes them behind the commit."""

    @pytest.fixture(autouse=True)
    def stored(self, pair: tuple[Run, Run]) -> None:
        """Write what NeMo writes."""
        for run, line in zip(pair, ("lr = 1", "lr = \x1b[31m2"), strict=True):
            (run.path / "git-info.log").write_text(f"commit hash: c0ffee\n--- a/x\n+++ b/x\n+{line}\n+token=abc\n")

    def test_is_told_by_its_length_and_hash(
        self, run_program: RunProgram, pair: tuple[Run, Run], experiment: Path
    ) -> None:
        """The texts themselves are shown only if asked for."""
        kind, before, after = told(run_program, experiment, "git")["uncommitted_changes"]

        assert kind == "changed"
        assert before.startswith("4 lines, sha256 ")
        assert before != after
        assert "lr" not in run_program("diff", cwd=experiment).stdout
        assert "stored_diff" not in document(run_program, experiment)

    def test_full_shows_how_it_differs(self, run_program: RunProgram, pair: tuple[Run, Run], experiment: Path) -> None:
        """As a unified diff, harmless and without secrets; in the JSON object too."""
        before, after = pair
        shown = run_program("diff", "--full", cwd=experiment).stdout.splitlines()

        start = shown.index(f"--- {before.id}/git-info.log")
        assert shown[start + 1] == f"+++ {after.id}/git-info.log"
        assert shown[start + 3 :] == [" --- a/x", " +++ b/x", "-+lr = 1", r"++lr = \x1b[31m2", " +token=***"]
        assert "-+lr = 1" in document(run_program, experiment, "--full")["stored_diff"]

    def test_no_changes_are_none(self, run_program: RunProgram, pair: tuple[Run, Run], experiment: Path) -> None:
        """That is known."""
        (pair[0].path / "git-info.log").write_text("commit hash: c0ffee\n")

        assert told(run_program, experiment, "git")["uncommitted_changes"][1] == "none"


def test_long_values_are_cut_in_the_table_where_they_differ(
    run_program: RunProgram, start: Start, experiment: Path
) -> None:
    """With `--full`, and in the JSON object, they are whole."""
    for end in "ab":
        start(experiment, configuration={"long": "x" * 200 + end + "y" * 200})

    cut = next(line for line in run_program("diff", cwd=experiment).stdout.splitlines() if "long" in line)
    full = next(line for line in run_program("diff", "--full", cwd=experiment).stdout.splitlines() if "long" in line)

    assert len(cut) < 220
    assert "xay" in cut
    assert "xby" in cut
    assert "x" * 200 + "a" + "y" * 200 in full
    assert told(run_program, experiment, "configuration")["long"][1] == "x" * 200 + "a" + "y" * 200


def test_what_is_not_known_of_an_adopted_run_is_no_difference(
    run_program: RunProgram, start: Start, experiment: Path
) -> None:
    """A migration finds little; what it has found is compared."""
    layout = ExperimentLayout.of(experiment)
    adopted = format_run_id(1e9, bytes(8))
    layout.run(adopted).path.mkdir(parents=True)
    record = RunRecord(adopted, format_time(1e9), arguments=["train.py", "lr=1"], adopted_from={"log_directory": "."})
    layout.run(adopted).run_record.write_bytes(record.encode())
    append_record(layout, ManifestRecord(ADOPTED, adopted, format_time(1e9), {"host": "old"}), is_locked=True)
    run = start(experiment, configuration={"a": 1}, git_commit="c0ffee", world_size=2)

    found = document(run_program, experiment, adopted)

    assert {each["section"] for each in found["differences"]} == {"arguments", "environment"}
    assert {each["kind"] for each in found["differences"] if each["section"] == "environment"} == {"changed"}
    unknown = {each["section"]: each for each in found["unknown"]}
    assert {"configuration", "versions", "git", "start", "environment.world_size"} <= unknown.keys()
    assert unknown["configuration"]["run"] == adopted
    assert unknown["configuration"]["reason"] == "a migration brought it in, and old files do not tell"
    said = run_program("diff", adopted, run.id, cwd=experiment).stderr
    assert f"Not compared: configuration, not known of run {adopted}: a migration brought it in" in said


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("torn", "incomplete or damaged"),
        ("gone", "there is no run.json"),
        ("directory gone", "its status is missing"),
    ],
)
def test_a_run_without_a_record_is_compared_by_what_the_manifest_has(
    run_program: RunProgram, pair: tuple[Run, Run], experiment: Path, damage: str, reason: str
) -> None:
    """The reason is told."""
    before, _ = pair
    record = before.path / "run.json"
    if damage == "torn":
        record.write_bytes(record.read_bytes()[:40])
    elif damage == "gone":
        record.unlink()
    else:
        before.path.rename(experiment / "elsewhere")

    found = document(run_program, experiment, before.id, "latest")

    assert ("environment", "world_size") in {(each["section"], each["name"]) for each in found["differences"]}
    (unknown,) = [each for each in found["unknown"] if each["section"] == "configuration"]
    assert unknown["run"] == before.id
    assert reason in unknown["reason"]


def test_hostile_values_are_shown_harmless(run_program: RunProgram, start: Start, experiment: Path) -> None:
    """Names and values come from records that anyone in a shared directory can have written."""
    for value in ("\x1b[31mred\n\u202e", "plain"):
        run = start(experiment, configuration={"\x1b]0;title\x07": value})
        (run.path / "hparams.yaml").write_text(
            f'"\\x1b[2J": {len(value)}\n"\\x9b": [1\n' if value == "plain" else "a: 1\n"
        )

    completed = run_program("diff", "--full", cwd=experiment)

    assert r"\x1b]0;title\x07" in completed.stdout
    assert not ACTING.search(completed.stdout + completed.stderr)


def test_an_experiment_without_a_run_before_the_latest_is_wrong_use(
    run_program: RunProgram, start: Start, experiment: Path, tmp_path: Path
) -> None:
    """There is nothing to compare with; neither is there in a directory that is no experiment."""
    start(experiment)

    for directory in (experiment, tmp_path):
        completed = run_program("diff", cwd=directory)
        assert (completed.returncode, completed.stdout) == (2, "")
        assert "HINT" in completed.stderr


def test_json_has_the_documented_keys(run_program: RunProgram, pair: tuple[Run, Run], experiment: Path) -> None:
    """In this order, on the page too."""
    (pair[0].path / "hparams.yaml").touch()
    found = document(run_program, experiment, "--full")

    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    section = page.partition("## `diff`\n")[2].partition("\n## ")[0]
    (table,) = re.findall(r"^\| key \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", section, re.MULTILINE)
    documented = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert documented == list(found)
    for name in (*found["differences"][0], *found["unknown"][0]):
        assert f"`{name}`" in section
