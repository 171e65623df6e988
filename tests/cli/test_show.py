from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs.run import Run

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Run]
FinishRuns = Callable[[Path, int], list[Run]]

OWN_KEYS = [
    "launch_key",
    "launch_source",
    "generation",
    "ranks",
    "checkpoint",
    "checkpoints",
    "resumed_by",
    "arguments",
    "working_directory",
    "user",
    "git_commit",
    "versions",
    "configuration",
    "adopted_from",
    "files",
    "end",
    "problems",
]


def shown(completed: subprocess.CompletedProcess[str]) -> Any:
    """Return the JSON document that a command printed."""
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def test_the_latest_run_is_the_default(run_program: RunProgram, finish_runs: FinishRuns, experiment: Path) -> None:
    """Without a reference the run that `latest` shows is described, and said to be the latest."""
    runs = finish_runs(experiment, 2)

    lines = run_program("show", cwd=experiment).stdout.splitlines()

    assert lines[0].split() == ["Run", runs[1].id, "(latest)"]


def test_what_is_known_of_a_run_is_in_the_text(run_program: RunProgram, start: Start, experiment: Path) -> None:
    """Status with evidence, launch, ranks, lineage, checkpoint, command, commit, configuration and files are shown."""
    first = start(experiment)
    second = start(
        experiment,
        resumed_from=first,
        checkpoint=experiment / "checkpoints" / "a.ckpt",
        checkpoints=experiment / "checkpoints",
        configuration={"trainer": {"devices": 2, "logger": None}, "name": "demo", "token": "abc"},
        git_commit="0123456789abcdef",
        world_size=4,
    )
    third = start(experiment, resumed_from=second)
    (second.path / "nemo_log.txt").write_bytes(b"x" * 2048)
    second.note_step(70)
    second.finish()

    output = run_program("show", second.id, "-e", experiment).stdout
    facts = dict(line.split(maxsplit=1) for line in output.partition("\n\n")[0].splitlines())

    assert facts["Path"] == str(second.path)
    assert facts["Status"] == "finished (end record)"
    assert "Ranks joined  1/4 (without 1-3)" in output
    assert f"Resumed from  {first.id}" in output
    assert f"Resumed by    {third.id}" in output
    assert facts["Lineage"] == first.id
    assert facts["Checkpoint"] == "checkpoints/a.ckpt"
    assert "Last step     70" in output
    assert "Git commit    0123456789abcdef" in output
    assert "trainer.devices=2\ntrainer.logger=null\nname=demo\ntoken=***\n" in output
    assert "2.0 KiB  nemo_log.txt" in output
    assert "ranks/         1 file\n" in output


def test_json_has_the_documented_keys(run_program: RunProgram, finish_runs: FinishRuns, experiment: Path) -> None:
    """The document begins as an element of `ls --json` does, and the keys of `show` follow."""
    (run,) = finish_runs(experiment, 1)

    document = shown(run_program("show", "-e", experiment, "--json"))
    (summary,) = shown(run_program("ls", experiment, "--json"))["runs"]

    assert list(document) == ["format", *summary, *OWN_KEYS]
    assert {key: document[key] for key in summary} == summary
    assert document["run"] == run.id
    assert document["end"]["outcome"] == "finished"
    assert document["end"]["step"] == 10
    (rank,) = document["ranks"]
    assert (rank["global_rank"], rank["local_rank"], rank["node_rank"]) == (0, 0, 0)
    assert {"host", "pid", "joined"} <= set(rank)
    assert "nonce" not in rank


def test_files_and_directories_come_with_their_sizes(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
) -> None:
    """A directory has the size and number of the files in it, at any depth; a link is not followed."""
    (run,) = finish_runs(experiment, 1)
    (run.path / "checkpoints" / "deep").mkdir(parents=True)
    (run.path / "checkpoints" / "a.ckpt").write_bytes(b"a" * 100)
    (run.path / "checkpoints" / "deep" / "b.ckpt").write_bytes(b"b" * 50)
    (run.path / "link").symlink_to("checkpoints")

    files = {each["name"]: each for each in shown(run_program("show", "-e", experiment, "--json"))["files"]}

    assert files["checkpoints"] == {
        "name": "checkpoints",
        "kind": "directory",
        "bytes": 150,
        "files": 2,
        "is_complete": True,
    }
    assert files["link"] == {"name": "link", "kind": "link", "bytes": None, "target": "checkpoints"}
    assert files["run.json"]["kind"] == "file"
    assert files["run.json"]["bytes"] == (run.path / "run.json").stat().st_size


def test_the_error_text_is_shown_whole_and_harmless(run_program: RunProgram, start: Start, experiment: Path) -> None:
    """A failed run shows its traceback line by line, not as markup, without control characters."""
    run = start(experiment)
    run.finish("failed", error="Traceback:\n  [bold]x[/bold] \x1b[2J\x1b]0;title\x07\nValueError: bad \ud800 end")

    completed = run_program("show", "-e", experiment)

    assert completed.returncode == 0
    assert "\nError\nTraceback:\n  [bold]x[/bold] \\x1b[2J\\x1b]0;title\\x07\nValueError: bad " in completed.stdout
    assert not set(completed.stdout) & set("\x1b\x07")


def test_file_names_with_escape_sequences_are_harmless(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
) -> None:
    """A name that is no text, or holds control characters or markup, is shown escaped on one line."""
    (run,) = finish_runs(experiment, 1)
    (run.path / "a\x1b[31m\nb[red].txt").write_bytes(b"")
    Path(bytes(run.path).decode(), "c\udcff.txt").write_bytes(b"")

    completed = run_program("show", "-e", experiment)

    assert completed.returncode == 0
    assert "a\\x1b[31m\\nb[red].txt" in completed.stdout
    assert "c\\udcff.txt" in completed.stdout
    assert "\x1b" not in completed.stdout


def test_many_ranks_are_folded_to_a_line_for_each_host(
    run_program: RunProgram, start: Start, join: Callable[[Path, int], None], experiment: Path, monkeypatch: Any
) -> None:
    """With many ranks the text has their hosts and ranges; the JSON output has every rank."""
    for name, value in {"IMMUTABLE_LOGS_LAUNCH_ID": "wide", "WORLD_SIZE": "40", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    start(experiment)
    join(experiment, 39)

    output = run_program("show", "-e", experiment).stdout
    document = shown(run_program("show", "-e", experiment, "--json"))

    host = document["host"]
    assert "Ranks joined  39/40 (without 39)" in output
    (line,) = [line for line in output.partition("\nRanks\n")[2].splitlines() if line.startswith(f"{host} ")]
    assert line.split()[1:3] == ["0-38", "39"]
    assert [rank["global_rank"] for rank in document["ranks"]] == list(range(39))
    assert document["launch_source"] == "IMMUTABLE_LOGS_LAUNCH_ID"


@pytest.mark.parametrize("record", ["run.json", "finished.json"])
def test_a_record_that_cannot_be_read_is_reported(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, record: str
) -> None:
    """A torn record is named as a problem, and what else is known is shown."""
    (run,) = finish_runs(experiment, 1)
    path = run.path / record
    path.write_bytes(path.read_bytes()[:40])

    completed = run_program("show", "-e", experiment)

    assert completed.returncode == 0
    assert run.id in completed.stdout
    assert "\nRecords that cannot be read\n" in completed.stdout
    assert str(path) in completed.stdout
    (problem,) = shown(run_program("show", "-e", experiment, "--json"))["problems"]
    assert str(path) in problem


def test_a_run_without_any_record_is_shown(run_program: RunProgram, experiment: Path) -> None:
    """A directory that rank zero never came to is a run too."""
    run_id = "2026-12-01_02-28-15Z_k3v9q"
    (experiment / "runs" / run_id).mkdir(parents=True)

    completed = run_program("show", "2026", "-e", experiment)

    assert completed.returncode == 0
    assert completed.stdout.splitlines()[0].split() == ["Run", run_id]
    assert "Started       2026-12-01 02:28:15 UTC" in completed.stdout


def test_keys_of_a_newer_version_are_passed_on(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
) -> None:
    """What a newer writer adds to an end record is in the JSON output."""
    (run,) = finish_runs(experiment, 1)
    path = run.path / "finished.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "energy_joules": 5}), encoding="utf-8")

    assert shown(run_program("show", "-e", experiment, "--json"))["end"]["energy_joules"] == 5


class TestReferences:
    @pytest.fixture
    def experiment(self, experiment: Path) -> Path:
        """An experiment of four runs with known ids, `latest` on the third."""
        for run_id in (
            "2026-12-01_02-28-15Z_aaaaa",
            "2026-12-01_02-28-15Z_aabbb",
            "2026-12-02_02-28-15Z_ccccc",
            "2026-12-03_02-28-15Z_ddddd",
        ):
            (experiment / "runs" / run_id).mkdir(parents=True)
        (experiment / "latest").symlink_to("runs/2026-12-02_02-28-15Z_ccccc")
        return experiment

    @pytest.mark.parametrize(
        ("reference", "run_id"),
        [
            ("latest", "2026-12-02_02-28-15Z_ccccc"),
            ("latest~0", "2026-12-02_02-28-15Z_ccccc"),
            ("latest~1", "2026-12-01_02-28-15Z_aabbb"),
            ("latest~2", "2026-12-01_02-28-15Z_aaaaa"),
            ("2026-12-03", "2026-12-03_02-28-15Z_ddddd"),
            ("2026-12-01_02-28-15Z_aab", "2026-12-01_02-28-15Z_aabbb"),
            ("2026-12-01_02-28-15Z_aaaaa", "2026-12-01_02-28-15Z_aaaaa"),
        ],
    )
    def test_each_way_to_name_a_run(
        self, run_program: RunProgram, experiment: Path, reference: str, run_id: str
    ) -> None:
        """A full id, a unique beginning, `latest` and `latest~N` mean the run that they say."""
        assert shown(run_program("show", reference, "-e", experiment, "--json"))["run"] == run_id

    @pytest.mark.parametrize(
        ("reference", "message"),
        [
            ("nope", "no run is called 'nope'"),
            ("", "'' means several runs: it could be "),
            ("latest~3", "there are only 2 runs before the latest one"),
            ("latest~x", "expected a number after 'latest~', found 'x'"),
            (
                "2026-12-01",
                "'2026-12-01' means several runs: it could be 2026-12-01_02-28-15Z_aaaaa, 2026-12-01_02-28-",
            ),
        ],
    )
    def test_a_reference_to_no_run_or_to_several_is_wrong_use(
        self, run_program: RunProgram, experiment: Path, reference: str, message: str
    ) -> None:
        """The exit code is 2, stdout stays empty, and the message says what was found and how references look."""
        completed = run_program("show", reference, "-e", experiment)

        assert (completed.returncode, completed.stdout) == (2, "")
        assert message in completed.stderr
        assert "HINT: a reference is a run id" in completed.stderr
        assert "Traceback" not in completed.stderr

    def test_a_reference_cannot_smuggle_escape_sequences(self, run_program: RunProgram, experiment: Path) -> None:
        """An error message repeats the reference without acting on the terminal."""
        completed = run_program("show", "\x1b[31mred", "-e", experiment)

        assert completed.returncode == 2
        assert "\x1b" not in completed.stderr


def test_metrics_show_the_last_value_of_each_curve(
    run_program: RunProgram, start: Start, experiment: Path, write_events: Callable[..., Path]
) -> None:
    """The step of a run that goes on, and its values, are in the event files; names in there are harmless."""
    write_events(start(experiment).path, {"loss": {4: 0.5}, "lr\x1b[31m": {5: 1e-4}}, start=0)

    output = run_program("show", "-e", experiment, "--metrics").stdout
    document = shown(run_program("show", "-e", experiment, "--metrics", "--json"))

    assert "Last step     5\n" in output
    assert re.search(r"^loss +0\.5$", output, re.MULTILINE)
    assert re.search(r"^lr\\x1b\[31m +0\.0001$", output, re.MULTILINE)
    assert "\x1b" not in output
    assert (document["metrics"]["step"], document["metrics"]["loss"]) == (5, 0.5)


def test_graph_draws_the_lineage_of_the_run(run_program: RunProgram, start: Start, experiment: Path) -> None:
    """The runs that continue each other are drawn, the shown one marked, the others of the experiment left out."""
    first = start(experiment)
    start(experiment)
    second = start(experiment, resumed_from=first)
    third = start(experiment, resumed_from=first)

    output = run_program("show", second.id, "-e", experiment, "--graph").stdout

    lines = output.partition("\nLineage\n")[2].splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["o", first.id], ["*", "^"], ["+-^", third.id]]
