from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from immutable_logs.run import Run

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Run]
FinishRuns = Callable[[Path, int], list[Run]]

RUN_KEYS = [
    "run",
    "status",
    "evidence",
    "path",
    "started",
    "ended",
    "duration_seconds",
    "ranks_joined",
    "world_size",
    "step",
    "host",
    "job",
    "source",
    "lineage",
    "resumed_from",
    "is_latest",
]


def on_terminal(program: str, *arguments: object, columns: int, environ: dict[str, str]) -> str:
    """Run a command with a terminal of some width as its output, and return what it wrote there."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    output = b""
    with subprocess.Popen(
        [program, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environ
    ) as process:
        os.close(theirs)
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            output += piece
    os.close(ours)
    assert process.returncode == 0
    return output.decode()


def listed(completed: subprocess.CompletedProcess[str]) -> Any:
    """Return the JSON document that a command printed."""
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


class TestTable:
    def test_runs_are_listed_in_order_with_the_newest_last_and_marked(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """The table has one line a run, in the order of their starts, and a star on the one that `latest` shows."""
        runs = finish_runs(experiment, 3)

        heading, *lines = run_program("ls", experiment).stdout.splitlines()

        assert heading.split() == ["RUN", "STATUS", "AGE", "DURATION", "RANKS", "STEP", "WHERE", "RESUMED", "FROM"]
        assert [line.removeprefix("*").split()[0] for line in lines] == [run.id for run in runs]
        assert [line[0] for line in lines] == [" ", " ", "*"]
        assert [line.split()[-1] for line in lines] == ["-", runs[0].id, runs[1].id]

    def test_the_current_directory_is_the_default(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """Without an argument the experiment in the current directory is listed."""
        (run,) = finish_runs(experiment, 1)

        assert run.id in run_program("ls", cwd=experiment).stdout

    def test_a_run_that_goes_on_has_a_plus_after_its_duration(
        self, run_program: RunProgram, start: Start, experiment: Path
    ) -> None:
        """A run whose process lives is running, and its duration so far is marked."""
        start(experiment)

        line = run_program("ls", experiment).stdout.splitlines()[1]

        assert " running " in line
        assert " s+ " in line

    def test_the_latest_link_can_show_another_run_than_the_last_one(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """The star follows the link, as `latest` does on the command line, even if the link is behind."""
        runs = finish_runs(experiment, 2)
        (experiment / "latest").unlink()
        (experiment / "latest").symlink_to(f"runs/{runs[0].id}")

        lines = run_program("ls", experiment).stdout.splitlines()[1:]

        assert [line[0] for line in lines] == ["*", " "]

    def test_an_experiment_without_latest_says_so(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """No star comes with a word on stderr, since a launch may have failed before it was published."""
        finish_runs(experiment, 1)
        (experiment / "latest").unlink()

        completed = run_program("ls", experiment)

        assert completed.returncode == 0
        assert "*" not in completed.stdout
        assert "No link `latest`" in completed.stderr

    def test_no_runs_yet_is_said_on_stderr(self, run_program: RunProgram, experiment: Path) -> None:
        """An experiment without a run is no error and prints no table."""
        (experiment / "runs").mkdir(parents=True)

        completed = run_program("ls", experiment)

        assert (completed.returncode, completed.stdout) == (0, "")
        assert completed.stderr == f"No runs yet in {experiment}\n"

    def test_a_piped_table_is_neither_wrapped_nor_padded(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """A program gets one whole line a run, whatever COLUMNS says."""
        runs = finish_runs(experiment, 2)

        lines = run_program("ls", experiment, COLUMNS="20").stdout.splitlines()

        assert len(lines) == 3
        assert runs[0].id in lines[1]
        assert lines[2].endswith(runs[0].id)
        assert all(line == line.rstrip() for line in lines)

    @pytest.mark.parametrize("columns", [200, 120, 80, 40])
    def test_no_terminal_is_too_narrow_for_the_ids(
        self,
        program: str,
        plain_environ: dict[str, str],
        finish_runs: FinishRuns,
        experiment: Path,
        columns: int,
    ) -> None:
        """Ids are whole and on one line at every width, since people copy them."""
        runs = finish_runs(experiment, 3)

        output = on_terminal(
            program, "ls", experiment, columns=columns, environ=plain_environ | {"TERM": "xterm", "NO_COLOR": "1"}
        )

        lines = output.splitlines()
        assert len(lines) == 4
        assert all(f" {run.id} " in line for run, line in zip(runs, lines[1:], strict=True))

    def test_colours_come_on_a_terminal_and_not_with_no_color(
        self, program: str, plain_environ: dict[str, str], finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """The status is green on a terminal; NO_COLOR leaves the word."""
        finish_runs(experiment, 1)
        terminal = plain_environ | {"TERM": "xterm-256color"}

        assert "\x1b[32mfinished" in on_terminal(program, "ls", experiment, columns=120, environ=terminal)
        without = on_terminal(program, "ls", experiment, columns=120, environ=terminal | {"NO_COLOR": "1"})
        assert "\x1b[32m" not in without
        assert " finished " in without

    def test_escape_sequences_in_the_manifest_are_shown_not_obeyed(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """Whatever another user wrote into the manifest, it cannot act on the terminal, nor be taken for markup."""
        (run,) = finish_runs(experiment, 1)
        manifest = experiment / "runs" / "manifest.jsonl"
        lines = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
        lines[0]["host"] = "\x1b]0;title\x07\x9b31m\u202e[red]node[/red]\nnext"
        manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

        completed = run_program("ls", experiment)

        assert run.id in completed.stdout
        assert r"\x1b]0;title\x07\x9b31m\u202e[red]node[/red]\nnext" in completed.stdout
        assert not set(completed.stdout) & set("\x1b\x07\x9b\u202e")


class TestJson:
    def test_the_document_has_the_documented_keys_in_order(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """Scripts depend on the keys, the format number and the order of the runs."""
        runs = finish_runs(experiment, 2)

        document = listed(run_program("ls", experiment, "--json"))

        assert list(document) == ["format", "experiment", "latest", "damaged_lines", "runs"]
        assert document["format"] == 1
        assert document["experiment"] == str(experiment)
        assert document["latest"] == runs[1].id
        assert document["damaged_lines"] == 0
        assert [list(run) for run in document["runs"]] == [RUN_KEYS, RUN_KEYS]

    def test_a_run_is_described_by_plain_values(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """Times are ISO 8601 in UTC, lengths are seconds, paths are absolute, what is unknown is null."""
        first, second = finish_runs(experiment, 2)

        run = listed(run_program("ls", experiment, "--json"))["runs"][1]

        assert run["run"] == second.id
        assert run["path"] == str(second.path)
        assert run["started"].endswith("Z")
        assert run["started"] <= run["ended"]
        assert 0 <= run["duration_seconds"] < 60
        assert (run["status"], run["evidence"]) == ("finished", "end record")
        assert (run["ranks_joined"], run["world_size"], run["step"]) == (1, 1, 20)
        assert (run["lineage"], run["resumed_from"], run["is_latest"]) == (first.id, first.id, True)
        assert run["job"] is None

    def test_an_experiment_without_runs_is_an_empty_list(self, run_program: RunProgram, experiment: Path) -> None:
        """A script sees no runs as a list without elements, and no talk on stderr."""
        (experiment / "runs").mkdir(parents=True)

        completed = run_program("ls", experiment, "--json")

        assert listed(completed)["runs"] == []
        assert listed(completed)["latest"] is None
        assert completed.stderr == ""

    def test_a_killed_run_is_unknown_and_the_evidence_says_why(
        self, run_program: RunProgram, children: Any, experiment: Path
    ) -> None:
        """A run whose process is gone without an end record is not called finished."""
        child = children.start(
            """
            import immutable_logs
            run = immutable_logs.start_run(sys.argv[1])
            report(pid=os.getpid())
            os.kill(os.getpid(), 9)
            """,
            experiment,
        )
        (report,) = child.reports(status=-signal.SIGKILL)

        (run,) = listed(run_program("ls", experiment, "--json"))["runs"]

        assert run["status"] == "unknown"
        assert f"process {report['pid']} of rank 0 on this host is gone" in run["evidence"]
        assert (run["ended"], run["duration_seconds"]) == (None, None)


class TestDamage:
    @pytest.mark.parametrize("damage", [b'{"format": 1, "event": "star', b"\x00" * 300, b"\xff\xfe not text", b"[]"])
    def test_damaged_lines_are_counted_and_lose_no_run(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, damage: bytes
    ) -> None:
        """A line that cannot be read is reported, and all runs are listed."""
        runs = finish_runs(experiment, 2)
        with (experiment / "runs" / "manifest.jsonl").open("ab") as manifest:
            manifest.write(damage + b"\n")

        completed = run_program("ls", experiment)

        assert completed.returncode == 0
        assert all(run.id in completed.stdout for run in runs)
        assert "cannot be read: 1" in completed.stderr
        assert listed(run_program("ls", experiment, "--json"))["damaged_lines"] == 1

    def test_a_lost_manifest_loses_no_run(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """Without a manifest the run directories tell everything."""
        runs = finish_runs(experiment, 2)
        (experiment / "runs" / "manifest.jsonl").unlink()

        found = listed(run_program("ls", experiment, "--json"))["runs"]

        assert sorted(run["run"] for run in found) == sorted(run.id for run in runs)
        assert {run["status"] for run in found} == {"finished"}

    def test_an_unreadable_manifest_is_exit_code_3(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """What the file system refuses is a short message that names the file, without a traceback."""
        finish_runs(experiment, 1)
        manifest = experiment / "runs" / "manifest.jsonl"
        manifest.unlink()
        manifest.mkdir()

        completed = run_program("ls", experiment)

        assert (completed.returncode, completed.stdout) == (3, "")
        assert completed.stderr == f"Error: Is a directory: {manifest}\n"


class TestNoExperiment:
    def test_a_missing_directory_is_wrong_use(self, run_program: RunProgram, tmp_path: Path) -> None:
        """A directory that is not there is exit code 2 and a message that says what to name."""
        completed = run_program("ls", tmp_path / "nowhere")

        assert (completed.returncode, completed.stdout) == (2, "")
        assert f"there is no such directory: {tmp_path / 'nowhere'}\nHINT: " in completed.stderr

    def test_experiments_one_and_two_levels_below_are_named(
        self, run_program: RunProgram, finish_runs: FinishRuns, tmp_path: Path
    ) -> None:
        """Who names the exp_dir learns which experiments are in there, links and deeper ones left out."""
        for name in ("one", "group/two", "group/deeper/three"):
            finish_runs(tmp_path / name, 1)
        (tmp_path / "link").symlink_to("one")

        completed = run_program("ls", tmp_path)

        assert completed.returncode == 2
        named = completed.stderr.partition("Experiments below it:\n")[2].splitlines()
        assert named == [f"  {tmp_path / 'group/two'}", f"  {tmp_path / 'one'}"]

    def test_a_place_inside_an_experiment_names_the_experiment(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """Who stands in a run directory learns which experiment it belongs to."""
        (run,) = finish_runs(experiment, 1)

        completed = run_program("ls", cwd=run.path)

        assert completed.returncode == 2
        assert f"It lies inside an experiment: {experiment}\n" in completed.stderr

    def test_a_directory_of_tensorboard_is_not_called_an_experiment(
        self, run_program: RunProgram, tmp_path: Path
    ) -> None:
        """TensorBoard's default directory is called `runs` too."""
        (tmp_path / "other" / "runs" / "May01_host").mkdir(parents=True)

        assert "Experiments below" not in run_program("ls", tmp_path).stderr
