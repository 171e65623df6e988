from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from immutable_logs.layout import RunLayout
from immutable_logs.run import Run

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Run]
FinishRuns = Callable[[Path, int], list[Run]]

REAL_LOGS = Path(__file__).parents[1] / "log_reading" / "real_logs"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
"""Characters that can act on a terminal."""

HANG_GUARD = 60.0


def write(run: Run, rank: int, text: str | bytes) -> Path:
    """Append to the log of a rank."""
    path = RunLayout(run.path).rank_log(rank, rank)
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


def documented(heading: str) -> list[str]:
    """Return the first column of the table on the page under the command that has a heading."""
    (section,) = re.findall(r"^## `logs`\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (table,) = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", section, re.MULTILINE)
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def line(second: int, text: str, level: str = "I") -> str:
    """Return a line of NeMo's form."""
    return f"[NeMo {level} 2026-12-01 12:00:{second:02d} a:1] {text}\n"


@pytest.fixture
def three_ranks(start: Start, experiment: Path) -> Run:
    """A run with logs of three ranks."""
    run = start(experiment, world_size=3)
    write(run, 0, line(1, "a") + line(3, "b", "W") + "    more\n")
    write(run, 1, line(2, "c"))
    write(run, 2, line(3, "d", "E"))
    return run


def lines(completed: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of a command that did what it was asked for."""
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.splitlines()


def test_the_logs_of_all_ranks_are_one(run_program: RunProgram, three_ranks: Run, experiment: Path) -> None:
    """By time, each line with its rank, without colours where nobody looks."""
    assert lines(run_program("logs", cwd=experiment)) == [
        "[0] [NeMo I 2026-12-01 12:00:01 a:1] a",
        "[1] [NeMo I 2026-12-01 12:00:02 a:1] c",
        "[0] [NeMo W 2026-12-01 12:00:03 a:1] b",
        "[0]     more",
        "[2] [NeMo E 2026-12-01 12:00:03 a:1] d",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--rank", "0"], "abmore"),
        (["-r", "0,2-7"], "abmored"),
        (["--since", "2026-12-01T12:00:03"], "bmored"),
        (["--grep", "mor|c$"], "cbmore"),
        (["-n", "1"], "d"),
        (["-r", "0-1", "-n", "2"], "cbmore"),
        (["-n", "0"], ""),
        (["--since", "2027-01-01"], ""),
    ],
)
def test_what_is_wanted_can_be_narrowed(
    run_program: RunProgram, three_ranks: Run, experiment: Path, options: list[str], expected: str
) -> None:
    """By rank, time, pattern and number; what matches nothing is no error."""
    found = lines(run_program("logs", *options, cwd=experiment))

    assert "".join(each.split()[-1] for each in found) == expected


def test_a_length_of_time_is_counted_in_the_zone_of_the_logs(
    run_program: RunProgram, start: Start, experiment: Path
) -> None:
    """`--since 10m` is right too for logs from a container with another zone than this machine's."""
    run = start(experiment)
    there = time.time() + 5 * 3600
    for ago in (3600, 60):
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(there - ago))
        write(run, 0, f"[NeMo I {moment} a:1] {ago}\n")

    assert [each.split()[-1] for each in lines(run_program("logs", "--since", "10m", cwd=experiment, TZ="UTC"))] == [
        "60"
    ]


def test_ranks_have_colours_on_demand(run_program: RunProgram, three_ranks: Run, experiment: Path) -> None:
    """One for each rank, red for errors; never with NO_COLOR."""
    coloured = lines(run_program("logs", cwd=experiment, FORCE_COLOR="1"))
    plain = lines(run_program("logs", cwd=experiment, FORCE_COLOR="1", NO_COLOR="1"))

    prefixes = {each.partition(" ")[0] for each in coloured}
    assert len(prefixes) == len({prefix.partition("m")[0] for prefix in prefixes}) == 3
    assert coloured[-1].endswith("\x1b[31m[NeMo E 2026-12-01 12:00:03 a:1] d\x1b[0m")
    assert [re.sub(r"\x1b\[[\d;]*m", "", each) for each in coloured] == plain


def test_json_is_one_object_for_each_entry(run_program: RunProgram, three_ranks: Run, experiment: Path) -> None:
    """So that a reader needs no more memory than the program; its keys are documented."""
    documents = [json.loads(each) for each in lines(run_program("logs", "--json", cwd=experiment))]

    assert [document["text"].split()[-1] for document in documents] == ["a", "c", "more", "d"]
    assert list(documents[2]) == documented("key")
    assert documents[2] == {
        "format": 1,
        "run": three_ranks.id,
        "rank": 0,
        "file": "nemo_log_globalrank-0_localrank-0.txt",
        "time": "2026-12-01 12:00:03",
        "level": "warning",
        "text": "[NeMo W 2026-12-01 12:00:03 a:1] b\n    more",
    }


def test_nothing_in_a_log_acts_on_the_terminal(run_program: RunProgram, start: Start, experiment: Path) -> None:
    """Of a progress bar the last state is shown, colours are left out, all else is shown as escapes."""
    run = start(experiment)
    write(run, 0, line(1, "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202eback\x1b[2J") + "\r 1%\r 2%\r100%\n" + "\xe9\n")
    (run.path / "od\x1b[7md.log").write_text("x\x9by\n", encoding="latin-1")

    for arguments in ((), ("--json",), ("--errors",), ("--errors", "--json"), ("-g", "red")):
        completed = run_program("logs", *arguments, cwd=experiment)
        assert completed.returncode == 0
        assert not ACTING.search(completed.stdout + completed.stderr), arguments
    found = lines(run_program("logs", cwd=experiment))

    assert "[0] [NeMo I 2026-12-01 12:00:01 a:1] red \\x1b]0;title\\x07 \\u202eback\\x1b[2J" in found
    assert "[0] 100%" in found
    assert "[od\\x1b[7md.log] x�y" in found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "x"], "expected --rank to be such as 3 or 0,3-7, found 'x'"),
        (["--rank", "5-3"], "expected --rank to be such as"),
        (["--since", "yesterday"], "expected --since to be a length of time"),
        (["--grep", "("], "expected --grep to be a regular expression"),
        (["--errors", "--follow"], "expected --errors alone"),
        (["-n", "-1"], "Invalid value for '-n'"),
        (["latest~1"], "there are only 0 runs before the latest one"),
    ],
)
def test_wrong_use_is_explained(
    run_program: RunProgram, three_ranks: Run, experiment: Path, options: list[str], message: str
) -> None:
    """Exit code 2, nothing on stdout."""
    completed = run_program("logs", *options, cwd=experiment)

    assert (completed.returncode, completed.stdout) == (2, "")
    assert message in completed.stderr


@pytest.mark.parametrize("options", [[], ["--errors"], ["--json"], ["--errors", "--json"]])
def test_a_run_without_logs_is_no_error(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, options: list[str]
) -> None:
    """There is nothing to show, which is said."""
    finish_runs(experiment, 1)

    completed = run_program("logs", *options, cwd=experiment)

    assert completed.returncode == 0
    assert completed.stderr
    assert "Traceback" not in completed.stderr


def test_without_runs_or_an_experiment_it_is_wrong_use(
    run_program: RunProgram, experiment: Path, tmp_path: Path
) -> None:
    """The same errors as those of the other commands."""
    (experiment / "runs").mkdir(parents=True)
    nothing = tmp_path / "nothing"
    nothing.mkdir()

    for directory in (experiment, nothing, tmp_path / "missing"):
        for options in ([], ["--errors"], ["--follow"]):
            completed = run_program("logs", "-e", directory, *options)
            assert (completed.returncode, completed.stdout) == (2, "")
            assert completed.stderr.startswith("Error: ")


def test_a_damaged_manifest_and_a_foreign_latest_hide_no_log(
    run_program: RunProgram, three_ranks: Run, experiment: Path
) -> None:
    """A run is found by its id; `latest` is the user's own."""
    (experiment / "runs" / "manifest.jsonl").write_bytes(b'{"torn\n\xff\xfe\n')
    (experiment / "latest").unlink()
    (experiment / "latest").symlink_to("elsewhere")

    assert len(lines(run_program("logs", three_ranks.id, cwd=experiment))) == 5
    completed = run_program("logs", cwd=experiment)
    assert completed.returncode == 2
    assert "there is no link 'latest' that shows a run" in completed.stderr


def test_a_run_whose_directory_is_gone_is_an_error(
    run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
) -> None:
    """The message says where it was."""
    runs = finish_runs(experiment, 2)
    shutil.rmtree(runs[0].path)

    completed = run_program("logs", runs[0].id, cwd=experiment)

    assert completed.returncode == 3
    assert completed.stderr == f"Error: the directory of this run is gone (missing): {runs[0].path}\n"


def test_it_only_reads(run_program: RunProgram, three_ranks: Run, experiment: Path) -> None:
    """Also where nothing may be written."""
    before = {path: path.lstat().st_mtime_ns for path in experiment.rglob("*")}
    for directory in (three_ranks.path, experiment / "runs", experiment):
        directory.chmod(0o555)
    try:
        for options in ([], ["--errors"], ["-n", "2"]):
            assert run_program("logs", *options, cwd=experiment).returncode == 0
    finally:
        for directory in (three_ranks.path, experiment / "runs", experiment):
            directory.chmod(0o755)

    assert {path: path.lstat().st_mtime_ns for path in experiment.rglob("*")} == before


def test_a_reader_that_stops_early_is_no_error(
    program: str, plain_environ: dict[str, str], three_ranks: Run, experiment: Path
) -> None:
    """`immutable-logs logs | head -1` is silent, however much there is."""
    write(three_ranks, 0, line(5, "x" * 100) * 20_000)
    with subprocess.Popen(
        [program, "logs"], cwd=experiment, env=plain_environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()

    assert (errors, process.returncode) == (b"", 128 + signal.SIGPIPE)


class TestErrors:
    @pytest.fixture
    def run_of(self, start: Start, experiment: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Run]:
        """Makes a run of four ranks with the logs of a real training."""

        def make(name: str) -> Run:
            run = start(experiment, world_size=4)
            for path in (REAL_LOGS / name).iterdir():
                shutil.copy2(path, run.path)
            run.finish("failed", error="RuntimeError: Connection closed by peer")
            return run

        return make

    def test_the_rank_that_raised_is_named_on_top(
        self, run_program: RunProgram, run_of: Callable[[str], Run], experiment: Path
    ) -> None:
        """The ranks that only lost their connection are one, and come after it."""
        run_of("raised")

        found = lines(run_program("logs", "--errors", cwd=experiment))

        assert found[0] == "Rank 2 failed first, at 2026-12-01 13:35:37.133: ValueError: the loss is not a number"
        (other,) = [each for each in found if each.startswith("Ranks ")]
        assert other.startswith("Ranks 0-1, 3 at 2026-12-01 13:35:39.867, which tells only that another rank was gone")
        assert "    Traceback (most recent call last):" in "\n".join(found)

    def test_a_rank_that_was_killed_is_known_by_its_silence(
        self, run_program: RunProgram, run_of: Callable[[str], Run], experiment: Path
    ) -> None:
        """It cannot leave an error: all others tell that one was gone."""
        run_of("killed")

        found = lines(run_program("logs", "--errors", cwd=experiment))

        assert found[0] == "No rank tells what went wrong first"
        assert found[2].startswith("Rank 2 alone left no error, and wrote last at 2026-12-01 13:36:16")
        assert "it may have been killed" in found[2]

    def test_a_killed_rank_without_a_log_has_no_last_line(
        self, run_program: RunProgram, run_of: Callable[[str], Run], experiment: Path
    ) -> None:
        """As under NeMo 3, where a rank writes a log only if it is told to."""
        run = run_of("killed")
        (log,) = run.path.glob("nemo_log_globalrank-2_*")
        log.unlink()
        entry = RunLayout(run.path).rank_entry(0)
        document = json.loads(entry.read_text(encoding="utf-8")) | {"global_rank": 2}
        entry.with_name("rank-000002.json").write_text(json.dumps(document), encoding="utf-8")

        found = lines(run_program("logs", "--errors", cwd=experiment))

        assert found[2].startswith("Rank 2 alone left no error, and has no log")
        told = run_program("logs", "--rank", "2", cwd=experiment)
        assert told.stdout == ""
        assert told.stderr.startswith(f"No log of rank 2 in run {run.id}. HINT: with exp_manager.log_every_rank=true")

    def test_the_json_object_has_the_documented_keys(
        self, run_program: RunProgram, run_of: Callable[[str], Run], experiment: Path
    ) -> None:
        """One object in all."""
        run = run_of("raised")

        document = json.loads(run_program("logs", "--errors", "--json", cwd=experiment).stdout)

        assert list(document) == documented("key of `--errors`")
        assert (document["run"], document["status"]) == (run.id, "failed")
        assert document["first"] == document["errors"][0]
        assert document["first"]["ranks"] == [2]
        assert [each["is_echo"] for each in document["errors"]] == [False, True]
        assert document["without_error"] == []

    def test_ranks_can_be_chosen(
        self, run_program: RunProgram, run_of: Callable[[str], Run], experiment: Path
    ) -> None:
        """Then the others are not read, and not named."""
        run_of("raised")

        document = json.loads(run_program("logs", "--errors", "-r", "1,3", "--json", cwd=experiment).stdout)

        assert document["first"] is None
        assert [each["ranks"] for each in document["errors"]] == [[1, 3]]

    def test_the_end_record_tells_the_error_of_rank_zero(
        self, run_program: RunProgram, start: Start, experiment: Path
    ) -> None:
        """Where nothing is in any log, as of a program without logs."""
        run = start(experiment, world_size=1)
        run.finish("failed", error=ValueError("no such corpus"))

        found = lines(run_program("logs", "--errors", cwd=experiment))

        assert found[0].startswith("Rank 0 failed first, at 20")
        assert found[0].endswith(": ValueError: no such corpus")

    def test_a_run_that_went_well_has_no_error(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """Which is said, with how the run stands."""
        (run,) = finish_runs(experiment, 1)

        assert lines(run_program("logs", "--errors", cwd=experiment)) == [
            f"No error in the logs of run {run.id}, which is finished (end record)"
        ]

    def test_ranks_without_a_log_are_said_to_have_none(
        self,
        run_program: RunProgram,
        start: Start,
        join: Callable[[Path, int], None],
        experiment: Path,
        monkeypatch: Any,
    ) -> None:
        """NeMo 3 gives them one only when it is told to."""
        for name, value in {"IMMUTABLE_LOGS_LAUNCH_ID": "x", "WORLD_SIZE": "4", "RANK": "0"}.items():
            monkeypatch.setenv(name, value)
        run = start(experiment)
        join(experiment, 4)
        write(run, 0, line(1, "bad", "E"))

        found = lines(run_program("logs", "--errors", cwd=experiment))

        assert found[0] == "Rank 0 failed first, at 2026-12-01 12:00:01: bad"
        assert found[-1] == "  without a log: 1-3 (exp_manager.log_every_rank=true gives each rank one)"

    def test_a_log_that_cannot_be_read_is_named(
        self, run_program: RunProgram, three_ranks: Run, experiment: Path
    ) -> None:
        """On stderr, and in the JSON object; the others are read and searched."""
        loop = three_ranks.path / "rank7.log"
        loop.symlink_to(loop.name)

        searched = run_program("logs", "--errors", cwd=experiment)
        document = json.loads(run_program("logs", "--errors", "--json", cwd=experiment).stdout)
        merged = run_program("logs", "-n", "9", cwd=experiment)

        assert searched.returncode == merged.returncode == 0
        assert searched.stdout.startswith("Rank 2 failed first")
        assert len(merged.stdout.splitlines()) == 5
        problem = f"Too many levels of symbolic links: {loop}"
        assert document["problems"] == [problem]
        assert f"Warning: a log cannot be read: {problem}\n" in searched.stderr
        assert "no error" not in merged.stderr


class Follower:
    """The command while it follows, and what it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self.output = output

    def wait_for(self, text: str) -> str:
        """Wait until a text was printed, and return everything up to then."""
        deadline = time.monotonic() + HANG_GUARD
        while text not in (printed := self.output.read_text(encoding="utf-8")):
            assert self.process.poll() is None or text in self.output.read_text(encoding="utf-8"), printed
            assert time.monotonic() < deadline, f"{text!r} did not come:\n{printed}"
            time.sleep(0.05)
        return printed

    def interrupt(self) -> int:
        """Press Ctrl-C, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(HANG_GUARD)


class TestFollow:
    @pytest.fixture
    def follow(
        self, program: str, plain_environ: dict[str, str], experiment: Path, tmp_path: Path
    ) -> Iterator[Callable[..., Follower]]:
        """Starts the command in the experiment; its stdout and stderr go into one file."""
        started: list[subprocess.Popen[bytes]] = []

        def start_one(*arguments: str) -> Follower:
            output = tmp_path / f"followed_{len(started)}.txt"
            with output.open("wb") as stream:
                process = subprocess.Popen(
                    [program, "logs", "--follow", *arguments],
                    cwd=experiment,
                    env=plain_environ,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                )
            started.append(process)
            return Follower(process, output)

        yield start_one
        for process in started:
            process.kill()
            process.wait()

    def test_what_other_processes_write_is_shown(
        self, follow: Callable[..., Follower], children: Any, three_ranks: Run
    ) -> None:
        """The last entries first, then what ranks append, also in logs that appear later, until Ctrl-C."""
        following = follow()
        following.wait_for("[2] [NeMo E 2026-12-01 12:00:03 a:1] d\n")
        code = """
            for number in range(3):
                with open(sys.argv[1], "a") as log:
                    log.write(f"[NeMo I 2026-12-01 12:00:1{number} a:1] step {number}\\n")
                time.sleep(0.3)
            report()
            """
        writers = [children.start(code, RunLayout(three_ranks.path).rank_log(rank, rank)) for rank in (1, 5)]
        for writer in writers:
            writer.reports()

        printed = following.wait_for("[5] [NeMo I 2026-12-01 12:00:12 a:1] step 2\n")
        printed = following.wait_for("[1] [NeMo I 2026-12-01 12:00:12 a:1] step 2\n")
        assert following.interrupt() == 130
        assert "Traceback" not in printed
        for rank in (1, 5):
            steps = re.findall(rf"^\[{rank}\] .* step (\d)$", printed, re.MULTILINE)
            assert steps == ["0", "1", "2"]

    def test_it_goes_on_to_the_next_run_when_latest_switches(
        self, follow: Callable[..., Follower], start: Start, three_ranks: Run, experiment: Path
    ) -> None:
        """As after a requeue: the last words of the run before are shown too."""
        following = follow()
        following.wait_for("] d\n")
        write(three_ranks, 0, line(20, "last step"))
        three_ranks.finish("interrupted")
        following.wait_for(f"Run {three_ranks.id} is over: interrupted (end record). Waiting for the next run")
        next_run = start(experiment)
        write(next_run, 0, line(30, "first step"))
        following.wait_for(
            f"`latest` shows the next run now: {next_run.id}\n[0] [NeMo I 2026-12-01 12:00:30 a:1] first step\n"
        )
        write(three_ranks, 1, line(31, "last words"))

        printed = following.wait_for("[1] [NeMo I 2026-12-01 12:00:31 a:1] last words\n")
        assert "last step" in printed
        assert following.interrupt() == 130

    def test_a_run_that_was_named_is_followed_to_its_end(
        self, follow: Callable[..., Follower], start: Start, three_ranks: Run, experiment: Path
    ) -> None:
        """It does not go on to another, and ends by itself."""
        following = follow(three_ranks.id, "-n", "1")
        following.wait_for("] d\n")
        start(experiment)
        write(three_ranks, 0, line(20, "last step") + "[NeMo I 2026-12-01 12:00:21 a:1] without an end")
        three_ranks.finish()

        assert following.process.wait(HANG_GUARD) == 0
        assert following.output.read_text(encoding="utf-8").splitlines() == [
            "[2] [NeMo E 2026-12-01 12:00:03 a:1] d",
            "[0] [NeMo I 2026-12-01 12:00:20 a:1] last step",
            "[0] [NeMo I 2026-12-01 12:00:21 a:1] without an end",
            f"Run {three_ranks.id} is over: finished (end record)",
        ]

    def test_a_run_that_is_over_is_shown_and_ends(
        self, run_program: RunProgram, three_ranks: Run, start: Start, experiment: Path
    ) -> None:
        """There is nothing to wait for."""
        three_ranks.finish()
        start(experiment)

        completed = run_program("logs", three_ranks.id, "--follow", cwd=experiment)

        assert len(lines(completed)) == 5
        assert completed.stderr == f"Run {three_ranks.id} is over: finished (end record)\n"

    def test_a_run_that_was_killed_is_over(self, run_program: RunProgram, children: Any, experiment: Path) -> None:
        """No end is recorded, but its process is seen to be gone."""
        code = """
            import signal
            from immutable_logs import start_run
            run = start_run(sys.argv[1])
            (run.path / "rank0.log").write_text("last line\\n")
            report(run=run.id)
            os.kill(os.getpid(), signal.SIGKILL)
            """
        (report,) = children.start(code, experiment).reports(status=-signal.SIGKILL)

        completed = run_program("logs", report["run"], "--follow", cwd=experiment)

        assert lines(completed) == ["[0] last line"]
        assert completed.stderr.startswith(f"Run {report['run']} is over: unknown (process ")

    def test_a_silent_run_of_another_host_is_followed_on(
        self, follow: Callable[..., Follower], three_ranks: Run
    ) -> None:
        """It may write again."""
        entry = RunLayout(three_ranks.path).rank_entry(0)
        entry.write_text(re.sub(r'"(host|boot_id)": "[^"]*"', r'"\1": "elsewhere"', entry.read_text()))
        for path in (*three_ranks.path.iterdir(), three_ranks.path):
            os.utime(path, (10**9, 10**9))
        following = follow(three_ranks.id)
        following.wait_for("] d\n")
        write(three_ranks, 0, line(20, "more"))

        following.wait_for("] more\n")
        assert following.interrupt() == 130

    def test_a_reader_that_goes_away_ends_it(
        self, program: str, plain_environ: dict[str, str], three_ranks: Run, experiment: Path
    ) -> None:
        """As with `immutable-logs logs -f | head -1`: at the next line."""
        with subprocess.Popen(
            [program, "logs", "-f"], cwd=experiment, env=plain_environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            write(three_ranks, 0, line(20, "more"))
            errors = process.stderr.read()

        assert (errors, process.returncode) == (b"", 128 + signal.SIGPIPE)
