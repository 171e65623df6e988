"""Launch once for every file-system operation of a launch, and disturb that one operation.

Started by the tests as a program, so that the launches can be forked from a process without threads. It stands
between `immutable_logs` and `os`, does the same launch again and again, each time in an experiment of its own, and
kills it, or lets the operation fail, at the first, second, … operation. Prints one JSON object for each launch.

    disturbed_launches.py DIRECTORY STATE HOW [ERRNO]
    disturbed_launches.py EXPERIMENT

STATE is ``first`` (the experiment does not exist), ``used`` (two runs are there) or ``shared`` (a rank zero whose
launch key a later launch can have too). HOW is ``before``, ``after`` or ``torn`` (killed there; ``torn`` only at
writes), ``short`` (a write takes half of what it is given), ``error`` (this operation fails) or ``errors`` (it and all
later changes fail). With nothing but an experiment it launches once there, undisturbed.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from immutable_logs import errors, run

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGES = frozenset(
    ("mkdir", "open", "write", "fsync", "symlink", "replace", "utime", "chown", "unlink", "rmdir"),
)
LOOKS = frozenset(("readlink", "lstat", "stat", "fstat", "pread", "scandir"))


class DisturbedOs:
    """Passes everything on to `os`, counts the operations, and disturbs one of them."""

    def __init__(self, disturb_at: int, how: str, number: int) -> None:
        self.done: list[tuple[str, str]] = []
        self._at = disturb_at
        self._how = how
        self._number = number

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        is_watched = name in CHANGES or (name in LOOKS and self._how.startswith("error"))
        return functools.partial(self._operate, name, real) if is_watched else real

    def _operate(self, name: str, real: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        step = len(self.done)
        self.done.append((name, str(arguments[0])))
        if step == self._at:
            if self._how == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._how == "torn" and name == "write":
                os.write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            if self._how == "short":
                return os.write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        if (step == self._at and self._how == "error") or (
            0 <= self._at <= step and self._how == "errors" and name in CHANGES
        ):
            names = [os.fspath(each) for each in arguments[:2] if isinstance(each, (str, os.PathLike))]
            first, second = (*names, None, None)[:2]
            raise OSError(self._number, os.strerror(self._number), first, None, second)
        try:
            return real(*arguments, **options)
        finally:
            if step == self._at and self._how == "after":
                os.kill(os.getpid(), signal.SIGKILL)


class Warnings(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        self.texts.append(record.getMessage())


def launch(experiment: Path, disturbed: DisturbedOs) -> dict[str, Any]:
    """Do what a training does, and tell how it went."""
    for name, module in list(sys.modules.items()):
        if name.startswith("immutable_logs") and getattr(module, "os", None) is os:
            module.os = disturbed  # type: ignore[attr-defined]
    warnings = Warnings()
    logging.getLogger("immutable_logs").addHandler(warnings)
    told: dict[str, Any] = {"joined": None, "error": None, "warnings": warnings.texts}
    try:
        begun = run.begin_run(experiment)
    except errors.AgreementError as error:
        told["error"] = str(error)
    else:
        told["joined"] = begun.id
        begun.record(git_commit="c0ffee")
        begun.publish()
        begun.note_step(7)
        begun.finish()
    return {**told, "operations": disturbed.done}


def launch_in_child(experiment: Path, at: int, how: str, number: int) -> tuple[int, Any]:
    """Return the exit status of a forked launch and what it told, if it lived to tell."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            told = launch(experiment, DisturbedOs(at, how, number))
            with os.fdopen(writing, "w") as file:
                json.dump(told, file)
            os._exit(0)
        finally:
            os._exit(70)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(text) if text else None


def main() -> None:
    """Launch undisturbed to learn the operations, then once for each of them."""
    if len(sys.argv) == 2:
        print(json.dumps(launch(Path(sys.argv[1]), DisturbedOs(-1, "error", 0))))
        return
    directory, state, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    number = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    template = directory / "template"
    if state == "used":
        for _ in range(2):
            run.start_run(template).finish()
    if state == "shared":
        os.environ.update(RANK="0", MASTER_ADDR="node1", MASTER_PORT="29500")

    def prepare(name: str) -> Path:
        experiment = directory / name
        if template.exists():
            shutil.copytree(template, experiment, symlinks=True)
        return experiment

    status, told = launch_in_child(prepare("undisturbed"), -1, how, number)
    assert status == 0, told
    for at, (operation, path) in enumerate(told["operations"]):
        if how in ("torn", "short") and operation != "write":
            continue
        experiment = prepare(f"{at:03d}")
        status, result = launch_in_child(experiment, at, how, number)
        case = f"{how} step {at}: {operation} {path.removeprefix(str(directory))}"
        print(json.dumps({"case": case, "experiment": str(experiment), "status": status, "told": result}))


if __name__ == "__main__":
    main()
