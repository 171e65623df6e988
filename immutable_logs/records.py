"""Fields, encoding and decoding of everything that is written down; no I/O, no clock.

Every document is one JSON object that begins with its format number. A reader ignores keys and keeps events that it
does not know, so that it survives a newer writer; it refuses only a format number that it does not know. No record
holds an absolute path to something inside the experiment.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from immutable_logs.errors import RecordError

if TYPE_CHECKING:
    from typing import TypeGuard

    from typing_extensions import Self

FORMAT: Final = 1

STARTED: Final = "started"
FINISHED: Final = "finished"
ADOPTED: Final = "adopted"
PRUNED: Final = "pruned"

OUTCOMES: Final = ("finished", "failed", "interrupted")
"""How a run can be recorded to have ended."""

MAX_ERROR_CHARACTERS: Final = 4000
"""Error texts are capped: an exception can carry a whole tensor."""

_TIME: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,6})Z\Z")
_TIME_LENGTH: Final = len("2026-12-01T02:28:15.000000")

_TYPES: Final[dict[str, Any]] = {
    "str": str,
    "int": int,
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
    "list[str]": list,
    "dict[str, Any]": dict,
    "dict[str, str]": dict,
    "Any": object,
}
"""What `isinstance` checks for each annotation of a record."""

_INTEGERS: Final = ("int", "int | None")

MAX_DEPTH: Final = 100
"""Levels of lists and mappings in a document: whoever goes through a deeper one by recursion uses up the stack."""

_MAX_INTEGER: Final = 2**63 - 1
"""Python reads longer numbers, of which then no float, no range and no table can be made."""

_LAST_SECOND: Final = 253_402_300_799.0
"""A damaged manifest can name any time; of the next second, `datetime` knows nothing."""


def format_time(seconds: float) -> str:
    """Return a Unix time as ISO 8601 in UTC, to the microsecond; at most the last second of the year 9999."""
    return (
        datetime.fromtimestamp(min(seconds, _LAST_SECOND), timezone.utc)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def parse_time(text: object) -> float | None:
    """Return the Unix time of what `format_time` wrote, or None."""
    if not isinstance(text, str):
        return None
    match = _TIME.match(text)
    if match is None:
        return None
    try:
        # Ten times quicker than `strptime`, which counts where a manifest has ten thousand lines.
        return datetime.fromisoformat(match.group(1).ljust(_TIME_LENGTH, "0")).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def cap_error(text: str) -> str:
    """Return an error text short enough for a record, its beginning and its end kept."""
    if len(text) <= MAX_ERROR_CHARACTERS:
        return text
    half = MAX_ERROR_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def is_integer(value: object) -> TypeGuard[int]:
    """Tell whether a value of a document is a number that a launch can have written; ``true`` is none."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_INTEGER


def encode_line(document: dict[str, Any]) -> bytes:
    """Return a document as one line of JSON, format number first, without anything that could break the line."""
    return json.dumps({"format": FORMAT, **document}, ensure_ascii=True, default=str).encode("ascii") + b"\n"


def decode_object(data: bytes, path: object) -> dict[str, Any]:
    """Return the JSON object in a file's bytes.

    Raises:
        RecordError: If it is torn, no object, or of an unknown format.
    """
    try:
        document = decode_json(data)
    except ValueError:
        raise RecordError(str(path), "expected a JSON object, found something incomplete or damaged") from None
    if not isinstance(document, dict):
        raise RecordError(str(path), f"expected a JSON object, found {type(document).__name__}")
    if not is_integer(document.get("format")) or document["format"] != FORMAT:
        raise RecordError(
            str(path),
            f"expected format {FORMAT}, found {document.get('format')!r}; a newer immutable-logs may be needed",
        )
    return document


def decode_json(data: bytes) -> object:
    """Return the value of a JSON text; numbers that JSON has no words for are text.

    Raises:
        ValueError: If it is damaged, no UTF-8, or nested more deeply than `MAX_DEPTH`.
    """
    try:
        document = _DECODER.decode(data.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # Counted first: only a large document can be deep, and every line of a manifest comes here.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _is_too_deep(document):
        raise ValueError(_TOO_DEEP)
    return document


def _is_too_deep(document: object) -> bool:
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            if isinstance(each, (dict, list))
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, (dict, list)) for each in level)


def _parse_float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


_DECODER: Final = json.JSONDecoder(parse_constant=str, parse_float=_parse_float)
_TOO_DEEP: Final = f"expected at most {MAX_DEPTH} levels, found more"


@dataclass(frozen=True, slots=True)
class _Document:
    """What the record files have in common; `unknown` keeps the keys of a newer writer."""

    unknown: dict[str, Any] = field(default_factory=dict, kw_only=True)

    def encode(self) -> bytes:
        """Return the bytes of the file: indented JSON, for people who look with `cat`."""
        document = asdict(self)
        unknown = document.pop("unknown")
        text = json.dumps({"format": FORMAT, **document, **unknown}, indent=2, ensure_ascii=False, default=str)
        return text.encode("utf-8", "backslashreplace") + b"\n"

    @classmethod
    def decode(cls, data: bytes, path: object) -> Self:
        """Return the record in a file's bytes.

        Raises:
            RecordError: If the document is incomplete, damaged or of an unknown format, or a key is missing or holds
                another type.
        """
        document = decode_object(data, path)
        del document["format"]
        known = {each.name for each in fields(cls)} - {"unknown"}
        unknown = {key: document.pop(key) for key in list(document) if key not in known}
        try:
            record = cls(**document, unknown=unknown)
        except TypeError as error:
            raise RecordError(str(path), f"a needed key is missing ({error})") from None
        for each in fields(cls):
            value = getattr(record, each.name)
            if not isinstance(value, _TYPES[str(each.type)]) or (
                each.type in _INTEGERS and value is not None and not is_integer(value)
            ):
                raise RecordError(str(path), f"the key {each.name!r} holds something else than {each.type}")
        return record


@dataclass(frozen=True, slots=True)
class RunRecord(_Document):
    """The content of ``run.json``: who started a run, how, and from what.

    Attributes:
        run: The run id.
        started: When, as text of `format_time`.
        launch_key: The launch key, readable.
        launch_source: Which rule gave the launch key.
        generation: Which claim of the launch key this run is.
        world_size: How many ranks are expected, if known.
        lineage: The first run of the chain of resumed runs; the run itself if it resumed nothing.
        resumed_from: The run that wrote the checkpoint this run starts from, if known.
        checkpoint: The checkpoint this run starts from, relative to the experiment where it is inside.
        checkpoints: Where this run's checkpoints go, relative to the experiment where it is inside.
        process: Host, process id and so on of rank zero, as in its rank entry.
        user: The login name.
        arguments: The command line, secrets redacted.
        working_directory: Where the command was started.
        git_commit: The commit of the working directory, if it is a git checkout.
        versions: Version numbers by package name.
        configuration: The configuration given, secrets redacted.
        job: The scheduler's job id, if there is one.
        adopted_from: For a run that a migration made: where its files lie.
    """

    run: str
    started: str
    launch_key: str = ""
    launch_source: str = ""
    generation: int = 1
    world_size: int | None = None
    lineage: str = ""
    resumed_from: str | None = None
    checkpoint: str | None = None
    checkpoints: str | None = None
    process: dict[str, Any] = field(default_factory=dict)
    user: str = ""
    arguments: list[str] = field(default_factory=list)
    working_directory: str = ""
    git_commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    configuration: Any = None
    job: str | None = None
    adopted_from: Any = None

    @property
    def manifest_line(self) -> ManifestRecord:
        """The line that rank zero appends when it publishes the run."""
        details = {
            "host": self.process.get("host"),
            "source": self.launch_source,
            "job": self.job,
            "world_size": self.world_size,
            "lineage": self.lineage,
            "resumed_from": self.resumed_from,
        }
        return ManifestRecord(STARTED, self.run, self.started, details)


@dataclass(frozen=True, slots=True)
class FinishRecord(_Document):
    """The content of ``finished.json``: how a run ended.

    Attributes:
        run: The run id.
        ended: When, as text of `format_time`.
        outcome: One of `OUTCOMES`.
        error: What went wrong, capped.
        step: The last global step reached, if known.
        ranks_joined: How many ranks had joined by then.
    """

    run: str
    ended: str
    outcome: str
    error: str | None = None
    step: int | None = None
    ranks_joined: int | None = None

    @property
    def manifest_line(self) -> ManifestRecord:
        """The line that rank zero appends when the run has ended."""
        details = {"outcome": self.outcome, "step": self.step, "ranks_joined": self.ranks_joined}
        return ManifestRecord(FINISHED, self.run, self.ended, details)


@dataclass(frozen=True, slots=True)
class RankRecord(_Document):
    """A rank's entry: which process joined.

    Attributes:
        joined: When, by the clock of the node, as text of `format_time`.
        nonce: Random; tells a rank that was told "exists" about its own entry from another's.
        global_rank: 0-based rank in the launch.
        local_rank: 0-based rank on the node.
        node_rank: 0-based number of the node.
        host: Host name.
        boot_id: Identifies one boot of that host; empty if unknown.
        pid: Process id.
        pid_namespace: Identifies the name space in which the pid counts; empty if unknown.
        start_ticks: When the process started, in clock ticks since boot; None if unknown.
    """

    joined: str
    nonce: str
    global_rank: int
    local_rank: int
    node_rank: int
    host: str
    pid: int
    boot_id: str = ""
    pid_namespace: str = ""
    start_ticks: int | None = None


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """One line of the manifest.

    Attributes:
        event: `STARTED`, `FINISHED`, `ADOPTED`, `PRUNED`, or one that a newer version wrote.
        run: The run id.
        time: When, as text of `format_time`.
        details: Every further key.
    """

    event: str
    run: str
    time: str
    details: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the line."""
        return encode_line({"event": self.event, "run": self.run, "time": self.time, **self.details})

    @classmethod
    def decode(cls, line: bytes) -> ManifestRecord | None:
        """Return the record in a line, or None where there is none to be had."""
        try:
            document = decode_json(line)
        except ValueError:
            return None
        if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
            return None
        event, run, time = (document.pop(key, None) for key in ("event", "run", "time"))
        if not (isinstance(event, str) and isinstance(run, str) and isinstance(time, str)):
            return None
        return cls(event, run, time, document)
