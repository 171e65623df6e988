"""The pages whose commands are run as they stand, in order, and whose output is what the commands print.

In a `console` block a line that begins with `$ ` is a command, and what follows is its output: a `…` stands for any
text, alone on a line for any lines. A run id on the page stands for one run on the whole page. Times, sizes, processes
and the place are another's each time. A Python block after the name of a file is that file.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.page_shell import PageShell

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DEMO = ROOT / "immutable_logs" / "demo"

PLACE_ON_THE_PAGE = re.compile(r"/home/user/[\w-]+")
HOST_ON_THE_PAGE = "node1"

RUN_ID = r"[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2}Z_[0-9a-z]{5}"
DIFFERENT_EACH_TIME = {
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?Z?": "TIME",
    r"\b[0-9]+ (?:d|h|min|s)\b(?: [0-9]+ (?:h|min)\b)?": "DURATION",
    r"\b[0-9.]+ (?:B|KiB|MiB)(?![\w])": "SIZE",
    r"val_loss=[0-9.]+[0-9]": "val_loss=LOSS",
    r"\b(single|torchrun) [0-9a-f]{16}\b": r"\1 TOKEN",
    r"\b([Rr])anks? [0-9](?:-[0-9])?\b": r"\1ank N",
    r"tfevents\.[0-9]+\.[\w.-]+": "tfevents.WRITER",
    r"\b(python|nemo|lightning|torch|omegaconf|hydra|immutable-logs) [0-9][\w.+]*": r"\1 VERSION",
    r"[ \t]+": " ",
}


def masked(text: str) -> str:
    """Return a line without what is different each time, and without the widths of columns."""
    for pattern, stand_in in DIFFERENT_EACH_TIME.items():
        text = re.sub(pattern, stand_in, text)
    return text.strip()


class Page:
    """One page, run command by command in one directory."""

    def __init__(self, page: Path, directory: Path, environment: dict[str, str]) -> None:
        self._text = page.read_text(encoding="utf-8")
        self._directory = directory
        self._shell = PageShell(directory, environment)
        self._runs: dict[str, str] = {}

    def run(self, *, sections: int | None = None) -> int:
        """Run the blocks of the page, or those of its first sections; returns how many commands there were."""
        text = "## ".join(self._text.split("\n## ")[: None if sections is None else sections + 1])
        count = 0
        blocks = re.findall(
            r"(?:^`([\w.-]+)`:\n\n)?^```(console|python|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        )
        for name, language, block in blocks:
            if language != "console":
                if name:
                    (self._directory / name).write_text(block, encoding="utf-8")
                continue
            for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = re.sub(r"\\\n\s*", "", each).partition("\n")
                self._check(command, output.splitlines(), self._shell.run(command)[1].splitlines())
                count += 1
        return count

    def _check(self, command: str, expected: list[str], found: list[str]) -> None:
        rest = iter(self._local(line) for line in found)
        is_open = False
        for line in expected:
            if line.strip() == "…":
                is_open = True
                continue
            pattern = self._pattern(line)
            seen = []
            for candidate in rest:
                seen.append(candidate)
                if match := re.fullmatch(pattern, candidate):
                    self._runs.update(match.groupdict())
                    break
                if not is_open:
                    break
            else:
                match = None
            assert match, f"$ {command}\nis to print {line!r}, which none of these lines is:\n" + "\n".join(seen)
            is_open = False
        assert is_open or not list(rest), f"$ {command}\nprints more than the page says:\n" + "\n".join(found)

    def _local(self, line: str) -> str:
        return masked(line.replace(str(self._directory), "PLACE"))

    def _pattern(self, line: str) -> str:
        """Return what a line of the page stands for: a run that was named before for itself, another for a new one."""
        line = PLACE_ON_THE_PAGE.sub("PLACE", re.sub(rf"\b{HOST_ON_THE_PAGE}\b", socket.gethostname(), line))
        parts = re.split(f"({RUN_ID})", masked(line))
        for index, part in enumerate(parts):
            if index % 2 == 0:
                parts[index] = re.escape(part).replace("…", ".*")
            elif (group := f"run{int(part[-5:], 36)}") in self._runs:
                parts[index] = re.escape(self._runs[group])
            else:
                parts[index] = f"(?P<{group}>{RUN_ID})" if group not in "".join(parts[:index]) else f"(?P={group})"
        return "".join(parts)


@pytest.mark.slow
def test_the_tutorial_begins_as_it_says(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    """The first run and what is seen of it; the rest of the tutorial trains six times more, and is a proof."""
    assert Page(DOCS / "tutorial.md", tmp_path, clean_environment).run(sections=2) == 5


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_the_tutorial_is_what_happens(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    """Every command of the tutorial prints what the page says, from the first run to the migrated directory."""
    assert Page(DOCS / "tutorial.md", tmp_path, clean_environment).run() > 20


@pytest.mark.slow
def test_a_pytorch_script_without_nemo(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    """The first script of the page, under torchrun; the one with Lightning takes longer, and is a proof."""
    assert Page(DOCS / "how-to" / "without-nemo.md", tmp_path, clean_environment).run(sections=1) == 4


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_scripts_without_nemo(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    """Both scripts of the page, and what is on disk after them."""
    assert Page(DOCS / "how-to" / "without-nemo.md", tmp_path, clean_environment).run() == 8


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_going_back_to_stock(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    """Stock NeMo goes on where the layout has left off, and what it makes is brought in afterwards."""
    assert Page(DOCS / "how-to" / "back-to-stock.md", tmp_path, clean_environment).run() == 9
