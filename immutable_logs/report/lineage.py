"""Which run continues which: each lineage as the runs in a row, and a row for each branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from immutable_logs.report.markup import Markup, element, join, shorten
from immutable_logs.report.status import draw_sign
from immutable_logs.report.wording import counted, moment, number, run_link, short_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from immutable_logs.catalog import RunSummary
    from immutable_logs.report.contents import Contents


def find_chains(runs: Sequence[str], parents: Mapping[str, str | None]) -> list[list[str]]:
    """Return runs in chains, in each of which every run continues the one before it.

    A run that was continued twice is followed, in its own chain, by the run that was continued last in turn; each
    other one begins a chain.

    Args:
        runs: The runs, the oldest first.
        parents: For each run, the one that it continues. What is not among the runs, or comes after, counts as none.
    """
    children: dict[str, list[str]] = {}
    seen: set[str] = set()
    for run in runs:
        parent = parents.get(run)
        if parent is not None and parent in seen:
            children.setdefault(parent, []).append(run)
        seen.add(run)
    follower = {parent: found[-1] for parent, found in children.items()}
    following = set(follower.values())
    chains = []
    for run in runs:
        if run not in following:
            chain = [run]
            while chain[-1] in follower:
                chain.append(follower[chain[-1]])
            chains.append(chain)
    return chains


def draw_lineages(contents: Contents) -> Markup:
    """Return the lineages of the runs that are shown, the newest first; those of a single run in one line."""
    runs = {run.id: run for run in contents.runs}
    chains = find_chains(list(runs)[::-1], contents.parents)
    by_lineage: dict[str, list[list[str]]] = {}
    for chain in chains:
        by_lineage.setdefault(contents.lineages[chain[0]], []).append(chain)
    resumed = {
        lineage: found
        for lineage, found in by_lineage.items()
        if len(found) > 1 or len(found[0]) > 1 or _parent(contents, found[0])
    }
    age = {run: index for index, run in enumerate(runs)}
    newest_first = sorted(resumed.items(), key=lambda each: min(age[chain[-1]] for chain in each[1]))
    blocks = [_draw_lineage(contents, lineage, found, runs) for lineage, found in newest_first]
    single = [found[0][0] for lineage, found in by_lineage.items() if lineage not in resumed][::-1]
    if single:
        chips = element("ol", *(element("li", _chip(contents, runs[run], runs)) for run in single), class_="chips")
        blocks.append(
            element(
                "section",
                element("h3", f"{counted(len(single), 'run')} that neither continued another nor was continued"),
                chips,
                class_="lineage",
            )
        )
    return join(blocks)


def _draw_lineage(
    contents: Contents, lineage: str, chains: Sequence[Sequence[str]], runs: Mapping[str, RunSummary]
) -> Markup:
    rows = []
    count = sum(map(len, chains))
    for chain in chains:
        parent = _parent(contents, chain)
        before = None
        if parent is not None:
            before = element("li", "from ", run_link(parent, runs), class_="origin")
        items = [element("li", _chip(contents, runs[run], runs)) for run in chain]
        rows.append(element("ol", before, *items, class_="chips chain"))
    first = runs.get(lineage)
    since = "" if first is None else f", begun {moment(first.started)} UTC"
    heading = element("h3", f"Lineage {short_id(lineage)}: {counted(count, 'run')}{since}")
    return element("section", heading, *rows, class_="lineage")


def _parent(contents: Contents, chain: Sequence[str]) -> str | None:
    return contents.parents.get(chain[0])


def _chip(contents: Contents, run: RunSummary, runs: Mapping[str, RunSummary]) -> Markup:
    first, last = contents.steps.get(run.id, (None, run.step))
    last = run.step if run.step is not None else last
    steps = None
    if last is not None:
        text = f"to step {number(last)}" if first is None else f"step {number(first)} to {number(last)}"
        steps = element("span", text, class_="steps")
    name = element("span", draw_sign(run.status), run_link(run.id, runs), class_="name")
    status = element("span", shorten(run.status), class_="word")
    return element("span", name, status, steps, class_="chip")
