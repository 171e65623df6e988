"""Try a mount: which of the guarantees that the layout rests on it gives, between the processes of one host or two.

Everything is tried in a private directory, which is removed at the end. What the layout itself uses is tried with the
verbs that it uses.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from immutable_logs.check_filesystem import content, names, peers, times_and_access
from immutable_logs.check_filesystem.findings import DEGRADED, HOLDS, MISSING, Finding, Report
from immutable_logs.check_filesystem.marks import FILES, LINKS
from immutable_logs.check_filesystem.meeting import HOST, Meeting, open_meeting
from immutable_logs.check_filesystem.workshop import find_leftovers, open_workshop, require_directory
from immutable_logs.mounts import file_system_type

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["DEGRADED", "HOLDS", "MISSING", "Finding", "Report", "check_filesystem", "check_filesystem_with_peer"]


def check_filesystem(directory: Path) -> Report:
    """Return which guarantees a directory gives to the processes of this host.

    Args:
        directory: An existing directory that can be written in; nothing is left there.

    Raises:
        ConfigurationError: If there is no such directory.
        OSError: If it cannot be written in, or whatever else the file system says.
    """
    directory = require_directory(directory)
    leftovers = find_leftovers(directory)
    with open_workshop(directory) as workshop:
        findings = _check_alone(workshop)
    return Report(str(directory), file_system_type(directory), (socket.gethostname(),), tuple(findings), leftovers)


def check_filesystem_with_peer(
    directory: Path, name: str, *, wait: float, tell: Callable[[str], None]
) -> Report | None:
    """Return which guarantees a directory gives to the processes of two hosts, on both of which this is called.

    Args:
        directory: As for `check_filesystem`.
        name: What the two calls have in common.
        wait: Seconds to wait for the other at any point.
        tell: Is given a sentence on what is waited for.

    Returns:
        The report, on the host that came first; None on the other.

    Raises:
        PeerError: If the other does not come, or falls silent.
        ConfigurationError: If there is no such directory, the name is none, or two others use it.
        OSError: As for `check_filesystem`.
    """
    directory = require_directory(directory)
    leftovers = find_leftovers(directory)
    with open_meeting(directory, name, wait=wait) as meeting:
        if not meeting.is_first:
            tell("The other call prints what is found")
            _check_together(meeting)
            return None
        tell(f"Waiting for the other host. HINT: run the same command there, with --peer {name}")
        hosts, between = _check_together(meeting)
        with open_workshop(directory) as workshop:
            alone = _check_alone(workshop)
    return Report(str(directory), file_system_type(directory), hosts, (*alone, *between), leftovers)


def _check_alone(workshop: Path) -> list[Finding]:
    links = names.check_symbolic_links(workshop)
    with_links = links.verdict == HOLDS
    return [
        content.check_writing(workshop),
        names.check_exclusive_files(workshop),
        links,
        *([names.check_exclusive_links(workshop)] if with_links else []),
        names.check_hard_links(workshop),
        names.check_switch(workshop, LINKS if with_links else FILES),
        names.check_rename_over_open_file(workshop),
        content.check_appends(workshop),
        content.check_locks(workshop),
        content.check_flushing(workshop),
        times_and_access.check_times(workshop),
        times_and_access.check_group_access(workshop),
        names.check_names(workshop),
    ]


def _check_together(meeting: Meeting) -> tuple[tuple[str, ...], list[Finding]]:
    """Do the same steps as the other does; the findings are those of the one who came first."""
    hosts = (socket.gethostname(), str(meeting.exchange(HOST, socket.gethostname())))
    clocks = peers.measure_clocks(meeting)
    marks = peers.choose_marks(meeting)
    findings = [
        peers.judge_new_names(clocks),
        peers.check_switch(meeting, marks),
        peers.check_races(meeting, marks, clocks),
        peers.check_locks(meeting),
        peers.check_appends(meeting, clocks),
        peers.judge_clocks(clocks),
    ]
    # The first removes the directory, so that it waits for the second, and the second for nobody.
    if meeting.is_first:
        meeting.hear("end")
    else:
        meeting.say("end")
    return hosts, findings
