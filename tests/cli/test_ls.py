from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from immutable_logs.run import Run
from immutable_logs.run_id import format_run_id

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Run]
FinishRuns = Callable[[Path, int], list[Run]]

RUN_KEYS = [
    "experiment",
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


def read_until(terminal: int, text: str | None) -> str:
    """Return what comes from a terminal until a text was in it, or until its end."""
    output = b""
    while text is None or text.encode() not in output:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            piece = b""
        if not piece:
            assert text is None, output
            break
        output += piece
    return output.decode()


def ids(completed: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the ids of the runs in the JSON document that a command printed."""
    return [run["run"] for run in listed(completed)["runs"]]


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


class TestFilters:
    def test_only_runs_with_a_status_are_listed(
        self, run_program: RunProgram, finish_runs: FinishRuns, start: Start, experiment: Path
    ) -> None:
        """`--status` may be repeated: any of them counts."""
        finish_runs(experiment, 1)
        failed, stopped = start(experiment), start(experiment)
        failed.finish("failed", error="no")
        stopped.finish("interrupted")

        assert ids(run_program("ls", experiment, "--status", "failed", "--json")) == [failed.id]
        both = run_program("ls", experiment, "-s", "failed", "-s", "interrupted", "--json")
        assert ids(both) == [failed.id, stopped.id]

    def test_a_filter_keeps_the_table_and_the_star(
        self, run_program: RunProgram, finish_runs: FinishRuns, start: Start, experiment: Path
    ) -> None:
        """The table is the same with fewer lines, and nothing is said about a link that is there."""
        finish_runs(experiment, 2)
        start(experiment).finish("failed")

        completed = run_program("ls", experiment, "--status", "finished")

        assert [line.split()[1] for line in completed.stdout.splitlines()[1:]] == ["finished", "finished"]
        assert completed.stderr == ""

    @pytest.mark.parametrize(
        ("since", "listed_from"),
        [
            ("2026-12-02", 1),
            ("2026-12-02T02:28", 1),
            ("2026-12-02_02-28-16Z", 2),
            ("2026-12-01 00:00", 0),
            ("2026-12-04", 3),
        ],
    )
    def test_only_runs_that_started_since_a_moment_are_listed(
        self, run_program: RunProgram, experiment: Path, since: str, listed_from: int
    ) -> None:
        """A moment is in UTC, to the day, the minute or the second, also in the form of a run id."""
        runs = [f"2026-12-0{day}_02-28-15Z_aaaaa" for day in (1, 2, 3)]
        for run in runs:
            (experiment / "runs" / run).mkdir(parents=True)

        assert ids(run_program("ls", experiment, "--since", since, "--json")) == runs[listed_from:]

    @pytest.mark.parametrize(("since", "count"), [("90m", 1), ("1.5h", 1), ("3d", 2), ("1w", 3), ("30s", 0)])
    def test_only_runs_that_started_within_a_length_of_time_are_listed(
        self, run_program: RunProgram, experiment: Path, since: str, count: int
    ) -> None:
        """A length of time counts back from now."""
        now = time.time()
        ages = (6 * 86400, 2 * 86400, 3600)
        runs = [format_run_id(now - age, bytes(8)) for age in ages]
        for run in runs:
            (experiment / "runs" / run).mkdir(parents=True)

        assert ids(run_program("ls", experiment, "--since", since, "--json")) == runs[len(runs) - count :]

    def test_only_runs_on_a_host_are_listed(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """A pattern means the host of rank zero, with or without its domain."""
        runs = finish_runs(experiment, 3)
        manifest = experiment / "runs" / "manifest.jsonl"
        lines = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            if line["event"] == "started":
                line["host"] = {runs[0].id: "gpu-1.cluster", runs[1].id: "gpu-2", runs[2].id: None}[line["run"]]
        manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

        for pattern, expected in {"gpu-1": [0], "gpu-*": [0, 1], "gpu-2": [1], "*.cluster": [0], "gpu": []}.items():
            found = ids(run_program("ls", experiment, "--host", pattern, "--json"))
            assert found == [runs[index].id for index in expected], pattern

    @pytest.mark.parametrize(
        ("option", "value", "expected"),
        [
            ("--status", "done", "one of running, finished, failed,"),
            ("--since", "yesterday", "90m, 6h, 2d"),
            ("--since", "2026-13-01", "90m, 6h, 2d"),
            ("--since", "\x1b[31m", "90m, 6h, 2d"),
        ],
    )
    def test_a_filter_that_is_not_understood_is_wrong_use(
        self, run_program: RunProgram, experiment: Path, option: str, value: str, expected: str
    ) -> None:
        """The exit code is 2, and the message says what was expected and what was found."""
        (experiment / "runs").mkdir(parents=True)

        completed = run_program("ls", experiment, option, value)

        assert (completed.returncode, completed.stdout) == (2, "")
        assert expected in completed.stderr
        assert "found '" in completed.stderr
        assert "\x1b" not in completed.stderr

    def test_nothing_left_is_said(self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path) -> None:
        """A filter that lets nothing through is not taken for an experiment without runs."""
        finish_runs(experiment, 1)

        completed = run_program("ls", experiment, "--status", "failed")

        assert (completed.returncode, completed.stdout) == (0, "")
        assert completed.stderr == f"No run is like that in {experiment}\n"


class TestSeveralExperiments:
    def test_a_directory_stands_for_the_experiments_below_it(
        self, run_program: RunProgram, finish_runs: FinishRuns, tmp_path: Path
    ) -> None:
        """Each has a table under its path; links, hidden directories and what is no experiment are passed over."""
        names = ("group/deeper/three", "one", "two")
        runs = {name: finish_runs(tmp_path / name, 2) for name in names}
        finish_runs(tmp_path / ".hidden" / "four", 1)
        (tmp_path / "link").symlink_to("one")
        (tmp_path / "other" / "runs" / "May01_host").mkdir(parents=True)

        lines = run_program("ls", tmp_path).stdout.splitlines()
        document = listed(run_program("ls", tmp_path, "--json"))

        assert [line for line in lines if line.startswith("/")] == [str(tmp_path / name) for name in names]
        assert sum(line.startswith("*") for line in lines) == 3
        assert [run["run"] for run in document["runs"]] == [run.id for name in names for run in runs[name]]
        assert [run["experiment"] for run in document["runs"]] == [
            str(tmp_path / name) for name in names for _ in range(2)
        ]
        assert (document["experiment"], document["latest"]) == (None, None)

    def test_several_can_be_named_and_none_is_listed_twice(
        self, run_program: RunProgram, finish_runs: FinishRuns, tmp_path: Path
    ) -> None:
        """In the order in which they were named; an experiment named twice comes once."""
        (one,) = finish_runs(tmp_path / "one", 1)
        (two,) = finish_runs(tmp_path / "two", 1)

        assert ids(run_program("ls", "two", "one", tmp_path, "--json")) == [two.id, one.id]

    def test_one_that_is_no_experiment_is_wrong_use(
        self, run_program: RunProgram, finish_runs: FinishRuns, tmp_path: Path
    ) -> None:
        """A mistyped name is not passed over among others that exist."""
        finish_runs(tmp_path / "one", 1)

        completed = run_program("ls", "one", "oen")

        assert (completed.returncode, completed.stdout) == (2, "")
        assert str(tmp_path / "oen") in completed.stderr

    def test_damaged_lines_of_all_are_counted(
        self, run_program: RunProgram, finish_runs: FinishRuns, tmp_path: Path
    ) -> None:
        """The sum is in the JSON object."""
        for name in ("one", "two"):
            finish_runs(tmp_path / name, 1)
            with (tmp_path / name / "runs" / "manifest.jsonl").open("ab") as manifest:
                manifest.write(b"rubbish\n")

        assert listed(run_program("ls", tmp_path, "--json"))["damaged_lines"] == 2


class TestGraph:
    def test_the_table_shows_which_run_continues_which(
        self, run_program: RunProgram, start: Start, experiment: Path
    ) -> None:
        """A chain goes straight down, a run that starts anew has its own mark, a second successor branches off."""
        first = start(experiment)
        second = start(experiment, resumed_from=first)
        start(experiment)
        start(experiment, resumed_from=second)
        start(experiment, resumed_from=first)

        heading, *lines = run_program("ls", experiment, "--graph").stdout.splitlines()

        begin, end = heading.index("GRAPH"), heading.index("RUN")
        assert [line[begin:end].rstrip() for line in lines] == ["o", "^", "| o", "^", "+-^"]
        assert lines[-1].endswith(first.id)

    def test_a_run_that_is_filtered_out_does_not_tear_the_chain(
        self, run_program: RunProgram, start: Start, experiment: Path
    ) -> None:
        """Its successor stands under the nearest one above it that is listed."""
        first = start(experiment)
        second = start(experiment, resumed_from=first)
        third = start(experiment, resumed_from=second)
        for run, outcome in ((first, "finished"), (second, "failed"), (third, "finished")):
            run.finish(outcome)

        lines = run_program("ls", experiment, "--graph", "--status", "finished").stdout.splitlines()

        assert [line.removeprefix("*").split()[0] for line in lines[1:]] == ["o", "^"]


class TestLong:
    def test_every_column_and_the_evidence_come_at_any_width(
        self, program: str, plain_environ: dict[str, str], finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """`--long` cuts nothing, however narrow the terminal."""
        runs = finish_runs(experiment, 2)

        output = on_terminal(
            program, "ls", "-l", experiment, columns=40, environ=plain_environ | {"TERM": "xterm", "NO_COLOR": "1"}
        )

        heading, _, line = output.splitlines()
        assert heading.split()[-3:] == ["RESUMED", "FROM", "EVIDENCE"]
        assert line.endswith(f"{runs[0].id}  end record")


class TestMetrics:
    def test_the_last_step_and_loss_come_from_the_event_files(
        self, run_program: RunProgram, start: Start, experiment: Path, write_events: Callable[..., Path]
    ) -> None:
        """A run that goes on has no step in its records; it is in the event files, like the loss."""
        first, second = start(experiment), start(experiment)
        write_events(first.path, {"train_loss": {10: 0.75, 11: 0.123456}, "val_loss": {10: 9.0}}, start=0)

        completed = run_program("ls", experiment, "--metrics")
        document = listed(run_program("ls", experiment, "--metrics", "--json"))

        heading, *lines = completed.stdout.splitlines()
        assert heading.split()[5:7] == ["STEP", "LOSS"]
        assert [line.removeprefix("*").split()[7:9] for line in lines] == [["11", "0.1235"], ["-", "-"]]
        assert [run["run"] for run in document["runs"]] == [first.id, second.id]
        metrics = document["runs"][0]["metrics"]
        assert list(metrics) == ["step", "loss", "loss_tag", "values", "problems"]
        assert (metrics["step"], metrics["loss_tag"]) == (11, "train_loss")
        assert metrics["loss"] == pytest.approx(0.123456)
        assert metrics["values"] == {"train_loss": metrics["loss"], "val_loss": 9.0}
        assert document["runs"][1]["metrics"]["loss"] is None

    def test_a_loss_that_is_no_number_is_a_text_in_json(
        self, run_program: RunProgram, start: Start, experiment: Path, write_events: Callable[..., Path]
    ) -> None:
        """JSON has no word for it, and a training that went wrong should be seen."""
        write_events(start(experiment).path, {"loss": {0: float("nan")}})

        output = run_program("ls", experiment, "--metrics", "--json").stdout

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        assert json.loads(output, parse_constant=refuse)["runs"][0]["metrics"]["loss"] == "nan"
        assert " nan " in run_program("ls", experiment, "--metrics").stdout

    def test_without_tensorboard_it_is_said_before_anything_is_listed(
        self, plain_environ: dict[str, str], finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """The exit code is 3 and the message says what to install."""
        finish_runs(experiment, 1)
        code = "import sys\nsys.modules['tensorboard'] = None\nfrom immutable_logs.cli import main\nmain()"

        completed = subprocess.run(
            [sys.executable, "-c", code, "ls", "--metrics"],
            cwd=experiment,
            env=plain_environ,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=60,
        )

        assert (completed.returncode, completed.stdout) == (3, "")
        assert "HINT: pip install tensorboard" in completed.stderr
        assert "Traceback" not in completed.stderr


class TestWatch:
    def test_the_table_is_drawn_again_until_ctrl_c(
        self, program: str, plain_environ: dict[str, str], start: Start, experiment: Path
    ) -> None:
        """A run that starts meanwhile appears; Ctrl-C ends with 130, without a traceback and with the cursor back."""
        first = start(experiment)
        ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        with subprocess.Popen(
            [program, "ls", experiment, "--watch"],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=plain_environ | {"TERM": "xterm"},
        ) as process:
            os.close(theirs)
            try:
                output = read_until(ours, first.id)
                second = start(experiment)
                output += read_until(ours, second.id)
                process.send_signal(signal.SIGINT)
                output += read_until(ours, None)
            finally:
                process.kill()
        os.close(ours)

        assert process.returncode == 130
        assert "Traceback" not in output
        assert output.rstrip().endswith("\x1b[?25h")

    @pytest.mark.parametrize(("options", "found"), [((), "a pipe or a file"), (("--json",), "--json")])
    def test_without_a_terminal_it_is_refused(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, options: tuple[str, ...], found: str
    ) -> None:
        """A pipe would get the same table again and again: wrong use, and stdout stays empty."""
        finish_runs(experiment, 1)

        completed = run_program("ls", experiment, "--watch", *options)

        assert (completed.returncode, completed.stdout) == (2, "")
        assert f"expected a terminal for --watch, found {found}" in completed.stderr


class TestCost:
    def test_finished_runs_cost_no_calls_of_their_own(
        self, children: Any, finish_runs: FinishRuns, tmp_path: Path
    ) -> None:
        """The manifest is read once and tells everything: twelve runs cost as many calls as two."""
        code = """
            from immutable_logs.catalog import Experiment
            seen = []
            def hook(event, arguments):
                if event in ("open", "os.scandir", "os.listdir") and str(arguments[0]).startswith(sys.argv[1]):
                    seen.append([event, str(arguments[0])[len(sys.argv[1]):]])
            sys.addaudithook(hook)
            Experiment(sys.argv[1]).listing()
            report(seen=list(seen))
        """
        seen = []
        for count in (2, 12):
            finish_runs(tmp_path / str(count), count)
            seen.append(children.start(code, tmp_path / str(count)).report()["seen"])

        assert seen[0] == seen[1] == [["open", "/runs/manifest.jsonl"], ["os.scandir", "/runs"]]


class TestDamage:
    def test_values_of_any_type_in_the_manifest_are_no_traceback(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """What somebody wrote there instead of a number or a text counts as unknown."""
        (run,) = finish_runs(experiment, 1)
        manifest = experiment / "runs" / "manifest.jsonl"
        lines = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
        lines[0] |= {"host": ["a"], "world_size": "many", "resumed_from": {"x": 1}, "lineage": 7, "job": []}
        lines[1] |= {"step": "x", "ranks_joined": "all"}
        manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

        completed = run_program("ls", experiment, "--graph", "--host", "x*")
        (found,) = listed(run_program("ls", experiment, "--json"))["runs"]

        assert (completed.returncode, "Traceback" in completed.stderr) == (0, False)
        assert (found["run"], found["host"], found["step"], found["resumed_from"]) == (run.id, None, None, None)
        assert found["ranks_joined"] == 1

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
        assert completed.stderr == f"Error: expected a file, found a directory; move it out of the way: {manifest}\n"


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

        completed = run_program("tensorboard", tmp_path)

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
