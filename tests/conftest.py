"""What the tests of all folders share: an experiment, children that are always reaped, a launcher-free environment."""

from __future__ import annotations

import errno
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from immutable_logs import Experiment
from immutable_logs import run as run_module
from immutable_logs.cli.documents import experiment_document
from immutable_logs.errors import ImmutableLogsError
from immutable_logs.launchers.detection import ProcessLaunch
from tests.second_reader import read_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_LAUNCHER_PREFIXES = (
    "SLURM_",
    "OMPI_",
    "PMI",
    "PALS_",
    "FLUX_",
    "JSM_",
    "LSB_",
    "MPI_",
    "TORCHELASTIC_",
    "GROUP_",
    "ROLE_",
    "_IMMUTABLE_LOGS",
    "IMMUTABLE_LOGS",
)
_LAUNCHER_NAMES = frozenset(
    ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
)


NEEDS = {"links", "times of links", "permissions", "names"}
"""What not every file system has, and the mark `needs` can name: links, times of their own for them, permissions and
groups, names of any characters."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says what the file system under the temporary directories has not."""
    parser.addoption("--mount-lacks", default="", help="leave out the tests that need one of these, with commas")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need what the file system has not."""
    lacking = set(filter(None, config.getoption("--mount-lacks").split(",")))
    named = {feature for item in items for mark in item.iter_markers("needs") for feature in mark.args}
    if unknown := (lacking | named) - NEEDS:
        raise pytest.UsageError(f"expected some of {sorted(NEEDS)}, found {sorted(unknown)}")
    lost = [item for item in items if any(lacking.intersection(mark.args) for mark in item.iter_markers("needs"))]
    if lost:
        config.hook.pytest_deselected(items=lost)
        items[:] = [item for item in items if item not in lost]


def pytest_configure() -> None:
    """Let Ctrl-C reach the children that tests send it to.

    A shell starts what it puts in the background with SIGINT ignored, and every child inherits that.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


HANG_GUARD = 100.0
"""Seconds after which a child is given up; no test waits that long unless something hangs."""

LARGE_MANIFEST = 1 << 26
"""Bytes from which on a manifest is left out of the comparison of readers, which would read it whole."""

BROWSER_TIME = 60.0
"""Seconds until a browser that does not answer is given up."""

WIDEST_PHONE = 400
"""Pages are opened as on a phone up to this width in pixels."""


def is_launcher_variable(name: str) -> bool:
    """Tell whether a variable of the environment could be taken for a launcher's."""
    return name in _LAUNCHER_NAMES or name.startswith(_LAUNCHER_PREFIXES)


@pytest.fixture(autouse=True)
def fresh_launch(second_opinion: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each test begin as a process that no launcher started and that has joined no run."""
    del second_opinion  # requested first, so that it looks when all patches are undone
    for name in [name for name in os.environ if is_launcher_variable(name)]:
        monkeypatch.delenv(name)
    # Also puts back what the code under test exports.
    monkeypatch.setenv("_IMMUTABLE_LOGS_PARENT_LAUNCH", "")
    monkeypatch.setattr(run_module, "_process_launch", ProcessLaunch())
    yield
    run_module.finish_open_runs("finished")


@pytest.fixture
def second_opinion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the reader that was written from the specification alone see every experiment that a test leaves."""
    yield
    directory = getattr(request.node, "funcargs", {}).get("tmp_path")
    if directory is not None:
        for parent, directories, _ in os.walk(directory):
            if "runs" in directories:
                assert_same_runs(Path(parent))


def assert_same_runs(experiment: Path) -> None:
    """Compare what `immutable-logs ls --json` and `second_reader.py` make of an experiment."""
    manifest = experiment / "runs" / "manifest.jsonl"
    if manifest.is_file() and manifest.stat().st_size > LARGE_MANIFEST:
        return
    found = [
        _runs_or_error(lambda: experiment_document(Experiment(experiment), now=time.time())["runs"]),
        _runs_or_error(lambda: read_runs(experiment)),
    ]
    for run in (run for runs in found if isinstance(runs, list) for run in runs):
        if run["status"] == "running":
            run["duration_seconds"] = None  # up to now
        elif run["duration_seconds"] is not None:
            run["duration_seconds"] = pytest.approx(run["duration_seconds"], abs=0.0011)  # half a millisecond, rounded
        for key in ("experiment", "evidence"):  # which directory was asked for, and in what words
            run.pop(key, None)
    assert found[0] == found[1], f"what `ls` and the second reader say of {experiment}"


def _runs_or_error(read: Callable[[], list[Any]]) -> list[Any] | str:
    try:
        return read()
    except (OSError, ImmutableLogsError):
        return "error"


def shown_by_latest(experiment: Path) -> Path | None:
    """Return the run directory that a user finds by `latest`, or by `runs/latest.txt` where the mount has no links."""
    latest = experiment / "latest"
    if os.path.lexists(latest):
        return latest.resolve()
    text = experiment / "runs" / "latest.txt"
    if not text.exists():
        return None
    with pytest.raises(OSError, match="not"):
        (experiment / "a link").symlink_to("runs")  # the file is for mounts without links alone
    return experiment.resolve() / "runs" / text.read_text(encoding="ascii").strip()


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """The path of an experiment that does not exist yet."""
    return tmp_path / "experiment"


@dataclass
class Child:
    """A child process that reports by printing JSON objects, one a line."""

    popen: subprocess.Popen[str]
    is_gated: bool = False

    def wait_until_ready(self) -> None:
        """Wait until the child has got to its `gate()`."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line == "ready\n", line + "".join(self.communicate())

    def communicate(self) -> tuple[str, str]:
        """Wait for the end of the child and return what it printed."""
        output, errors = self.popen.communicate(timeout=HANG_GUARD)
        return output, errors

    def reports(self, *, status: int = 0) -> list[Any]:
        """Wait for the end of the child, see that it ended as expected, and return everything it reported."""
        output, errors = self.communicate()
        assert self.popen.returncode == status, f"status {self.popen.returncode}, expected {status}:\n{errors}"
        return [json.loads(line) for line in output.splitlines()]

    def report(self) -> Any:
        """Return the one report of a child that ended well."""
        (only,) = self.reports()
        return only


_PREAMBLE = """\
import json, os, sys, time
def report(**values):
    os.write(1, json.dumps(values, default=str).encode() + b"\\n")  # one write: children share the pipe
def gate():
    print("ready", flush=True)
    sys.stdin.read()
"""


@dataclass
class Children:
    """Starts Python children, can hold them all at a gate, and reaps them."""

    directory: Path
    started: list[Child] = field(default_factory=list)
    _gate: tuple[IO[str], IO[str]] | None = None

    def start(
        self, code: str, *arguments: object, environ: Mapping[str, str] | None = None, is_gated: bool = False
    ) -> Child:
        """Start a script.

        Args:
            code: The script; `report(**values)` and `gate()` are defined.
            arguments: Its command line.
            environ: Variables to set beyond those of the tests, which have none of a launcher.
            is_gated: The script calls `gate()`, which returns in all gated children at once, at `open_gate`.
        """
        script = self.directory / f"script_{len(self.started)}.py"
        script.write_text(_PREAMBLE + textwrap.dedent(code), encoding="utf-8")
        if is_gated and self._gate is None:
            reading, writing = os.pipe()
            self._gate = os.fdopen(reading), os.fdopen(writing, "w")
        popen = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            stdin=self._gate[0] if is_gated and self._gate else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, **(environ or {})},
        )
        child = Child(popen, is_gated)
        self.started.append(child)
        return child

    def open_gate(self) -> None:
        """Let all gated children go on, once the last of them has got to its gate."""
        assert self._gate is not None
        for child in self.started:
            if child.is_gated:
                child.wait_until_ready()
                child.is_gated = False
        self._close_gate()

    def _close_gate(self) -> None:
        if self._gate is not None:
            for end in self._gate[::-1]:
                end.close()
            self._gate = None

    def reap(self) -> None:
        """End what still runs, and wait for everything."""
        self._close_gate()
        for child in self.started:
            if child.popen.poll() is None:
                child.popen.kill()
            child.popen.wait()
            for stream in (child.popen.stdout, child.popen.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Starts child processes; none outlives the test."""
    started = Children(tmp_path_factory.mktemp("scripts"))
    try:
        yield started
    finally:
        started.reap()


@contextmanager
def watch_while(*onlookers: Sequence[object]) -> Iterator[list[Any]]:
    """Have processes look at something for the time of a `with` block, and collect what they have seen at its end.

    Args:
        onlookers: For each the name of a module and its arguments: a program that prints ``ready``, and, when its
            standard input has ended, one JSON object.

    Yields:
        A list that holds these objects after the block, in order.
    """
    reports: list[Any] = []
    with ExitStack() as stack:
        popens = []
        for onlooker in onlookers:
            popen = subprocess.Popen(
                [sys.executable, "-m", *map(str, onlooker)],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
            )
            stack.enter_context(popen)
            stack.callback(popen.kill)
            popens.append(popen)
        for popen in popens:
            assert popen.stdout is not None
            assert "ready\n" in iter(popen.stdout.readline, "")
        yield reports
        reports += [json.loads(popen.communicate(timeout=HANG_GUARD)[0]) for popen in popens]


@pytest.fixture
def watched() -> Callable[..., AbstractContextManager[list[Any]]]:
    """The function that has processes look at something while a test goes on: `watch_while`."""
    return watch_while


def snapshot_of(directory: Path) -> dict[str, int]:
    """Return every name below a directory and the inode behind it, links not followed.

    Left out are the names that the layout lets go: `latest` itself, or `runs/latest.txt` in its place, leads elsewhere
    after a switch, and the private name of the next one lives for the moment of the switch.
    """
    switched = {directory / "latest", directory / "runs" / "latest.txt"}
    names = {}
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(parent, name)
            if path not in switched and not (path.parent.name == ".latest" and name.endswith((".link", ".txt"))):
                names[str(path.relative_to(directory))] = path.lstat().st_ino
    return names


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, int]]:
    """The function that tells which names there are, to see that none vanishes."""
    return snapshot_of


@pytest.fixture(scope="session")
def program() -> str:
    """The path of the installed console script."""
    found = shutil.which("immutable-logs", path=str(Path(sys.executable).parent))
    assert found is not None, "install the project into the environment of the tests: pip install -e ."
    return found


@pytest.fixture
def plain_environ() -> dict[str, str]:
    """The environment without what changes colours, widths and how Python writes."""
    changing = {"NO_COLOR", "FORCE_COLOR", "CLICOLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES"}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in changing and (name == "PYTHONWARNINGS" or not name.startswith("PYTHON"))
    } | {"PYTHONUTF8": "1"}


@pytest.fixture
def run_program(
    program: str, plain_environ: dict[str, str], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command to its end: ``run_program("ls", experiment, cwd=..., environ=...)``."""

    def run(*arguments: object, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *map(str, arguments)],
            cwd=cwd or tmp_path,
            env=plain_environ | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=HANG_GUARD,
        )

    return run


@pytest.fixture
def write_events() -> Callable[..., Path]:
    """Writes an event file with TensorBoard's own writer; without TensorBoard the test is skipped.

    ``write_events(directory, {"loss": {0: 2.5, 1: 2.0}}, start=0)``: for each tag the values by step, in order, after
    the mark of a session that starts at a step, if one is given.
    """
    reason = "needs TensorBoard: pip install tensorboard"
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer", reason=reason)
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary

    seconds = itertools.count(1_700_000_000)

    def write(directory: Path, curves: Mapping[str, Mapping[int, float]], *, start: int | None = None) -> Path:
        before = set(directory.iterdir())
        writer = writers.EventFileWriter(str(directory))
        if start is not None:
            writer.add_event(Event(session_log=SessionLog(status=SessionLog.START), step=start, wall_time=1.0))
        for tag, points in curves.items():
            for step, value in points.items():
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(Event(summary=summary, step=step, wall_time=1000.0 + step))
        writer.close()
        (written,) = set(directory.iterdir()) - before
        # Files of one second are told apart by the number of the writer in its process, in whose names 10 is before 9.
        second = next(seconds)
        return written.rename(directory / f"events.out.tfevents.{second}.host.1.{second}")

    return write


class Browser:
    """A headless Chromium, spoken to through two pipes."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._writing = os.pipe()
        self._reading, from_browser = os.pipe()
        # It reads from descriptor 3 and writes to 4, where a step between puts the ends of the pipes.
        step = (
            "import fcntl, os, sys\n"
            "ends = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]\n"
            "os.dup2(ends[0], 3), os.dup2(ends[1], 4)\n"
            "os.execv(sys.argv[3], sys.argv[3:])\n"
        )
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self._popen = subprocess.Popen(
            [sys.executable, "-c", step, str(to_browser), str(from_browser), program, *options, "about:blank"],
            pass_fds=(to_browser, from_browser),
            env={**os.environ, "HOME": str(profile)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End it with all its processes."""
        os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        os.close(self._writing)
        os.close(self._reading)

    def call(self, method: str, **params: object) -> Any:
        """Have it do something, and return its answer."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def open(self, path: Path, *, width: int, scheme: str = "light") -> None:
        """Open a page in a tab of its own, until it is loaded; `events` then has what happened."""
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width <= WIDEST_PHONE,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events = []
        self.call("Page.navigate", url=path.as_uri())
        while not self.happened("Page.loadEventFired"):
            self.events.append(self._receive())

    def happened(self, method: str) -> list[dict[str, Any]]:
        """Return the events of a kind."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + BROWSER_TIME
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._reading, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        received: dict[str, Any] = json.loads(message)
        return received


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium; without one the test is skipped."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    started = Browser(program, tmp_path_factory.mktemp("browser"))
    try:
        yield started
    finally:
        started.close()


@contextmanager
def hidden_links() -> Iterator[None]:
    """Behave in a `with` block as SSHFS does that does not say where links lead that are absolute or go up."""
    readlink = os.readlink

    def refuse(path: Path | str) -> str:
        text = readlink(path)
        if text.startswith(("/", "..")):
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "readlink", refuse)
        yield


def keeps_links_back() -> bool:
    """Tell whether SSHFS does not say where links lead that are absolute or go up, as some versions do."""
    command = ["sshfs", "--help"]
    if shutil.which(command[0]) is None:
        return False
    return b"contain_symlinks" in subprocess.run(command, capture_output=True, check=False).stdout


@pytest.fixture
def run_on_mount() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command with a file system of a kind mounted on a directory, which it makes; skips where it cannot.

    ``run_on_mount("xfs", directory, "ls", directory, timeout=60)``; the kinds are those of tests/mounts/on_mount.py.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can mount, and needs unshare")
    script = Path(__file__).parent / "mounts" / "on_mount.py"

    def run(kind: str, place: Path, *command: object, timeout: float) -> subprocess.CompletedProcess[str]:
        place.mkdir()
        arguments = [sys.executable, str(script), kind, *map(str, (place, *command))]
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True
        ) as popen:
            try:
                output, errors = popen.communicate(timeout=timeout)
            except BaseException:
                # What is mounted goes with the name space, when the last process in it has ended.
                os.killpg(popen.pid, signal.SIGKILL)
                raise
        if popen.returncode == 77:
            pytest.skip(errors[-300:])
        return subprocess.CompletedProcess(arguments, popen.returncode, output, errors)

    return run
