"""What MkDocs does not do by itself: pages that stand outside `docs/`, and the order of the navigation.

Links in the pages are paths in the repository, so that they work where the repository is browsed. A page outside
`docs/` that has a place in `PLACES` is a page of the site too; any other file that a page links to is shown under
`repository/`. A new page in `docs/` needs no entry anywhere.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File, InclusionLevel
from mkdocs.utils import nest_paths

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]

PLACES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "explanation/benchmarks.md",
}
"""Where in the site a page from outside `docs/` stands."""

ORDER: Final = [
    "index",
    "tutorial",
    "how-to",
    "explanation",
    "reference",
    "decisions",
    "glossary",
    "changelog",
    "contributing",
]
"""The top level of the navigation; what is not named here comes at the end, by name."""

_LINK: Final = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what the site has besides `docs/`, and put all of it in order.

    That is the pages from outside, a list of each directory's pages, and the files that pages link to.
    """
    for path, place in PLACES.items():
        title = "---\ntitle: Overview\n---\n\n" if place == "index.md" else ""
        files.append(File.generated(config, place, content=title + _text(path)))
    for directory in sorted({posixpath.dirname(file.src_uri) for file in files.documentation_pages()} - {""}):
        if f"{directory}/index.md" not in files.src_uris:
            files.append(File.generated(config, f"{directory}/index.md", content=_list_of(directory, files)))
    for page in files.documentation_pages():
        for path in _linked_paths(page.content_string, _home(page.src_uri)):
            place = _place(path)
            if place not in files.src_uris and (ROOT / path).is_file():
                files.append(File.generated(config, place, content=_shown(path), inclusion=InclusionLevel.NOT_IN_NAV))
    in_navigation = files.documentation_pages(inclusion=InclusionLevel.is_in_nav)
    config.nav = nest_paths(file.src_uri for file in sorted(in_navigation, key=_rank))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn paths in the repository into places in the site."""
    home, here = _home(page.file.src_uri), posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(home), link[1]))
        if not (ROOT / path).exists():
            return link[0]
        return f"]({posixpath.relpath(_place(path), here or '.')}{link[2] or ''})"

    parts = re.split(f"({_FENCE.pattern})", markdown, flags=_FENCE.flags)
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in parts)


def _rank(file: File) -> tuple[int, bool, str]:
    top = file.src_uri.split("/")[0].removesuffix(".md")
    return (ORDER.index(top) if top in ORDER else len(ORDER), not file.src_uri.endswith("index.md"), file.src_uri)


def _place(path: str) -> str:
    """Return where in the site a file of the repository is shown, or a directory of pages is listed."""
    if path in PLACES:
        return PLACES[path]
    if path.startswith("docs/"):
        place = path.removeprefix("docs/")
        return f"{place}/index.md" if (ROOT / path).is_dir() else place
    return f"repository/{path}.md"


def _home(place: str) -> str:
    """Return the path in the repository of what is shown at a place."""
    for path, shown_at in PLACES.items():
        if shown_at == place:
            return path
    return f"docs/{place}"


def _linked_paths(markdown: str, home: str) -> list[str]:
    """Return the paths in the repository that a page links to."""
    return [
        posixpath.normpath(posixpath.join(posixpath.dirname(home), link))
        for link, _ in _LINK.findall(_FENCE.sub("", markdown))
    ]


def _list_of(directory: str, files: Files) -> str:
    """Return a page that lists the pages of a directory, with their titles."""
    lines = [f"# {directory.replace('-', ' ').capitalize()}", ""]
    for file in sorted(files.documentation_pages(), key=lambda file: file.src_uri):
        if posixpath.dirname(file.src_uri) == directory:
            title = re.search(r"^# (.+)$", file.content_string, re.MULTILINE)
            name = posixpath.basename(file.src_uri)
            lines.append(f"- [{title[1] if title else name}]({name})")
    return "\n".join([*lines, ""])


def _shown(path: str) -> str:
    """Return a page that shows a file of the repository, and that the search leaves out."""
    language = {".py": "python", ".toml": "toml", ".yaml": "yaml"}.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n``````{language}\n{_text(path)}``````\n"


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
