"""`immutable-logs check-filesystem`: what a mount gives of what the layout needs."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from immutable_logs.check_filesystem import DEGRADED, HOLDS, MISSING, Report, check_filesystem
from immutable_logs.check_filesystem import check_filesystem_with_peer as check_with_peer
from immutable_logs.cli.command_group import FINDING
from immutable_logs.cli.options import JsonOption
from immutable_logs.cli.terminal import cell, new_table, note, open_console, print_json, print_table
from immutable_logs.records import FORMAT

_WAIT: Final = 180.0
"""Seconds; a name that an NFS client has asked for in vain can stay unseen for a minute, there and back for two."""

_STYLES: Final = {HOLDS: "green", DEGRADED: "yellow", MISSING: "bold red"}


def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory on the mount, to write in.")],
    *,
    peer: Annotated[
        str | None,
        typer.Option("--peer", metavar="NAME", help="Try it together with the same command on a second host."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=1,
            max=86400,
            help="How long to wait for the other host.",
            show_default=True,
        ),
    ] = _WAIT,
    as_json: JsonOption = False,
) -> None:
    """Try what a mount gives of what the layout needs, and say what follows from it.

    Files, links, renames, appends, locks and flushes are tried in a private directory below DIR, by several processes
    at once where that matters; it takes some seconds and leaves nothing there. `holds`: as needed. `degraded`: the
    layout works there in another way, or with a promise less. `missing`: runs could be mixed up there; exit code 1.

    What a host does and when another sees it can be tried by two hosts only: run the same command on both, with one
    name of your choice for --peer. The call that comes first prints what was found, and tells the other's host.

    \b
    Examples:
      immutable-logs check-filesystem /scratch/me
      immutable-logs check-filesystem /scratch/me --json | jq -r '.findings[] | select(.verdict == "missing").name'
      srun -N2 --ntasks-per-node=1 immutable-logs check-filesystem /scratch/me --peer try-1
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    report = check_filesystem(directory) if peer is None else check_with_peer(directory, peer, wait=wait, tell=note)
    if report is None:
        return
    if as_json:
        print_json(_document(report))
    else:
        _print_report(report)
    if not report.is_fit:
        raise typer.Exit(FINDING)


def _end(number: int, _frame: object) -> NoReturn:
    """End the command as the shell tells it of a signal, but with what it has made removed."""
    raise SystemExit(128 + number)


def _document(report: Report) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "directory": report.directory,
        "file_system": report.file_system,
        "hosts": list(report.hosts),
        "is_fit": report.is_fit,
        "findings": [asdict(finding) for finding in report.findings],
        "leftovers": list(report.leftovers),
    }


def _print_report(report: Report) -> None:
    table = new_table("GUARANTEE", "VERDICT", "FOUND", "MEANS", whole=("GUARANTEE", "VERDICT"))
    for finding in report.findings:
        table.add_row(
            cell(finding.name),
            cell(finding.verdict, _STYLES[finding.verdict]),
            cell(finding.found),
            cell(finding.consequence),
        )
    print_table(open_console(), table)
    verdicts = [finding.verdict for finding in report.findings]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in (HOLDS, DEGRADED, MISSING))
    note(f"{counts}: {report.directory} ({report.file_system or 'unknown file system'}), tried {_by_whom(report)}")
    if report.leftovers:
        note(
            f"Beside it, of other checks that go on or were killed: {', '.join(report.leftovers)}. "
            "HINT: remove what no check is using"
        )


def _by_whom(report: Report) -> str:
    if len(report.hosts) == 1:
        return f"on {report.hosts[0]} alone. HINT: --peer tries it on two hosts"
    first, second = report.hosts
    if first == second:
        return f"by two calls on one host, {first}. HINT: this tells nothing of two hosts"
    return f"on {first} and {second}"
