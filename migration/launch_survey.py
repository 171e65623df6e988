"""Which launches wrote into a log directory; pure.

Neither the directory of a file nor its number tells its launch: a launch moves what it finds, also the open logs of
its own early ranks, and a kill in the middle splits a launch over two places. What tells is time, in this order:

1. ``cmd-args.log`` is written once, when rank zero of a launch starts: its time *is* the start. Where it is gone,
   ``git-info.log``, the first line of the error log or the heading of rank zero's log stand in.
2. An archive ``run_N`` was last changed when a launch moved files into it, so that this time is a start too, perhaps
   of a launch of which nothing else is left.
3. An event file begins with the time when it was made and has its writer's process id in its name. A second process
   after a launch's last sign of life is another launch, of which only that file is left.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from migration.attribution import SETTING_UP, SKEW, SLACK, Attribution, Decision, clock
from migration.evidence import KEPT
from migration.file_kinds import Kind
from migration.legacy_layout import Place
from migration.past_launches import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from migration.evidence import FileEvidence
    from migration.legacy_layout import Source
    from migration.past_launches import PastLaunch


def survey_launches(sources: Sequence[Source], files: Iterable[FileEvidence]) -> Attribution:
    """Find the launches of a log directory.

    Args:
        sources: Its directories.
        files: Its files of the kinds in `migration.attribution.SURVEYED`, rank logs of rank zero only.
    """
    surveyed = sorted(files, key=lambda file: (file.source, file.name))
    zone, keeps_times = _judge_times(surveyed)
    found = Attribution(sources, zone=zone, keeps_times=keeps_times)
    by_kind: dict[Kind, list[FileEvidence]] = {}
    for file in surveyed:
        by_kind.setdefault(file.kind, []).append(file)
    events = by_kind.get(Kind.EVENTS, [])
    _find_starts(found, by_kind)
    _find_moves(found, sources)
    for file in by_kind.get(Kind.LIGHTNING, ()):
        found.settle(file, found.by_home(file), file.mtime)
    for file in by_kind.get(Kind.RANK_LOG, ()):
        _find_rank_zero(found, file)
    _place_events(found, events)
    for file in by_kind.get(Kind.RANK_LOG, ()):
        _share_rank_zero(found, file)
    for file in by_kind.get(Kind.HPARAMS, ()):
        found.settle(file, found.by_events(file, events), None)
    found.timeline.drop_empty()
    return found


def _find_starts(found: Attribution, by_kind: dict[Kind, list[FileEvidence]]) -> None:
    """Find the launches whose files of rank zero are there, first by what is written once at the start."""
    if found.keeps_times:
        for file in by_kind.get(Kind.ARGUMENTS, ()):
            launch = found.timeline.add(file.mtime, f"{file.path} was written then", file.source)
            found.settle(file, Decision(launch, f"written once, at the start: {clock(file.mtime)}"), file.mtime)
        for file in by_kind.get(Kind.GIT, ()):
            launch = found.timeline.started_near(
                file.mtime, file.source, before=SETTING_UP, after=SECOND
            ) or found.timeline.add(file.mtime, f"{file.path} was written then", file.source)
            reason = f"written at {clock(file.mtime)}, when the launch of {clock(launch.start)} was starting"
            found.settle(file, Decision(launch, reason), file.mtime)
    _find_error_logs(found, by_kind.get(Kind.ERRORS, []))
    if not found.keeps_times:
        for file in by_kind.get(Kind.RANK_LOG, ()):
            stamp = file.headers[0] if file.headers else file.first
            time = None if stamp is None else found.time(file, stamp)
            if time and found.timeline.started_near(time, file.source, before=SKEW, after=KEPT) is None:
                found.timeline.add(time, f"heading in {file.path}", file.source)
        for file in (*by_kind.get(Kind.ARGUMENTS, ()), *by_kind.get(Kind.GIT, ())):
            found.settle(file, found.by_home(file), None)


def _find_error_logs(found: Attribution, files: Sequence[FileEvidence]) -> None:
    for file in files:
        if file.first is None:
            continue
        first = found.time(file, file.first)
        launch = (
            found.timeline.started_near(first, file.source, before=SLACK, after=KEPT)
            or _started_within(found, file, first)
            or found.timeline.add(first, f"first line of {file.path}", file.source)
        )
        reason = f"first line {clock(first)}, launch started {clock(launch.start)}"
        found.settle(file, Decision(launch, reason), found.last_time(file))
    for file in files:
        if file.first is None:
            found.settle(file, found.by_home(file), None)


def _started_within(found: Attribution, file: FileEvidence, first: float) -> PastLaunch | None:
    """Return the launch of the same directory that started between a log's first line and its last write.

    NeMo 2's `NeMoLogger` begins the logs of rank zero, and writes down the command, when training starts: many minutes
    after the first message, where a large model is loaded.
    """
    if not found.keeps_times:
        return None
    return next(
        (launch for launch in found.timeline.at_home(file.source) if first <= launch.start <= file.mtime + SLACK), None
    )


def _find_moves(found: Attribution, sources: Sequence[Source]) -> None:
    """Add a launch for every archive whose last change is not the start of a known one."""
    if not found.keeps_times:
        return
    for source in sources:
        if (
            source.place is Place.ARCHIVE
            and found.timeline.started_near(source.mtime, None, before=1, after=SKEW) is None
        ):
            found.timeline.add(source.mtime, f"files were moved into {source.path} then", None)


def _find_rank_zero(found: Attribution, file: FileEvidence) -> None:
    """Give a log of rank zero to its launch, or make that launch if nothing else is left of it."""
    decision = found.by_segments(file)
    stamp = file.headers[0] if file.headers else file.first
    is_alone = decision.launch is None or (decision.launch.is_uncertain and len(decision.launch.candidates) <= 1)
    if is_alone and stamp is not None:
        start = found.time(file, stamp)
        launch = found.timeline.add(start, f"heading in {file.path}", file.source)
        decision = Decision(launch, f"begins at {clock(start)}, when no other launch started", decision.also)
    found.settle(file, decision, None)
    owners = [launch for launch in (decision.launch, *decision.also) if launch and not launch.is_uncertain]
    for begin, end in found.segments(file):
        for launch in owners:
            # With several headings, the part of the one launch must not prolong the life of the other.
            is_own = len(file.headers) <= 1 or end < found.timeline.next_start(launch)
            if is_own and launch.start - SKEW <= begin and end > launch.end:
                launch.end, launch.why_end = end, f"last line in {file.path}"


def _place_events(found: Attribution, files: Sequence[FileEvidence]) -> None:
    """Give each event file to the launch that was alive when it was made, and each launch to one process.

    A process that is possible for one launch only takes it from the other processes; that can settle the next one.
    Process ids tell nothing from one launch to another: in containers they are the same every time.
    """
    taken: dict[PastLaunch, object] = {}
    waiting = sorted(files, key=lambda file: (_born(file), file.path))
    while waiting:
        unsettled = []
        for file in waiting:
            writer = file.writer or file.path
            possible = [
                launch for launch in found.timeline.alive_at(_born(file)) if taken.get(launch, writer) == writer
            ]
            possible = [launch for launch in possible if launch in taken] or possible
            if len(possible) > 1:
                unsettled.append(file)
                continue
            launch = (
                possible[0]
                if possible
                else found.timeline.add(_born(file), f"{file.path} was made then, by a process of its own", None)
            )
            taken[launch] = writer
            reason = f"made at {clock(_born(file))}{_by(file)}, launch started {clock(launch.start)}"
            found.settle(file, Decision(launch, reason), file.mtime)
        if len(unsettled) == len(waiting):
            break
        waiting = unsettled
    for file in waiting:
        possible = [launch for launch in found.timeline.alive_at(_born(file)) if launch not in taken]
        found.settle(file, found.unsure(possible, f"made at {clock(_born(file))}{_by(file)}"), None)


def _share_rank_zero(found: Attribution, file: FileEvidence) -> None:
    """Give a log to those launches too that have gone on writing it and are known by their event files only."""
    if len(file.headers) > 1:
        known, now = found.decide(file), found.by_segments(file)
        owners = [known.launch, *known.also]
        others = [launch for launch in (now.launch, *now.also) if launch and launch not in owners]
        found.share(file, [launch for launch in others if not launch.is_uncertain], now.reason)


def _judge_times(files: Iterable[FileEvidence]) -> tuple[float, bool]:
    """Return the usual time zone of the stamps, and whether modification times can be believed.

    An error log tells less: its lines can be minutes old when they are written.
    """
    stamped = [file for file in files if file.last is not None]
    stamped = [file for file in stamped if file.kind is Kind.RANK_LOG] or stamped
    zones = Counter(file.zone for file in stamped if file.zone is not None)
    if not stamped:
        return 0.0, True
    if 2 * sum(zones.values()) < len(stamped):
        return 0.0, False
    return zones.most_common(1)[0][0], True


def _born(file: FileEvidence) -> float:
    return file.mtime if file.born is None else file.born


def _by(file: FileEvidence) -> str:
    return f" by process {file.writer[1]} on {file.writer[0]}" if file.writer else ""
