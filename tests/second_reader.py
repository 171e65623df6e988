"""List the runs of an experiment; written from docs/reference/on-disk-format.md alone.

`python second_reader.py EXPERIMENT` prints the runs as JSON.
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import pathlib
import re
import socket
import stat
import sys
import time

Record = dict[str, object]
Types = dict[str, tuple[type, ...]]

NULL = type(None)
RUN_ID = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2}Z_[0-9a-z]{5}")
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,6}Z")
JSON_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
LONGEST_LINE, DEEPEST_NESTING, FRESH_SECONDS = 1 << 20, 100, 600

# What the known events tell of: of each part of a run the first line counts (R12).
PARTS = {"started": ["start"], "adopted": ["start", "adopted"], "finished": ["end"], "pruned": ["pruned"]}

# The types of the keys of each document; a key is required if it stands in the second value.
LINE: tuple[Types, set[str]] = ({"event": (str,), "run": (str,), "time": (str,)}, {"event", "run", "time"})
RUN: tuple[Types, set[str]] = (
    dict.fromkeys(("run", "started", "launch_key", "launch_source", "lineage", "user", "working_directory"), (str,))
    | dict.fromkeys(("resumed_from", "checkpoint", "checkpoints", "git_commit", "job"), (str, NULL))
    | {"generation": (int,), "world_size": (int, NULL), "process": (dict,), "arguments": (list,), "versions": (dict,)},
    {"run", "started"},
)
FINISH: tuple[Types, set[str]] = (
    dict.fromkeys(("run", "ended", "outcome"), (str,))
    | {"error": (str, NULL), "step": (int, NULL), "ranks_joined": (int, NULL)},
    {"run", "ended", "outcome"},
)
RANK: tuple[Types, set[str]] = (
    dict.fromkeys(("joined", "nonce", "host", "boot_id", "pid_namespace"), (str,))
    | dict.fromkeys(("global_rank", "local_rank", "node_rank", "pid"), (int,))
    | {"start_ticks": (int, NULL)},
    {"joined", "nonce", "global_rank", "local_rank", "node_rank", "host", "pid"},
)


def is_too_deep(text: str) -> bool:
    """Tell whether valid JSON is nested more deeply than a document may be (R4)."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", JSON_TEXT.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST_NESTING:
            return True
    return False


def parse_document(data: bytes, types: Types, required: set[str]) -> Record | None:
    """Return the document that the bytes hold, or None if they hold none (R4)."""
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or is_too_deep(text) or not required <= value.keys():
        return None
    if integer_of(value, "format") != 1:
        return None
    return value if all(has_type(value, key, types[key]) for key in types.keys() & value.keys()) else None


def has_type(record: Record, key: str, types: tuple[type, ...]) -> bool:
    """Tell whether a value has one of the types; an integer must be one of the specification."""
    return type(record[key]) in types and (type(record[key]) is not int or integer_of(record, key) is not None)


def read_file(path: pathlib.Path, flags: int = 0) -> bytes:
    """Return what a file holds; never wait for a pipe in its place."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no file")
        return file.read()


def read_document(path: pathlib.Path, types: Types, required: set[str]) -> Record | None:
    """Return the document in a file, or None if it is not there (R4)."""
    try:
        return parse_document(read_file(path), types, required)
    except OSError:
        return None


def read_manifest(path: pathlib.Path) -> list[Record]:
    """Return the lines of the manifest that name a run (R8 to R11, R18)."""
    try:
        pieces = read_file(path, os.O_NOFOLLOW).split(b"\n")
    except FileNotFoundError:
        return []
    lines = (parse_document(piece, *LINE) for piece in pieces if len(piece) < LONGEST_LINE)
    return [line for line in lines if line is not None and RUN_ID.fullmatch(str(line["run"]))]


def read_latest(experiment: pathlib.Path) -> str | None:
    """Return the id of the run that `latest` shows, or None (R14)."""
    try:
        name = os.readlink(experiment / "latest")
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):  # no name, or no link
            return None
        try:
            name = "runs/" + read_file(experiment / "runs" / "latest.txt").strip().decode("ascii")
        except (OSError, ValueError):
            return None
    run = name.removeprefix("runs/")
    return run if name.startswith("runs/") and RUN_ID.fullmatch(run) else None


def text_of(record: Record, key: str) -> str | None:
    """Return the text of a key that is not required; empty text and other types are null (R6)."""
    value = record.get(key)
    return value if isinstance(value, str) and value else None


def integer_of(record: Record, key: str) -> int | None:
    """Return the integer of a key; other types are null, a truth value too, and what has more than 64 bits."""
    value = record.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def parse_time(value: object) -> dt.datetime | None:
    """Return the time that a text gives, or None if it gives none (R3)."""
    if not isinstance(value, str) or not TIME.fullmatch(value):
        return None
    try:
        return dt.datetime.strptime(value, "%Y-%m-%dT%H:%M:%S.%f%z")
    except ValueError:  # a date that does not exist
        return None


def time_of_id(run: str) -> dt.datetime:
    """Return the time in a run id, or the beginning of 1970 if it names none (R2)."""
    found = parse_time(f"{run[:10]}T{run[11:19].replace('-', ':')}.0Z")
    return found or dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def format_time(moment: dt.datetime) -> str:
    """Write a time in the one form that records have."""
    shown = min(moment, dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.timezone.utc))
    return shown.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def read_start(line: Record | None, directory: pathlib.Path | None) -> Record:
    """Return the start of a run with the keys of a `started` line; it is empty if there is none."""
    if line is not None:
        return line
    record = read_document(directory / "run.json", *RUN) if directory else None
    if record is None:
        return {}
    process = record.get("process")
    host = process.get("host") if isinstance(process, dict) else None
    return record | {"time": record["started"], "source": record.get("launch_source"), "host": host}


def read_end(line: Record | None, directory: pathlib.Path | None) -> Record | None:
    """Return the end of a run with the keys of a `finished` line, or None (R23)."""
    if line is not None:
        return line | {"outcome": text_of(line, "outcome")}
    record = read_document(directory / "finished.json", *FINISH) if directory else None
    return None if record is None else record | {"time": record["ended"], "outcome": text_of(record, "outcome")}


def own_text(path: str) -> str:
    """Return what a link or a file of /proc holds for this process; it is empty if unknown."""
    try:
        return os.readlink(path) if os.path.islink(path) else pathlib.Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def process_lives(pid: object, start_ticks: object) -> bool:
    """Tell whether the process with this number and start time exists and has not ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[19]) == start_ticks and fields[0] not in (b"Z", b"X")
    except (OSError, ValueError, IndexError):
        return False


def is_alive(directory: pathlib.Path) -> bool:
    """Judge whether a run without an end is running (R24)."""
    entry = read_document(directory / "ranks" / "0000" / "rank-000000.json", *RANK) or {}
    if text_of(entry, "boot_id") and entry.get("start_ticks") is not None:
        own = (socket.gethostname(), own_text("/proc/sys/kernel/random/boot_id"), own_text("/proc/self/ns/pid"))
        if own == (entry["host"], entry["boot_id"], entry.get("pid_namespace") or ""):
            return process_lives(entry["pid"], entry["start_ticks"])
    newest = max(map(written_at, [directory, *(directory / name for name in list_names(directory))]))
    return abs(time.time() - newest) <= FRESH_SECONDS


def written_at(path: pathlib.Path) -> float:
    """Return when a path was last written, or minus infinity if it went meanwhile."""
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return float("-inf")


def list_names(directory: pathlib.Path) -> list[str]:
    """Return the names in a directory, none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def count_entries(ranks: pathlib.Path) -> int:
    """Count the names that begin with `rank-` in the directories in `ranks/` (R32)."""
    return sum(name.startswith("rank-") for shard in list_names(ranks) for name in list_names(ranks / shard))


def is_directory(path: pathlib.Path) -> bool:
    """Tell whether there is a directory, not a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def order_runs(runs: set[str], starts: dict[str, Record], adopted: set[str]) -> list[str]:
    """Return the runs in their order (R19 to R21); `starts` has the order of the manifest."""
    started = [run for run in starts if run not in adopted]
    places: list[list[str]] = [[] for _ in range(len(started) + 1)]
    for run in sorted(runs - starts.keys()):
        places[next((place for place, other in enumerate(started) if other > run), len(started))].append(run)
    ordered = sorted(adopted, key=lambda run: (str(starts[run]["time"]), run))
    for place, run in zip(places, started, strict=False):
        ordered += [*place, run]
    return ordered + places[-1]


def describe_run(run: str, path: pathlib.Path, exists: bool, lines: dict[str, Record]) -> Record:
    """Return what is known of a run (R22 to R32); `lines` has the lines that count, by part."""
    directory = path if exists else None
    start, end = read_start(lines.get("start"), directory), read_end(lines.get("end"), directory)
    if "pruned" in lines:
        status = "pruned"
    elif directory is None:
        status = "missing"
    elif "adopted" in lines:
        status = "adopted"
    elif end is not None and isinstance(end["outcome"], str):
        status = end["outcome"]
    else:
        status = "running" if is_alive(directory) else "unknown"
    started, ended = parse_time(start.get("time")) or time_of_id(run), parse_time(end["time"]) if end else None
    until = dt.datetime.now(dt.timezone.utc) if status == "running" and end is None else ended
    world_size, joined = integer_of(start, "world_size"), integer_of(end or {}, "ranks_joined")
    if directory and (joined is None or world_size not in (None, joined)):
        entries = count_entries(directory / "ranks")
        joined = entries if joined is None else max(joined, entries)
    return {
        "run": run,
        "status": status,
        "started": format_time(started),
        "ended": format_time(ended) if ended else None,
        "duration_seconds": round(max(0.0, (until - started).total_seconds()), 3) if until else None,
        **{key: text_of(start, key) for key in ("host", "job", "lineage", "resumed_from", "source")},
        "world_size": world_size,
        "step": integer_of(end or {}, "step"),
        "ranks_joined": joined,
        "path": str(path),
    }


def read_runs(experiment: pathlib.Path) -> list[dict[str, object]]:
    """Return the runs of an experiment in their order; raise OSError if they cannot be read (R16 to R18)."""
    latest = read_latest(experiment)
    counting: dict[str, dict[str, Record]] = {}
    starts: dict[str, Record] = {}
    for line in read_manifest(experiment / "runs" / "manifest.jsonl"):
        lines = counting.setdefault(str(line["run"]), {})
        for part in PARTS.get(str(line["event"]), []):
            lines.setdefault(part, line)
            if part == "start":
                starts.setdefault(str(line["run"]), line)
    adopted = {run for run, lines in counting.items() if "adopted" in lines}
    names = os.listdir(experiment / "runs")
    directories = {name for name in names if RUN_ID.fullmatch(name) and is_directory(experiment / "runs" / name)}
    return [
        describe_run(run, experiment / "runs" / run, run in directories, counting.get(run, {}))
        | {"is_latest": run == latest}
        for run in order_runs(directories | counting.keys(), starts, adopted)
    ]


if __name__ == "__main__":
    print(json.dumps(read_runs(pathlib.Path(sys.argv[1])), indent=2))
