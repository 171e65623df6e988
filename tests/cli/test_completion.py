"""Completion, as the shells themselves ask for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs.run import Run

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
FinishRuns = Callable[[Path, int], list[Run]]
Complete = Callable[..., list[str]]


@pytest.fixture
def complete(run_program: RunProgram) -> Complete:
    """Returns what bash is told for a command line that ends where the cursor is."""

    def ask(words: str, *, cwd: Path) -> list[str]:
        completed = run_program(
            cwd=cwd,
            _IMMUTABLE_LOGS_COMPLETE="complete_bash",
            COMP_WORDS=words,
            COMP_CWORD=str(len(words.split(" ")) - 1),
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout.split()

    return ask


class TestWords:
    def test_references_are_completed_newest_first(
        self, complete: Complete, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """The shell offers `latest` and the ids."""
        runs = finish_runs(experiment, 2)

        assert complete("immutable-logs show ", cwd=experiment) == ["latest", runs[1].id, runs[0].id]
        assert complete(f"immutable-logs show {runs[0].id[:-1]}", cwd=experiment) == [runs[0].id]

    def test_the_experiment_of_the_command_line_is_the_one_that_counts(
        self, complete: Complete, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """`-e` is honoured before the reference."""
        runs = finish_runs(experiment, 1)

        assert complete("immutable-logs path -e experiment lat", cwd=experiment.parent) == ["latest"]
        assert complete("immutable-logs show --experiment experiment 2", cwd=experiment.parent) == [runs[0].id]

    def test_runs_before_the_latest_are_offered_from_the_tilde_on(
        self, complete: Complete, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """As many as there are before the one that `latest` shows; runs that are gone do not count."""
        runs = finish_runs(experiment, 4)
        shutil.rmtree(runs[1].path)

        assert complete("immutable-logs show latest~", cwd=experiment) == ["latest~1", "latest~2"]

    def test_no_experiment_completes_to_nothing(self, complete: Complete, tmp_path: Path) -> None:
        """The shell is not disturbed by an error."""
        assert complete("immutable-logs show ", cwd=tmp_path) == []

    def test_without_latest_it_is_not_offered(
        self, complete: Complete, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """What would be refused is not completed."""
        (run,) = finish_runs(experiment, 1)
        (experiment / "latest").unlink()

        assert complete("immutable-logs show ", cwd=experiment) == [run.id]

    def test_commands_options_and_statuses_are_completed(self, complete: Complete, tmp_path: Path) -> None:
        """Everything that has a fixed set of words is offered."""
        assert complete("immutable-logs te", cwd=tmp_path) == ["tensorboard"]
        assert complete("immutable-logs ls --wa", cwd=tmp_path) == ["--watch"]
        assert complete("immutable-logs ls --status f", cwd=tmp_path) == ["finished", "failed"]


SCRIPTS = {
    "bash": """
        eval "$(immutable-logs --show-completion)"
        COMP_WORDS=(immutable-logs show {beginning}); COMP_CWORD=2
        _immutable_logs_completion immutable-logs {beginning} show
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        autoload -U compinit && compinit -u -d {directory}/dump
        eval "$(immutable-logs --show-completion)"
        (( $+_comps[immutable-logs] )) || print missing
        _arguments() {{ print -r -- "$@"; }}
        words=(immutable-logs show {beginning}); CURRENT=3
        _immutable_logs_completion
    """,
    "fish": """
        immutable-logs --show-completion | source
        complete --do-complete 'immutable-logs show {beginning}'
    """,
}


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_the_shell_itself_completes_a_reference(
    shell: str, program: str, plain_environ: dict[str, str], finish_runs: FinishRuns, experiment: Path, tmp_path: Path
) -> None:
    """With what `--show-completion` prints, the shell offers the one run whose id begins so."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    runs = finish_runs(experiment, 2)
    script = tmp_path / "script"
    script.write_text(SCRIPTS[shell].format(beginning=runs[1].id[:-1], directory=tmp_path), encoding="utf-8")

    completed = subprocess.run(
        [shell, *(["-f"] if shell == "zsh" else []), script],
        cwd=experiment,
        env=plain_environ | {"PATH": f"{Path(program).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )

    assert completed.stderr == ""
    assert runs[1].id in completed.stdout
    assert runs[0].id not in completed.stdout
    assert "missing" not in completed.stdout
