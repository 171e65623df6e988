"""Manifests and records that no launch has written: of another format, huge, random, or made to hurt a reader."""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from immutable_logs import Experiment, start_run
from immutable_logs.layout import ExperimentLayout, RunLayout
from immutable_logs.manifest import read_manifest, recent_started_runs
from tests.conftest import Children
from tests.hostile.conftest import LOOKS, Told, assert_told_well, look_arguments

MEBIBYTE = 1024 * 1024
RUN = "2026-12-01_02-28-15Z_k3v9q"


def line(**keys: object) -> bytes:
    """Return a line of a manifest, whatever is in it."""
    known = {"format": 1, "event": "started", "run": RUN, "time": "2026-12-01T02:28:15.000000Z"}
    return json.dumps({**known, **keys}).encode() + b"\n"


DEEP = b'{"format": 1, "run": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
DEEP_ENOUGH_FOR_JSON = (
    b'{"format": 1, "run": "' + RUN.encode() + b'", "configuration": ' + b'{"a":' * 900 + b"1" + b"}" * 901
)
MANY_DIGITS = b"9" * 4000

HOSTILE = {
    "nothing": b"",
    "blank lines": b"\n" * 1000,
    "another format": line(format=2),
    "a format that is no number": line(format=[1]),
    "random bytes": random.Random(1).randbytes(200_000),
    "no UTF-8": line().replace(b"started", b"\xff\xfe\x80"),
    "UTF-16": line().decode().encode("utf-16"),
    "half a surrogate pair": line(host="\ud800", job="\udcff", source="\udfff"),
    "zeros": bytes(100_000),
    "no object": b'[]\n1\n"x"\nnull\ntrue\n',
    "deep nesting": DEEP + b"\n",
    "nesting that Python can still read": line().rstrip()[:-1] + b', "x": ' + b"[" * 900 + b"]" * 900 + b"}\n",
    "huge integers": line(world_size=0, job=0).replace(b": 0", b": " + MANY_DIGITS),
    "integers that Python does not read": line(world_size=0).replace(b": 0", b": " + b"9" * 5000),
    "not a number": line(world_size=float("nan"), step=float("inf"), time="NaN"),
    "numbers beyond all floats": line(world_size=0).replace(b": 0", b": 1e999"),
    "negative numbers": line(world_size=-1) + line(event="finished", step=-5, ranks_joined=-(2**70)),
    "truth": line(world_size=True, job=False),
    "other types": line(host=[1], job={}, source=3, lineage=[], resumed_from=7, world_size="x"),
    "times that are none": b"".join(
        line(time=time)
        for time in (
            "",
            "x" * 27,
            "9999-12-31T23:59:59.999999Z",
            "0001-01-01T00:00:00.000000Z",
            "2026-13-45T99:99:99Z",
        )
    ),
    "runs that are none": b"".join(line(run=run) for run in ("../../x", "", "latest", "run_0", "/etc/passwd", "a\nb")),
    "a time that does not exist": line(run="2026-99-99_99-99-99Z_aaaaa"),
    "escape codes": line(host="\x1b[2J\x07", job="\u202e", source="\r\n", event="\x1b]0;x\x07"),
    "outcomes of no kind": line() + line(event="finished", outcome="\x1b[31m" + "x" * 5000, step="many"),
    "a lineage in a circle": line(lineage=RUN, resumed_from=RUN),
    "one line of a mebibyte": line(host="h" * MEBIBYTE),
    "ten thousand keys": line(**{f"key{number}": number for number in range(10_000)}),
    "every event twice": (line() + line(event="finished") + line(event="pruned") + line(event="adopted")) * 2,
    "an end of a line alone": b"\r\n\x0b\x0c\x1c\x85",
    "doubled keys": b'{"format": 1, "format": 1, "event": "x", "event": "started", "run": "' + RUN.encode() + b'"}\n',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_no_manifest_stops_a_launch_or_a_look(
    experiment: Path, caplog: pytest.LogCaptureFixture, command: Callable[..., Told], content: bytes
) -> None:
    """The launch appends its lines after whatever is there, and every command tells of all runs."""
    layout = ExperimentLayout.of(experiment)
    layout.runs.mkdir(parents=True)
    layout.manifest.write_bytes(content)

    with start_run(experiment) as run:
        pass

    assert caplog.text == ""
    assert layout.manifest.read_bytes().startswith(content)
    assert Experiment(experiment).find(run.id).status == "finished"
    latest = Experiment(experiment).latest
    assert latest is not None
    assert latest.id == run.id
    for look in LOOKS:
        told = command(*look_arguments(look, experiment))
        assert_told_well(told, 0, 1, *((2,) if look == ("diff",) else ()))
        assert not set("\x1b\x07\u202e") & set(told.stdout + told.stderr)
        if "--json" in look:
            json.loads(told.stdout, parse_constant=_refuse_constant)


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("name", ["run.json", "finished.json", "rank entry"])
def test_no_record_stops_a_launch_or_a_look(
    experiment: Path, command: Callable[..., Told], name: str, content: bytes
) -> None:
    """Records are told to be unreadable and kept as they are; the next launch does not care."""
    layout = ExperimentLayout.of(experiment)
    with start_run(experiment) as run:
        pass
    path = _record(layout.run(run.id), name)
    path.write_bytes(content)

    following = start_run(experiment)
    following.finish()

    assert path.read_bytes() == content
    assert {each.id for each in Experiment(experiment).runs()} == {run.id, following.id}
    for look in (("ls",), ("diff",), ("verify", "--json"), ("report", "-o", "-")):
        told = command(*look_arguments(look, experiment))
        assert_told_well(told, 0, 1)
        assert not set("\x1b\x07\u202e") & set(told.stdout + told.stderr)
    assert_told_well(command("show", run.id, "-e", str(experiment)), 0)
    if name != "rank entry":
        verified = command("verify", str(experiment))
        assert_told_well(verified, 1)
        assert "record-unreadable" in verified.stdout


HOSTILE_VALUES = {
    "deep": DEEP_ENOUGH_FOR_JSON,
    "not a number": b'{"a": NaN, "b": [Infinity, -Infinity, 1e999]}',
    "huge": MANY_DIGITS,
    "half a surrogate pair": rb'{"\ud800": "\udfff"}',
    "long": json.dumps({"a": "x" * 3_000_000}).encode(),
    "wide": json.dumps({f"k{number}": {} for number in range(20_000)}).encode(),
    "escape codes": json.dumps({"\x1b[2J": "\x1b]0;x\x07\u202e"}).encode(),
}


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES)
def test_no_configuration_stops_a_look(experiment: Path, command: Callable[..., Told], value: bytes) -> None:
    """Everything but one value of the record is in order."""
    layout = ExperimentLayout.of(experiment)
    runs = []
    for _ in range(2):
        with start_run(experiment, configuration="HERE") as run:
            runs.append(run)
    for run in runs:
        path = layout.run(run.id).run_record
        path.write_bytes(path.read_bytes().replace(b'"HERE"', value))

    for look in LOOKS:
        told = command(*look_arguments(look, experiment))
        assert_told_well(told, 0, 1)
        assert not set("\x1b\x07\u202e") & set(told.stdout + told.stderr)
        if "--json" in look:
            json.loads(told.stdout, parse_constant=_refuse_constant)


def test_configuration_with_numbers_that_json_lacks_is_recorded_as_json(experiment: Path) -> None:
    """`.inf` stands in configurations; other programs read the record, too."""
    run = start_run(experiment, configuration={"max_time": float("inf"), "lr": [float("nan"), 0.1]})

    text = ExperimentLayout.of(experiment).run(run.id).run_record.read_text()

    assert json.loads(text, parse_constant=_refuse_constant)["configuration"] == {
        "max_time": "inf",
        "lr": ["nan", 0.1],
    }


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_configuration_that_contains_itself_does_not_cost_the_record(experiment: Path, kind: str) -> None:
    """Nor does one that is nested more deeply than readers go."""
    circle: object = [1, {}] if kind == "list" else {"a": {}}
    if isinstance(circle, list):
        circle[1]["again"] = circle
    elif isinstance(circle, dict):
        circle["a"]["again"] = circle

    run = start_run(experiment, configuration=circle)

    (summary,) = Experiment(experiment).runs()
    record = Experiment(experiment).describe(summary).run_record
    assert record is not None
    assert record.run == run.id
    assert record.configuration == "(could not be recorded: ValueError)"


def test_deepest_configuration_that_is_recorded_is_read(experiment: Path, command: Callable[..., Told]) -> None:
    """The limit of the writer is below that of the readers."""
    configuration: object = 1
    for _ in range(90):
        configuration = {"a": [configuration]} if isinstance(configuration, list) else [configuration]
    run = start_run(experiment, configuration=configuration)

    summary = Experiment(experiment).find(run.id)
    details = Experiment(experiment).describe(summary)

    assert details.problems == ()
    assert details.run_record is not None
    assert details.run_record.configuration == configuration or "could not" in str(details.run_record.configuration)
    assert_told_well(command("show", "-e", str(experiment)), 0)


MEASURED = """
    import resource
    from immutable_logs import Experiment, start_run
    from immutable_logs.layout import ExperimentLayout
    from immutable_logs.lineage import find_origin
    from immutable_logs.verification import verify_experiment
    experiment = sys.argv[1]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.monotonic()
    run = start_run(experiment)
    checkpoint = os.path.join(experiment, "last.ckpt")
    open(checkpoint, "w").close()
    find_origin(ExperimentLayout.of(experiment), run.id, checkpoint)
    run.finish()
    launched = time.monotonic() - begun
    peak_of_launch = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    runs = [each.id for each in Experiment(experiment).runs()]
    findings = [each.kind for each in verify_experiment(Experiment(experiment), pause=lambda _: None).findings]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report(
        id=run.id, runs=runs, findings=findings, seconds=launched,
        launch_mib=(peak_of_launch - before) / 1024, look_mib=(peak - before) / 1024,
    )
"""


def fill(path: Path, kind: str, size: int) -> None:
    """Write a manifest of a size that no experiment comes to."""
    with path.open("wb") as file:
        if kind == "sparse":
            file.truncate(size)
            return
        source = random.Random(2)
        piece = {
            "random bytes": lambda: source.randbytes(MEBIBYTE),
            "one endless line": lambda: b"x" * MEBIBYTE,
            "lines that are none": lambda: (b'{"format": 1, "event": "started", "run"' + b" " * 200 + b"\n") * 4500,
            "long lines that are none": lambda: b"{" * (MEBIBYTE - 1) + b"\n",
        }[kind]()
        while file.tell() < size:
            file.write(piece)


KINDS_OF_BULK = ["sparse", "random bytes", "one endless line", "lines that are none", "long lines that are none"]

QUICK = ("sparse", "one endless line", "long lines that are none")


def see_bounded(children: Children, experiment: Path, kind: str, size: int, *, seconds: float) -> None:
    """Launch and look beside a huge manifest, within a memory that does not depend on its size."""
    layout = ExperimentLayout.of(experiment)
    layout.runs.mkdir(parents=True)
    fill(layout.manifest, kind, size)
    before = layout.manifest.stat().st_size

    seen = children.start(MEASURED, experiment).report()

    assert seen["runs"] == [seen["id"]]
    assert "manifest-damaged" in seen["findings"]
    assert layout.manifest.stat().st_size > before
    assert seen["launch_mib"] < 150, seen
    assert seen["look_mib"] < 150, seen
    assert seen["seconds"] < seconds, seen


@pytest.mark.parametrize("kind", KINDS_OF_BULK)
def test_large_manifest_of_damage_takes_little_memory(children: Children, experiment: Path, kind: str) -> None:
    """As many mebibytes would show in the process if they were held, in the form of lines most of all."""
    see_bounded(children, experiment, kind, 200 * MEBIBYTE if kind in QUICK else 40 * MEBIBYTE, seconds=20)


@pytest.mark.proof
@pytest.mark.parametrize("kind", sorted(QUICK))
def test_manifest_of_a_gibibyte_takes_no_more_memory(children: Children, experiment: Path, kind: str) -> None:
    """The same limit as for one of a fifth of the size."""
    see_bounded(children, experiment, kind, 1024 * MEBIBYTE, seconds=20)


@pytest.mark.parametrize("name", ["run.json", "finished.json", "rank entry"])
def test_record_of_a_gibibyte_is_not_read(experiment: Path, command: Callable[..., Told], name: str) -> None:
    """It is sparse, so it costs its writer nothing; the error says how much was expected."""
    layout = ExperimentLayout.of(experiment)
    with start_run(experiment) as run:
        pass
    os.truncate(_record(layout.run(run.id), name), 1024 * MEBIBYTE)
    start_run(experiment).finish()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    begun = time.monotonic()
    for look in LOOKS:
        assert_told_well(command(*look_arguments(look, experiment)), 0, 1)

    assert time.monotonic() - begun < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    if name != "rank entry":
        assert "expected at most 67,108,864 bytes, found 1,073,741,824" in command("verify", str(experiment)).stdout


def test_started_line_far_from_the_end_is_found_within_the_limit(experiment: Path) -> None:
    """Beyond it the training does not wait for the answer: its own line is always the last."""
    layout = ExperimentLayout.of(experiment)
    layout.runs.mkdir(parents=True)
    pruned = line(event="pruned")
    for megabytes, expected in ((20, [RUN]), (40, [])):
        layout.manifest.write_bytes(line() + pruned * (megabytes * MEBIBYTE // len(pruned)))
        assert recent_started_runs(layout) == expected


def test_line_beyond_the_limit_costs_no_line_after_it(experiment: Path) -> None:
    """Whatever its length is, it is one damaged line."""
    layout = ExperimentLayout.of(experiment)
    layout.runs.mkdir(parents=True)
    for length in (MEBIBYTE - 1, MEBIBYTE, MEBIBYTE + 1, 2 * MEBIBYTE, 2 * MEBIBYTE + 1):
        layout.manifest.write_bytes(line() + b"x" * length + b"\n" + line(event="finished") + b"torn")

        manifest = read_manifest(layout)

        assert [record.event for record in manifest.records] == ["started", "finished"], length
        assert manifest.damaged == 2


def _record(run: RunLayout, name: str) -> Path:
    return {"run.json": run.run_record, "finished.json": run.finish_record, "rank entry": run.rank_entry(0)}[name]


def _refuse_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")
