"""The documentation: its links lead somewhere, its Python runs, its facts are those of the code."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    """Every relative link of a page names a file or directory of the repository."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """Every Python block of a page that needs neither NeMo nor torch runs as it stands, in an empty directory."""
    for block in _blocks(page, "python"):
        if any(word in block for word in ("enable()", "nemo", "torch")):
            compile(block, str(page), "exec")
            continue
        finished = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_other_languages_can_be_read(page: Path) -> None:
    """Every YAML block is YAML, and the shell takes every script, without running it."""
    for block in _blocks(page, "yaml"):
        assert OmegaConf.create(block)
    for block in _blocks(page, "bash"):
        finished = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert (finished.returncode, finished.stderr) == (0, ""), block


def test_the_specification_names_every_key_of_every_record() -> None:
    """`docs/reference/on-disk-format.md` mentions each field that the code writes."""
    from dataclasses import fields

    from immutable_logs.records import FinishRecord, RankRecord, RunRecord

    text = (ROOT / "docs" / "reference" / "on-disk-format.md").read_text(encoding="utf-8")
    for record in (RunRecord, FinishRecord, RankRecord):
        missing = [field.name for field in fields(record) if field.name != "unknown" and f"`{field.name}`" not in text]
        missing = [name for name in missing if name not in ("boot_id", "pid_namespace", "start_ticks", "host", "pid")]
        assert missing == [], record.__name__


def test_the_page_on_configuration_names_every_variable_that_is_read() -> None:
    """Those that the demo sets for its trainings apart."""
    text = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    packages = [path for name in ("immutable_logs", "migration") for path in (ROOT / name).rglob("*.py")]
    constants = {
        node.value
        for path in packages
        if path.parent.name != "demo"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    variables = {name for name in constants if re.fullmatch(r"_?[A-Z]{2,}[A-Z0-9]*(_\w+)+|RANK|TERM", name)}
    variables.remove("SC_CLK_TCK")  # a name of sysconf
    assert {"RANK", "NEMO_LOG_LAYOUT", "PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"} < variables
    assert [name for name in sorted(variables) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("letter", "WR")
def test_the_requirements_of_the_specification_are_numbered_in_order(letter: str) -> None:
    """W1, W2, … for writers and R1, R2, … for readers, each once, so that one can be named."""
    text = (ROOT / "docs" / "reference" / "on-disk-format.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(rf"(?:^- |\| ){letter}([0-9]+): ", text, re.MULTILINE)]
    assert len(numbers) > 20
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_run_has_the_tree_that_the_specification_shows(tmp_path: Path) -> None:
    """What `start_run` leaves at the top and in `runs/` is what the specification lists, and each name fits."""
    import immutable_logs

    with immutable_logs.start_run(tmp_path) as first, immutable_logs.start_run(tmp_path) as second:
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "runs"]
    names = {path.name for path in (tmp_path / "runs").iterdir()}
    assert names == {"manifest.jsonl", ".launches", ".latest", first.id, second.id}
    found = sorted(str(path.relative_to(first.path)) for path in first.path.rglob("*") if path.is_file())
    assert found == ["finished.json", "ranks/0000/rank-000000.json", "run.json"]
    for path in (tmp_path / "runs").rglob("*.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["format"] == 1


GUARANTEES = ROOT / "docs" / "explanation" / "guarantees.md"
NAMED_TEST = re.compile(r"\[`((?:Test\w+\.)?test_\w+)`\]\(([^)]+\.py)\)")


def _tests_of(path: Path) -> set[str]:
    """Return the names of the tests of a file, those in a class as `Class.test`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    """A link with the name of a test leads to the file that has it, and no test is named without such a link."""
    text = page.read_text(encoding="utf-8")
    named = [(name, (page.parent / path).resolve()) for name, path in NAMED_TEST.findall(text)]
    missing = [name for name, path in named if not path.is_file() or name not in _tests_of(path)]
    assert missing == []
    assert re.findall(r"(?<!\[)`(?:Test\w+\.)?test_\w+`", text) == []


def test_every_promise_names_a_test_that_shows_it() -> None:
    """Each of P1 to P10 has a section on the page of guarantees, with at least one test."""
    sections = GUARANTEES.read_text(encoding="utf-8").split("\n### ")[1:]
    assert [section.partition(":")[0] for section in sections] == [f"P{number}" for number in range(1, 11)]
    last, _, _ = sections[-1].partition("\n## ")
    for section in (*sections[:-1], last):
        assert NAMED_TEST.search(section), section


def test_the_page_on_cost_counts_with_the_size_of_a_directory_of_entries() -> None:
    """How many ranks make a directory, and how many do not, follows from the code."""
    from immutable_logs.layout import RANKS_PER_SHARD

    text = (ROOT / "docs" / "explanation" / "cost-at-scale.md").read_text(encoding="utf-8")
    directories = -(-100_000 // RANKS_PER_SHARD)
    assert f"| the first of every {RANKS_PER_SHARD} ranks | {directories:,} |" in text
    assert f"| a rank that finds the claim | {100_000 - directories:,} |" in text
