"""Every command of the documentation is run by a test: here, or by the one that is named in `ELSEWHERE`."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs import start_run
from tests.page_shell import TIME_LIMIT, PageShell

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

RUN_AS_A_WHOLE = {
    ROOT / "docs" / name for name in ("tutorial.md", "how-to/without-nemo.md", "how-to/back-to-stock.md")
}
"""Pages that tests/nemo/test_pages_that_run.py runs from the first command to the last, with their output."""

TRAININGS = "nemo/launchers/test_commands_of_pages.py::test_trainings_of_the_pages"
SLURM = "nemo/launchers/slurm/test_how_to_page.py"
ELSEWHERE = {
    ("README.md", "python train.py exp_manager.log_layout=immutable"): (
        "nemo/test_pages_that_run.py::test_the_tutorial_begins_as_it_says"
    ),
    ("docs/how-to/mpi.md", "mpirun"): TRAININGS,
    ("docs/how-to/mpi.md", "IMMUTABLE_LOGS_LAUNCH_ID="): TRAININGS,
    ("docs/how-to/torchrun.md", "torchrun --standalone"): TRAININGS,
    ("docs/how-to/torchrun.md", "torchrun --nnodes=2"): TRAININGS,
    ("docs/how-to/torchrun.md", "srun"): f"{SLURM}::test_torchrun_in_a_step_of_the_page",
    ("docs/how-to/wandb-and-mlflow.md", "python train.py"): TRAININGS,
    ("docs/how-to/check-a-mount.md", "srun"): f"{SLURM}::test_two_nodes_try_a_mount",
    ("docs/how-to/roll-out.md", "srun"): f"{SLURM}::test_two_nodes_try_a_mount",
    ("docs/how-to/slurm.md", "#!/bin/bash"): f"{SLURM}::test_the_script_trains_and_is_requeued_at_the_signal",
}
"""The tests that run what needs NeMo or a launcher, by the page and how the command begins."""

INSTALLATION = r"(pip install path/to/immutable-logs|make test)$"
"""What the check of the whole project begins with, or is."""

WITHOUT_A_CLUSTER = r"kubectl create "
"""Not run: there is no Kubernetes. The manifests are read, and their variables tried in tests/launchers."""

GOES_ON = re.compile(r"--follow|--start|-- --port|^tensorboard ")
"""Commands that end when somebody ends them."""


def commands_of(page: Path) -> list[str]:
    """Return the commands of a page, in order: lines of `console` blocks after a dollar, and `bash` blocks, whole."""
    commands = []
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(console|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "bash":
            commands.append(block.strip())
        else:
            found = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)
            commands.extend(re.sub(r"\\\n\s*", "", each).strip() for each in found)
    return commands


def run_elsewhere(page: Path, command: str) -> str | None:
    """Return the test that runs a command of a page, if it is not run here."""
    name = str(page.relative_to(ROOT))
    found = [test for (where, begin), test in ELSEWHERE.items() if where == name and command.startswith(begin)]
    return found[0] if found else None


def is_run_here(page: Path, command: str) -> bool:
    """Tell whether a command needs neither NeMo nor a launcher."""
    return run_elsewhere(page, command) is None and not re.match(f"{INSTALLATION}|{WITHOUT_A_CLUSTER}", command)


def test_every_command_is_run_by_a_test() -> None:
    """What stands in a `console` or `bash` block: what is not run here is run by a test that exists, but for one."""
    used, nowhere = set(), []
    for page in [page for page in PAGES if page not in RUN_AS_A_WHOLE]:
        for command in commands_of(page):
            test = run_elsewhere(page, command)
            if test is not None:
                file, _, name = test.partition("::")
                assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), (page, command)
                used.add(test)
            elif re.match(WITHOUT_A_CLUSTER, command):
                nowhere.append(command)
    assert used == set(ELSEWHERE.values())
    assert nowhere == ["kubectl create --filename my-exp.yaml"]


@pytest.fixture
def place(tmp_path: Path, write_events: Callable[..., Path]) -> Path:
    """A directory with the experiments of the pages: three runs of three ranks, whose third failed; and old ones."""
    experiment = tmp_path / "my_exp"
    for index in range(3):
        with start_run(experiment) as run:
            for rank in range(3):
                log = run.path / f"nemo_log_globalrank-{rank}_localrank-{rank}.txt"
                log.write_text(f"[NeMo I 2026-12-01 13:5{index}:0{rank} trainer:1] step {rank}\n", encoding="utf-8")
        event_file = write_events(run.path, {"loss": {index: 1.0}}, start=0)
        with log.open("a", encoding="utf-8") as file:
            file.write("[NeMo E 2026-12-01 13:59:59 trainer:2] the loss is nan\n")
    lineage = experiment / "tensorboard" / run.id
    lineage.mkdir(parents=True)
    (lineage / f"0001_{event_file.name}").symlink_to(os.path.relpath(event_file, lineage))
    for above in ("nemo_experiments", "experiments", "scratch/me/nemo_experiments", "shared/nemo_experiments"):
        shutil.copytree(experiment, tmp_path / above / "my_exp", symlinks=True)
    (tmp_path / "shared" / "www").mkdir()
    month_ago = time.time() - 30 * 86400
    for name in ("asr", "old_exp"):
        old = tmp_path / "nemo_experiments" / name
        for directory in (old / "run_0", old):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "nemo_log_globalrank-0_localrank-0.txt").write_text(
                f"[NeMo I 2026-11-0{1 + (directory == old)} 08:00:00 exp_manager:1] Experiments will be logged\n",
                encoding="utf-8",
            )
            (directory / "cmd-args.log").write_text("train.py\n", encoding="utf-8")
        for path in [each for each in old.rglob("*") if each.is_file()]:
            os.utime(path, (month_ago, month_ago))
    return tmp_path


class Shell:
    """Runs commands as they stand on a page, but for the directories and the port that it names."""

    def __init__(self, place: Path, environ: dict[str, str]) -> None:
        self._place = place
        self._shell = PageShell(place, {**environ, "HOME": str(place)})

    def run(self, command: str) -> str:
        """Run a command to its end, or until it has printed something if it goes on; return what it prints."""
        command = re.sub(r"(?<![\w.])/(scratch|shared)\b", rf"{self._place}/\1", command).replace(" 6007", " 0")
        if GOES_ON.search(command):
            with self._shell.started(command) as popen:
                return self._until_it_speaks(popen)
        status, said = self._shell.run(command)
        assert status == 0, f"$ {command}\n{said}"
        assert "Traceback" not in said
        return said

    def _until_it_speaks(self, popen: subprocess.Popen[bytes]) -> str:
        """Return what a program has printed when it has said where it serves, or what a log holds."""
        assert popen.stdout is not None
        said = b""
        deadline = time.monotonic() + TIME_LIMIT
        while not re.search(rb"http://\S+|step \d", said):
            ready, _, _ = select.select([popen.stdout], [], [], deadline - time.monotonic())
            part = os.read(popen.stdout.fileno(), 4096) if ready else b""
            assert part, f"it has ended, or says nothing more: {said.decode()}"
            said += part
        return said.decode()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if page not in RUN_AS_A_WHOLE and any(is_run_here(page, command) for command in commands_of(page))
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_commands_of_the_page_work(page: Path, place: Path, plain_environ: dict[str, str]) -> None:
    """In the order of the page, in a directory that has what the page speaks of."""
    shell = Shell(place, plain_environ)
    for command in commands_of(page):
        if is_run_here(page, command):
            shell.run(command)
            if " undo " in command:  # the page goes on for those who have not undone it
                shell.run(command.replace(" undo ", " apply "))


@pytest.mark.parametrize(("theirs", "told"), [(None, "immutable"), ("moving", "moving")])
def test_task_prolog_leaves_the_choice_of_a_user(
    tmp_path: Path, plain_environ: dict[str, str], theirs: str | None, told: str
) -> None:
    """The script of the page on the roll-out prints what Slurm puts into the environment of the task."""
    (script,) = [each for each in commands_of(ROOT / "docs/how-to/roll-out.md") if each.startswith("#!")]
    environ = {**plain_environ, **({"NEMO_LOG_LAYOUT": theirs} if theirs else {})}

    assert Shell(tmp_path, environ).run(script) == f"export NEMO_LOG_LAYOUT={told}\n"
