from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from immutable_logs.durable_files import append
from immutable_logs.layout import ExperimentLayout
from immutable_logs.records import ADOPTED, PRUNED, STARTED, FinishRecord, ManifestRecord, RunRecord, format_time
from immutable_logs.run import Run
from immutable_logs.run_id import format_run_id

if TYPE_CHECKING:
    from tests.conftest import Browser, Children

RunProgram = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Run]
FinishRuns = Callable[[Path, int], list[Run]]
WriteEvents = Callable[..., Path]

PHONE = 360
DESK = 1280
HOSTILE = """<script>document.title='run'</script>'"><img src=x onerror=alert(1)>&lt;\x1b[31m\u202e"""
"""What somebody can write into every field of a record, into logs and names."""

TRACEBACK = """\
[NeMo I 2026-12-01 02:30:01 train:40] step 24
Traceback (most recent call last):
  File "train.py", line 61, in <module>
    main()
ValueError: {}
"""


class Page(HTMLParser):
    """What is in a page: its elements with their attributes, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._is_style = False
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.elements.append((tag, dict(attrs)))
        self._is_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        """Part what stands in different elements."""
        self._is_style = False
        self.text += " " if tag in {"p", "h1", "h2", "h3", "li", "td", "th", "dd", "dt", "text", "title"} else ""

    def handle_data(self, data: str) -> None:
        """Keep the text, but for the style sheet."""
        self.text += "" if self._is_style else data

    def find(self, tag: str, class_: str | None = None) -> list[dict[str, str | None]]:
        """Return the attributes of the elements of a kind."""
        return [
            found
            for name, found in self.elements
            if name == tag and (class_ is None or class_ in (found.get("class") or "").split())
        ]


@dataclass(frozen=True)
class History:
    """An experiment with runs of every status.

    Attributes:
        experiment: The experiment.
        runs: Its runs by their status.
    """

    experiment: Path
    runs: dict[str, str]


@pytest.fixture
def history(experiment: Path, start: Start) -> History:
    """An experiment with runs of every status, most of them in one lineage, some of them days ago."""
    layout = ExperimentLayout.of(experiment)
    now = time.time()
    runs: dict[str, str] = {}
    started = start(experiment)
    before: tuple[str, str] | None = None
    for days, status in ((40, "adopted"), (9, "finished"), (8.9, "failed"), (4, "interrupted"), (3, "missing")):
        begin = now - days * 86400
        runs[status] = write_run(layout, begin, status, parent=before)
        before = (runs[status], before[1] if before else runs[status])
    runs["pruned"] = write_run(layout, now - 86400, "missing", parent=before)
    append(layout.manifest, ManifestRecord(PRUNED, runs["pruned"], format_time(now)).encode(), after_newline=True)
    runs["unknown"] = write_run(layout, now - 7200, "unknown")
    runs["running"] = started.id
    return History(experiment, runs)


def write_run(
    layout: ExperimentLayout, begin: float, status: str, *, parent: tuple[str, str] | None = None, **fields: Any
) -> str:
    """Write what a run of some time ago has left, with any text in its fields."""
    run_id = format_run_id(begin, os.urandom(4))
    lineage, resumed_from = (parent[1], parent[0]) if parent else (fields.pop("lineage", run_id), None)
    resumed_from = fields.pop("resumed_from", resumed_from)
    error = fields.pop("error", None)
    fields.setdefault("process", {"host": "node-7"})
    record = RunRecord(run_id, format_time(begin), lineage=lineage, resumed_from=resumed_from, world_size=2, **fields)
    details = {"lineage": lineage, "resumed_from": resumed_from, "world_size": 2, "job": fields.get("job")}
    details["host"] = fields["process"]["host"]
    event = ADOPTED if status == "adopted" else STARTED
    append(layout.manifest, ManifestRecord(event, run_id, format_time(begin), details).encode(), after_newline=True)
    run = layout.run(run_id)
    if status != "missing":
        run.path.mkdir(parents=True)
        run.run_record.write_bytes(record.encode())
        if status not in {"adopted", "unknown"}:
            end = FinishRecord(run_id, format_time(begin + 3600), status, error, step=20, ranks_joined=2)
            run.finish_record.write_bytes(end.encode())
        for path in (*run.path.iterdir(), run.path):
            os.utime(path, (begin, begin))
    return run_id


def report(run_program: RunProgram, experiment: Path, *arguments: object) -> Path:
    """Have a report written and return its path."""
    path = experiment.parent / "report.html"
    completed = run_program("report", experiment, "-o", path, *arguments)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == ""
    return path


class TestContents:
    def test_every_run_is_in_the_timeline_and_in_the_table(self, run_program: RunProgram, history: History) -> None:
        """With its status in words, whatever the status is, and the newest at the top."""
        page = Page(report(run_program, history.experiment))

        rows = [found["id"] for found in page.find("tr") if "id" in found]
        assert set(rows) == {f"run-{run}" for run in history.runs.values()}
        assert len(page.find("rect", "bar")) == len(history.runs)
        for status in history.runs:
            assert f" {status} " in page.text
        assert "8 runs" in page.text
        assert rows.index(f"run-{history.runs['failed']}") < rows.index(f"run-{history.runs['finished']}")

    def test_every_link_leads_to_something_in_the_page(self, run_program: RunProgram, history: History) -> None:
        """No reference leads out of the page, and none to a run that is not in it."""
        page = Page(report(run_program, history.experiment, "--last", 4))

        names = {found["id"] for _, found in page.elements if "id" in found}
        targets = [found["href"] for _, found in page.elements if "href" in found]
        targets += [str(found["marker-end"])[4:-1] for _, found in page.elements if "marker-end" in found]
        assert targets
        assert {str(target).removeprefix("#") for target in targets} <= names
        assert all(str(target).startswith("#") for target in targets)
        assert len(names) == len([found for _, found in page.elements if "id" in found])

    def test_an_idle_week_takes_less_room_than_an_hour_of_training(
        self, run_program: RunProgram, history: History
    ) -> None:
        """The axis shortens it and says how long it was."""
        page = Page(report(run_program, history.experiment))

        widths = [float(str(found["width"]).rstrip("%")) for found in page.find("rect", "bar")]
        breaks = [float(str(found["width"]).rstrip("%")) for found in page.find("rect", "break")]
        assert max(widths) > max(breaks)
        assert "31 d" in page.text

    def test_the_rank_that_failed_first_is_named_with_its_error(
        self, run_program: RunProgram, history: History
    ) -> None:
        """As `logs --errors` names it."""
        run = ExperimentLayout.of(history.experiment).run(history.runs["failed"])
        run.rank_log(1, 1).write_text(TRACEBACK.format("loss is not a number"), encoding="utf-8")
        run.rank_log(0, 0).write_text("[NeMo I 2026-12-01 02:30:02 train:40] step 25\n", encoding="utf-8")

        page = Page(report(run_program, history.experiment))

        told = run_program("logs", run.path.name, "-e", history.experiment, "--errors").stdout
        assert "Rank 1 failed first, at 2026-12-01 02:30:01: ValueError: loss is not a number" in told
        assert "Rank 1 failed first, at 2026-12-01 02:30:01: ValueError: loss is not a number" in page.text
        assert 'File "train.py", line 61, in <module>' in page.text

    def test_a_rank_that_was_killed_is_named_with_its_process(
        self, run_program: RunProgram, children: Children, experiment: Path
    ) -> None:
        """As `logs --errors` does: it leaves no error, and the other tells only that somebody was gone."""
        code = """
            import signal
            from pathlib import Path
            from immutable_logs import start_run
            from immutable_logs.layout import RunLayout
            run = start_run(sys.argv[1])
            layout = RunLayout(run.path)
            layout.rank_log(0, 0).write_text("[NeMo I 2026-12-01 02:30:00 train:40] step 24\\n")
            layout.rank_log(1, 1).write_text(sys.argv[2])
            report(pid=os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)
            """
        (told,) = children.start(code, experiment, TRACEBACK.format("Connection reset by peer")).reports(
            status=-signal.SIGKILL
        )

        page = Page(report(run_program, experiment))

        errors = run_program("logs", "-e", experiment, "--errors").stdout
        for line in (
            "No rank tells what went wrong first",
            "Rank 1 wrote at 2026-12-01 02:30:01 only that another was gone, or was ended",
            (
                f"Rank 0 alone left no error, and wrote last at 2026-12-01 02:30:00 (process {told['pid']} on "
                f"{socket.gethostname()} is gone): it may have been killed, as for want of memory"
            ),
        ):
            assert line in errors
            assert f"{line}." in page.text

    def test_the_loss_is_one_line_over_resumes_that_are_marked(
        self, run_program: RunProgram, start: Start, experiment: Path, write_events: WriteEvents
    ) -> None:
        """A run resumed from step 20 after step 25 was reached: the steps between are drawn once."""
        first = start(experiment)
        second = start(experiment, resumed_from=first)
        write_events(first.path, {"train_loss": dict.fromkeys(range(26), 3.0)}, start=0)
        write_events(second.path, {"train_loss": dict.fromkeys(range(20, 41), 1.5)}, start=20)

        page = Page(report(run_program, experiment))

        assert "Last loss 1.5 at step 40." in page.text
        assert f"{second.id} goes on from {first.id} at step 20" in page.text
        assert "last 1.5 at step 40, lowest 1.5, resumed 1 time" in page.text
        (line, *_) = page.find("path", "line-0")
        steps = [round(float(x) / 1000 * 40) for x in re.findall(r"[ML]([\d.]+)", str(line["d"]))]
        assert steps == list(range(41))

    def test_a_loss_that_is_no_number_interrupts_the_line_and_is_counted(
        self, run_program: RunProgram, start: Start, experiment: Path, write_events: WriteEvents
    ) -> None:
        """It is what one looks for in a training that diverged."""
        values = {0: 2.0, 1: float("nan"), 2: float("inf"), 3: 1e30, 4: 1e-30}
        write_events(start(experiment).path, {"loss": values}, start=0)

        page = Page(report(run_program, experiment))

        assert "2 values not finite" in page.text
        assert "on a logarithmic axis" in page.text
        (line, *_) = page.find("path", "line-0")
        assert str(line["d"]).count("M") == 2
        assert "nan" not in str(line["d"])

    def test_without_tensorboard_the_page_says_what_it_lacks(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, tmp_path: Path
    ) -> None:
        """All the rest is there."""
        finish_runs(experiment, 2)
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "tensorboard.py").write_text("raise ImportError('not here')", encoding="utf-8")
        path = tmp_path / "report.html"

        completed = run_program("report", experiment, "-o", path, PYTHONPATH=str(tmp_path / "empty"))

        assert completed.returncode == 0
        page = Page(path)
        assert "HINT: pip install tensorboard" in page.text
        assert len(page.find("rect", "bar")) == 2

    def test_branches_of_a_lineage_are_told_apart(
        self, run_program: RunProgram, start: Start, experiment: Path
    ) -> None:
        """Of two runs that resumed one, the later goes on in its row and the other says where it comes from."""
        first = start(experiment)
        second = start(experiment, resumed_from=first)
        third = start(experiment, resumed_from=first)

        page = Page(report(run_program, experiment))

        assert f"Lineage ..{first.id[-5:]}: 3 runs" in page.text
        chains = page.text.partition("Lineage ..")[2].partition("Launches")[0]
        assert re.search(
            rf"\.\.{first.id[-5:]}.*\.\.{third.id[-5:]}.*from \.\.{first.id[-5:]} .*\.\.{second.id[-5:]}", chains
        )
        assert len(page.find("line", "arrow")) > 2

    def test_no_runs_yet_is_a_page_too(self, run_program: RunProgram, experiment: Path) -> None:
        """A directory whose first launch has not begun."""
        (experiment / "runs").mkdir(parents=True)

        assert "No runs yet." in Page(report(run_program, experiment)).text

    def test_damaged_lines_of_the_manifest_are_counted_and_lose_no_run(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path
    ) -> None:
        """The page says so."""
        finish_runs(experiment, 2)
        manifest = ExperimentLayout.of(experiment).manifest
        manifest.write_bytes(b'{"format": 1, "ev\n\x00\xff\n' + manifest.read_bytes()[20:])

        page = Page(report(run_program, experiment))

        assert "Lines of the manifest that cannot be read: 3" in page.text
        assert len(page.find("rect", "bar")) == 2

    def test_of_many_runs_the_newest_are_shown_and_the_rest_counted(
        self, run_program: RunProgram, experiment: Path
    ) -> None:
        """Ten thousand runs, each resumed from one: the page stays under a megabyte, and says that it is a part."""
        layout = ExperimentLayout.of(experiment)
        layout.runs.mkdir(parents=True)
        begin = time.time() - 10_000 * 60
        ids = [format_run_id(begin + 60 * number, os.urandom(4)) for number in range(10_000)]
        for run_id in ids:
            layout.run(run_id).path.mkdir()
        layout.manifest.write_bytes(
            b"".join(
                ManifestRecord(
                    STARTED,
                    run_id,
                    format_time(begin + 60 * number),
                    {"lineage": ids[0], "resumed_from": ids[-100] if number else None},
                ).encode()
                for number, run_id in enumerate(ids)
            )
        )

        path = report(run_program, experiment)

        page = Page(path)
        assert path.stat().st_size < 1_000_000
        assert [found["id"] for found in page.find("tr") if "id" in found] == [f"run-{run}" for run in ids[:-101:-1]]
        assert "Shown are the newest 100 of 10,000 runs" in page.text
        assert 99 < len(page.find("line", "arrow")) < 1000


class TestHostileTexts:
    def fill(self, layout: ExperimentLayout) -> None:
        """Put a hostile text into everything that a run leaves."""
        log = "nemo_log_globalrank-1_localrank-1.txt"
        for number, status in enumerate(("failed", HOSTILE, "unknown")):
            names = ("job", "user", "working_directory", "git_commit", "checkpoint", "lineage", "resumed_from")
            fields: dict[str, Any] = dict.fromkeys(names, HOSTILE)
            run_id = write_run(
                layout,
                time.time() - 86400 + 3600 * number,
                status,
                process={"host": HOSTILE},
                arguments=[HOSTILE, HOSTILE],
                versions={HOSTILE: HOSTILE},
                configuration={HOSTILE: HOSTILE},
                error=f"ValueError: {HOSTILE}",
                **fields,
            )
            directory = layout.run(run_id).path
            (directory / log).write_text(TRACEBACK.format(HOSTILE), encoding="utf-8")
            (directory / "<b>'\".txt").write_text(TRACEBACK.format(HOSTILE * 1000), encoding="utf-8")

    def test_texts_from_disk_stay_texts(
        self, run_program: RunProgram, browser: Browser, tmp_path: Path, write_events: WriteEvents
    ) -> None:
        """No element, attribute, control character or change of direction comes from a record, a log or a name."""
        experiment = tmp_path / HOSTILE.replace("/", "_")
        layout = ExperimentLayout.of(experiment)
        layout.runs.mkdir(parents=True)
        self.fill(layout)
        newest = max(path for path in layout.runs.iterdir() if path.is_dir())
        write_events(newest, {f"loss {HOSTILE}": {0: 1.0, 1: 2.0}})

        path = report(run_program, experiment)

        page = Page(path)
        assert {name for name, _ in page.elements}.isdisjoint({"script", "img", "b", "iframe", "object", "link"})
        assert not [key for _, found in page.elements for key in found if key.startswith("on") or key == "style"]
        content = path.read_text(encoding="utf-8")
        assert not set(content) & {"\x1b", "\u202e", "\x00"}
        assert page.text.count("document.title='run'") >= 10
        for width in (PHONE, DESK):
            browser.open(path, width=width)
            assert browser.evaluate("document.scripts.length") == 0
            assert browser.evaluate("document.title").endswith(": 3 runs")
            assert browser.evaluate("document.scrollingElement.scrollWidth") == width
            assert not browser.happened("Page.javascriptDialogOpening")

    def test_times_that_cannot_be_are_drawn_all_the_same(self, run_program: RunProgram, experiment: Path) -> None:
        """The first and the last year that there are, an end before the start, a circle of runs."""
        layout = ExperimentLayout.of(experiment)
        layout.runs.mkdir(parents=True)
        ids = [write_run(layout, time.time() - 60 * number, "unknown") for number in range(3)]
        times = ["0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z", "2026-01-01T00:00:00.000000Z"]
        lines = []
        for index, run_id in enumerate(ids):
            details = {"resumed_from": ids[index - 1], "lineage": ids[0], "step": -(10**300)}
            lines += [ManifestRecord(STARTED, run_id, times[index], details).encode()]
            lines += [
                ManifestRecord("finished", run_id, times[index - 1], {**details, "outcome": "finished"}).encode()
            ]
        layout.manifest.write_bytes(b"".join(lines))

        page = Page(report(run_program, experiment))

        shares = [float(str(found[key]).rstrip("%")) for found in page.find("rect", "bar") for key in ("x", "width")]
        assert len(shares) == 6
        assert all(0 <= share <= 100 for share in shares)


class TestBrowser:
    @pytest.mark.parametrize("width", [PHONE, DESK])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_the_page_loads_nothing_and_fits(
        self,
        run_program: RunProgram,
        browser: Browser,
        history: History,
        write_events: WriteEvents,
        width: int,
        scheme: str,
    ) -> None:
        """No request but for the page, no complaint of the browser, nothing to scroll sideways, styles in force."""
        run = ExperimentLayout.of(history.experiment).run(history.runs["failed"])
        run.rank_log(1, 1).write_text(TRACEBACK.format("x" * 2000), encoding="utf-8")
        write_events(run.path, {"train_loss": {step: 1.0 / (step + 1) for step in range(3000)}}, start=0)

        path = report(run_program, history.experiment)
        browser.open(path, width=width, scheme=scheme)

        requests = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
        assert requests == [path.as_uri()]
        assert not browser.happened("Log.entryAdded")
        assert not browser.happened("Runtime.consoleAPICalled")
        assert not browser.happened("Runtime.exceptionThrown")
        assert browser.evaluate("document.scrollingElement.scrollWidth") == width
        dark = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(255, 255, 255)") == (scheme == "light")
        display = browser.evaluate("getComputedStyle(document.querySelector('tbody tr')).display")
        assert display == ("flex" if width == PHONE else "table-row")

    def test_bars_and_curve_have_an_extent(
        self, run_program: RunProgram, browser: Browser, history: History, write_events: WriteEvents
    ) -> None:
        """What is drawn in shares of the width is visible on a phone, and inside it."""
        run = ExperimentLayout.of(history.experiment).run(history.runs["finished"])
        write_events(run.path, {"train_loss": {step: 1.0 / (step + 1) for step in range(100)}}, start=0)
        browser.open(report(run_program, history.experiment), width=PHONE)

        boxes = browser.evaluate(
            "[...document.querySelectorAll('.bar, path.line, .sign use')].map(each => {"
            "const box = each.getBoundingClientRect(); return [box.left, box.right, box.width]})"
        )

        assert len(boxes) > 20
        assert all(0 <= left < right <= PHONE and width > 0 for left, right, width in boxes), boxes

    def test_print_has_the_folded_errors_in_it(
        self, run_program: RunProgram, browser: Browser, history: History
    ) -> None:
        """On paper nothing can be unfolded."""
        run = ExperimentLayout.of(history.experiment).run(history.runs["failed"])
        for rank in (0, 1):
            run.rank_log(rank, rank).write_text(TRACEBACK.format("abc"[rank:]), encoding="utf-8")
        browser.open(report(run_program, history.experiment), width=DESK)
        visible = "[...document.querySelectorAll('details pre')].map(each => each.checkVisibility())"
        on_screen = browser.evaluate(visible)

        browser.call("Emulation.setEmulatedMedia", media="print")

        assert sorted(on_screen) == [False, True]
        assert browser.evaluate(visible) == [True, True]
        assert browser.call("Page.printToPDF")["data"].startswith("JVBERi")

    def test_the_policy_stops_what_would_get_into_the_page(
        self, run_program: RunProgram, browser: Browser, history: History
    ) -> None:
        """Should a text ever become an element, the browser neither runs nor loads it."""
        path = report(run_program, history.experiment)
        evil = "<script>document.title='run'</script><img src='https://example.org/x.png' onerror='document.title=1'>"
        path.write_text(path.read_text(encoding="utf-8").replace("<main>", f"<main>{evil}"), encoding="utf-8")

        browser.open(path, width=DESK)

        assert browser.evaluate("document.title").endswith(": 8 runs")
        assert [event["blockedReason"] for event in browser.happened("Network.loadingFailed")] == ["csp"]
        assert not browser.happened("Network.responseReceivedExtraInfo")


class TestOutput:
    def test_the_page_is_written_to_the_current_directory(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, tmp_path: Path
    ) -> None:
        """Under a plain name, with a word on stderr, and nothing else is left."""
        finish_runs(experiment, 1)
        (tmp_path / "desk").mkdir()

        completed = run_program("report", experiment, cwd=tmp_path / "desk")

        assert (completed.returncode, completed.stdout) == (0, "")
        assert re.fullmatch(r"Wrote report\.html \(.* KiB\): 1 of 1 runs\n", completed.stderr)
        assert os.listdir(tmp_path / "desk") == ["report.html"]

    def test_an_older_report_is_replaced_and_other_files_are_not(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, tmp_path: Path
    ) -> None:
        """What is somebody's own is overwritten only with --force."""
        finish_runs(experiment, 1)
        path = report(run_program, experiment)
        older = path.read_bytes()
        finish_runs(experiment, 1)
        assert report(run_program, experiment).read_bytes() != older
        path.write_text("<!doctype html>\n<title>mine</title>", encoding="utf-8")

        completed = run_program("report", experiment, "-o", path)

        assert completed.returncode == 2
        assert completed.stderr == (
            f"Error: expected --output to be a new file or an older report, found another file: {path}\n"
            "HINT: --force overwrites it\n"
        )
        assert path.read_text(encoding="utf-8") == "<!doctype html>\n<title>mine</title>"
        assert "Timeline" in report(run_program, experiment, "--force").read_text(encoding="utf-8")

    def test_a_link_stays_a_link(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, tmp_path: Path
    ) -> None:
        """What it leads to is replaced."""
        finish_runs(experiment, 1)
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "page.html").touch()
        (tmp_path / "report.html").symlink_to("elsewhere/page.html")

        assert report(run_program, experiment).is_symlink()
        assert "Timeline" in (tmp_path / "elsewhere" / "page.html").read_text(encoding="utf-8")

    def test_standard_output_gets_the_page_and_nothing_else(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, tmp_path: Path
    ) -> None:
        """It can be piped; no file is written."""
        finish_runs(experiment, 1)
        before = sorted(os.listdir(tmp_path))

        completed = run_program("report", experiment, "-o", "-")

        assert completed.stdout.startswith('<!doctype html>\n<html lang="en">')
        assert completed.stdout.endswith("</html>\n")
        assert completed.stderr == ""
        assert sorted(os.listdir(tmp_path)) == before

    @pytest.mark.parametrize(
        ("output", "code", "said"),
        [
            ("missing/report.html", 3, "No such file or directory"),
            ("/proc/report.html", 3, "/proc/report.html"),
            ("/dev/full", 3, "No space left on device"),
            (".", 2, "expected --output to be a file, found a directory"),
        ],
    )
    def test_what_cannot_be_written_is_said_before_or_after_the_work(
        self, run_program: RunProgram, finish_runs: FinishRuns, experiment: Path, output: str, code: int, said: str
    ) -> None:
        """A directory that is missing or takes no files, a full disk: 3; a directory for a file: 2."""
        finish_runs(experiment, 1)

        completed = run_program("report", experiment, "-o", output)

        assert completed.returncode == code, completed.stderr
        assert said in completed.stderr
        assert "Traceback" not in completed.stderr

    def test_no_experiment_is_wrong_use_and_leaves_no_page(self, run_program: RunProgram, tmp_path: Path) -> None:
        """Nothing is written."""
        completed = run_program("report", tmp_path)

        assert (completed.returncode, completed.stdout) == (2, "")
        assert os.listdir(tmp_path) == []
