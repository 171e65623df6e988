"""The site of the documentation, as `make docs` builds it: good to read on a phone, and all in one place."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt

import immutable_logs

if TYPE_CHECKING:
    from tests.conftest import Browser

ROOT = Path(__file__).parents[2]
PHONE = 390
DESK = 1280

PAGES = sorted(ROOT.glob("docs/**/*.md"))

pytest.importorskip("mkdocs", reason="needs MkDocs, which is in the environment of `make docs`")


class Article(HTMLParser):
    """The elements inside the article of a page, counted."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._is_inside = False
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count an element."""
        self._is_inside = self._is_inside or tag == "article"
        self.counts[tag] += self._is_inside

    def handle_endtag(self, tag: str) -> None:
        """Notice the end of the article."""
        self._is_inside = self._is_inside and tag != "article"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built so that every warning is an error."""
    target = tmp_path_factory.mktemp("site")
    program = str(Path(sys.executable).with_name("mkdocs"))
    finished = subprocess.run(
        [program, "build", "--strict", "--quiet", "--site-dir", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return target


def place(page: Path, site: Path) -> Path:
    """Return where a page of `docs/` is in the site."""
    return site / page.relative_to(ROOT / "docs").with_suffix(".html")


def test_next_leads_from_the_first_page_through_all_others(site: Path) -> None:
    """In the order in which somebody learns; a page needs no entry in a list to be among them."""
    seen = [site / "index.html"]
    while link := re.search(
        r'href="([^"]+)" class="[^"]*md-footer__link--next"', seen[-1].read_text(encoding="utf-8")
    ):
        seen.append((seen[-1].parent / link[1]).resolve())
        assert len(seen) == len(set(seen))
    assert {place(page, site) for page in PAGES} - set(seen) == set()
    tops = list(dict.fromkeys(page.relative_to(site).parts[0].removesuffix(".html") for page in seen))
    assert tops[:6] == ["index", "tutorial", "how-to", "explanation", "reference", "decisions"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_lists_tables_and_blocks_that_it_has_elsewhere(page: Path, site: Path) -> None:
    """What CommonMark takes for a list, a table, a block or a heading is one in the site too."""
    text = page.read_text(encoding="utf-8")
    if re.search("^::: ", text, re.MULTILINE):
        return  # has what is in the docstrings besides
    kinds = {"bullet_list_open": "ul", "ordered_list_open": "ol", "list_item_open": "li"}
    kinds |= {"table_open": "table", "fence": "pre", "image": "img"}
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    tokens += [child for token in tokens for child in token.children or ()]
    expected = Counter(kinds[token.type] for token in tokens if token.type in kinds)
    expected.update(token.tag for token in tokens if token.type == "heading_open")
    found = Article(place(page, site)).counts
    assert {tag: found[tag] for tag in expected} == dict(expected)


def test_the_reference_of_python_describes_every_public_name(site: Path) -> None:
    """Each has its heading and its docstring, and so has each public method."""
    text = (site / "reference" / "python-api.html").read_text(encoding="utf-8")
    names = [f"immutable_logs.{name}" for name in immutable_logs.__all__]
    names += [f"immutable_logs.{name}" for name in ("Run.finish", "Experiment.runs", "Experiment.find")]
    assert [name for name in names if f'id="{name}"' not in text] == []
    assert "all ranks of a launch get the same fresh directory" in text


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_pages_fit_and_load_nothing_from_elsewhere(browser: Browser, site: Path, width: int) -> None:
    """No page has to be scrolled sideways, and every request is for a file of the site."""
    pages = sorted(set(site.rglob("*.html")) - {site / "404.html"})  # that one is right at the root of a server only
    assert len(pages) > len(PAGES)
    for page in pages:
        browser.open(page, width=width)
        requests = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
        assert len(requests) > 2
        assert [url for url in requests if not url.startswith((site.as_uri(), "data:", "blob:"))] == []
        assert browser.evaluate("document.scrollingElement.scrollWidth") == width, page
        assert not browser.happened("Runtime.exceptionThrown")
