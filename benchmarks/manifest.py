"""How many lines a second the manifest takes, beside other ways to keep an index that many processes add to.

All ways make a line durable before they go on to the next. Forked processes are let go at once and write for a set
time; the ways take turns, and what they have written is counted in the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from immutable_logs.layout import ExperimentLayout
from immutable_logs.manifest import append_record, manifest_lock, read_manifest
from immutable_logs.records import STARTED, ManifestRecord, format_time
from immutable_logs.run_id import format_run_id

Way = Callable[[Path], None]
"""Adds one line to the index in a directory."""


def record() -> ManifestRecord:
    """Return the line of a run that starts now."""
    now = time.time()
    return ManifestRecord(STARTED, format_run_id(now, os.urandom(8)), format_time(now), {"resumed_from": None})


def by_the_manifest(directory: Path) -> None:
    """Do what rank zero does when it publishes its run, but for `latest`."""
    layout = ExperimentLayout.of(directory)
    with manifest_lock(layout) as is_locked:
        append_record(layout, record(), is_locked=is_locked)


def by_bare_appends(directory: Path) -> None:
    """Append and flush, without a lock: the least that can be had, and two hosts on NFS overwrite each other."""
    descriptor = os.open(directory / "appended", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(descriptor, record().encode())
    os.fsync(descriptor)
    os.close(descriptor)


def by_sqlite(directory: Path) -> None:
    """Insert a row into a database, as most trackers do; its locks are those of the mount."""
    connection = sqlite3.connect(directory / "rows.sqlite", timeout=60.0)
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS runs (line TEXT)")
        connection.execute("INSERT INTO runs VALUES (?)", (record().encode().decode("utf-8"),))
    connection.close()


def by_rewriting(directory: Path) -> None:
    """Read one JSON file, add to it, and rename the new one over it, under a lock."""
    with (directory / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = directory / "rewritten.json"
        lines = json.loads(path.read_bytes()) if path.exists() else []
        with (directory / "rewritten.new").open("w", encoding="utf-8") as file:
            json.dump([*lines, record().encode().decode("utf-8")], file)
            file.flush()
            os.fsync(file.fileno())
        (directory / "rewritten.new").replace(path)


def count(directory: Path) -> dict[str, int]:
    """Return how many lines each way has left."""
    with sqlite3.connect(directory / "rows.sqlite") as connection:
        (rows,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    return {
        "manifest": len(read_manifest(ExperimentLayout.of(directory)).records),
        "bare appends": (directory / "appended").read_bytes().count(b"\n"),
        "SQLite": rows,
        "one JSON file": len(json.loads((directory / "rewritten.json").read_bytes())),
    }


WAYS: Final[dict[str, Way]] = {
    "manifest": by_the_manifest,
    "bare appends": by_bare_appends,
    "SQLite": by_sqlite,
    "one JSON file": by_rewriting,
}


def write_for(seconds: float, writers: int, way: Way, directory: Path) -> int:
    """Let that many processes write for a time; returns how many lines they say they have written."""
    gate, answers = os.pipe(), os.pipe()
    pids = []
    for _ in range(writers):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(gate[1])
                os.read(gate[0], 1)
                end = time.perf_counter() + seconds
                written = 0
                while time.perf_counter() < end:
                    way(directory)
                    written += 1
                os.write(answers[1], f"{written}\n".encode("ascii"))
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(gate[0])
    os.close(answers[1])
    os.close(gate[1])
    with os.fdopen(answers[0]) as stream:
        written = sum(int(line) for line in stream)
    for pid in pids:
        os.waitpid(pid, 0)
    return written


def fill(directory: Path, lines: int) -> None:
    """Begin with an index of that many lines, in every way."""
    ExperimentLayout.of(directory).runs.mkdir(parents=True)
    encoded = [record().encode() for _ in range(lines)]
    ExperimentLayout.of(directory).manifest.write_bytes(b"".join(encoded))
    (directory / "appended").write_bytes(b"".join(encoded))
    (directory / "rewritten.json").write_text(json.dumps([line.decode("utf-8") for line in encoded]), encoding="utf-8")
    with sqlite3.connect(directory / "rows.sqlite") as connection:
        connection.execute("CREATE TABLE runs (line TEXT)")
        connection.executemany("INSERT INTO runs VALUES (?)", [(line.decode("utf-8"),) for line in encoded])


def main(
    writers: Annotated[list[int] | None, typer.Option(help="How many processes; may be repeated.")] = None,
    lines: Annotated[list[int] | None, typer.Option(help="How many lines are there before; may be repeated.")] = None,
    seconds: Annotated[float, typer.Option(help="How long each way writes at a time.")] = 2.0,
    repetitions: Annotated[int, typer.Option(help="Turns for each figure.")] = 3,
    directory: Annotated[Path | None, typer.Option(help="Where to write.")] = None,
) -> None:
    """Measure appends to the manifest."""
    others = list(WAYS)[1:]
    rate_columns = (f"{name}\n[lines/s]" for name in WAYS)
    table = Table("lines before", "writers", *rate_columns, *(f"manifest /\n{name}" for name in others))
    for before in lines or [0, 100_000]:
        for number in writers or [1, 4, 16]:
            rates: dict[str, list[float]] = {name: [] for name in WAYS}
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                place = Path(scratch, "experiment")
                fill(place, before)
                written = dict.fromkeys(WAYS, before)
                for _ in range(repetitions):
                    for name, way in WAYS.items():
                        now = write_for(seconds, number, way, place)
                        written[name] += now
                        rates[name].append(now / seconds)
                if count(place) != written:
                    raise RuntimeError(f"lines were lost: {count(place)}, not {written}")
            medians = {name: statistics.median(each) for name, each in rates.items()}
            table.add_row(
                f"{before:,}",
                str(number),
                *(f"{medians[name]:,.0f} ({min(each):,.0f} to {max(each):,.0f})" for name, each in rates.items()),
                *(f"{medians['manifest'] / medians[name]:,.2g}" for name in others),
            )
    Console(width=160).print(table)


if __name__ == "__main__":
    typer.run(main)
