"""The pages of the documentation: their order, their names, and the search for them."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from paragent._installation import source_tree
from paragent.cli.docs.files import PACKAGED, document_files
from paragent.cli.docs.reference import expand_reference
from paragent.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Library", "Page", "PageMatch", "open_library"]

_HOME_PAGES = {"docs/index.md": "README.md", "docs/zh/index.md": "README.zh.md"}
"""Pages of the site that are made from other files."""
_PROJECT = {"Changelog": "CHANGELOG.md", "Security": "SECURITY.md", "Contributing": "CONTRIBUTING.md"}
"""Pages that are not in the list of the site."""
_TOPICS = {"README.md": "readme", "README.zh.md": "zh"}
_ENTRY = re.compile(r"^(?P<indent> +)- (?:(?P<title>.+?):(?: |$))?(?P<path>\S+\.md)?$", re.MULTILINE)
"""An entry of `nav` in mkdocs.yml: a page with or without a title, or the title of a section."""
_BLOCK = re.compile(r"^ *(```+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_TITLE_WEIGHT = 20
"""A word in the title of a page counts as much as so many words in its text."""
_MOST_COUNTED = 20
"""How often a word of a text counts: long pages have many words."""


@dataclass(frozen=True)
class Page:
    """A page: its file, relative to the repository, its section, and its name in the list of pages."""

    path: str
    section: str
    name: str

    @property
    def topic(self) -> str:
        """How `paragent docs` names the page, such as `guide/tasks`."""
        short = self.path.removeprefix("docs/").removesuffix(".md").removesuffix("/index")
        return _TOPICS.get(self.path, short if "/" in self.path else short.lower())


@dataclass(frozen=True)
class PageMatch:
    """A page that a search has found, and the line of its text that has most of the words."""

    page: Page
    title: str
    line: str


class Library:
    """The documentation in a folder that is a clone or its copy in the wheel."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = frozenset(document_files(root))
        entries = _entries((root / "mkdocs.yml").read_text(encoding="utf-8"))
        entries += [Page(path, "Project", name) for name, path in _PROJECT.items()]
        self.pages = [page for page in entries if page.path in self.files]
        self._by_topic = {page.topic: page for page in self.pages}

    def source(self, page: Page) -> str:
        """Return the Markdown of a page, without comments and with the reference of its Python names."""
        text = (self.root / page.path).read_text(encoding="utf-8")
        return expand_reference(_COMMENT.sub("", text)).lstrip()

    def title(self, page: Page) -> str:
        """Return the first heading of a page."""
        with (self.root / page.path).open(encoding="utf-8") as file:
            return next((line[2:].strip() for line in file if line.startswith("# ")), page.name)

    def resolve(self, target: str, page: str) -> str | None:
        """Return the file or folder that a relative link of a file leads to, or None if the documentation has none."""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(target.partition("#")[0])))
        path = _HOME_PAGES.get(path, path)
        return path if path in self.files or self.folder(path) else None

    def folder(self, path: str) -> list[str]:
        """Return the files below a folder; empty if there is no such folder."""
        return sorted(name for name in self.files if name.startswith(f"{path}/"))

    def find(self, words: str) -> list[PageMatch]:
        """Return the pages for a topic: the page of this name, else pages whose name ends so, else pages with all words."""
        topic = words.strip().lower().removesuffix(".md").removeprefix("docs/").rstrip("/")
        named = [self._by_topic[topic]] if topic in self._by_topic else []
        named = named or [page for page in self.pages if page.topic.rpartition("/")[2] == topic]
        return [PageMatch(page, self.title(page), "") for page in named] or self.search(words)

    def search(self, words: str) -> list[PageMatch]:
        """Return the pages that have all of these words, the best first."""
        wanted = words.lower().split()
        phrase = " ".join(wanted)
        scored = []
        for page in self.pages if wanted else []:
            title, text = self.title(page), self.source(page)
            small = text.lower()
            if all(word in small for word in wanted):
                score = sum(
                    min(small.count(word), _MOST_COUNTED) + _TITLE_WEIGHT * (word in title.lower())
                    for word in {*wanted, phrase}
                )
                scored.append((score, PageMatch(page, title, _best_line(text, wanted))))
        return [hit for _, hit in sorted(scored, key=lambda pair: -pair[0])]

    def text_for_terminal(self, page: Page) -> str:
        """Return the Markdown of a page for readers who cannot follow a link: links to other pages are their topics."""
        paths = {page.path: page.topic for page in self.pages}

        def readable(link: re.Match[str]) -> str:
            text, target = link["text"], link["target"]
            if link["image"]:
                return f"*Image: {text}*"
            if target.startswith("#"):
                return text
            path = self.resolve(target, page.path)
            return f"[{text}]({paths[path]})" if path in paths else link[0]

        return _LINK.sub(readable, self.source(page))


def open_library() -> Library:
    """Return the documentation of this installation.

    Raises:
        UsageError: this copy of paragent has no documentation.
    """
    root = source_tree() or PACKAGED
    if not (root / "mkdocs.yml").is_file():
        raise UsageError(
            f"this copy of paragent has no documentation: there is no {root / 'mkdocs.yml'}; install it again"
        )
    return Library(root)


def _entries(settings: str) -> list[Page]:
    """Return the pages in the order of the site."""
    found, section = [], ""
    for entry in _ENTRY.finditer(settings.partition("\nnav:\n")[2]):
        if len(entry["indent"]) == 2:
            section = entry["title"]
        if entry["path"]:
            path = f"docs/{entry['path']}"
            found.append(Page(_HOME_PAGES.get(path, path), section, entry["title"] or section))
    return found


def _best_line(text: str, words: list[str]) -> str:
    """Return the line that has most of the words, without its markup; a sentence before a row of a table."""
    lines = [line for line in _BLOCK.sub("", text).splitlines() if not line.startswith(("#", "!["))]

    def worth(line: str) -> tuple[int, bool, bool]:
        small = line.lower()
        return sum(word in small for word in words), " ".join(words) in small, not line.startswith("|")

    best = max(lines, key=worth, default="")
    line = _LINK.sub(lambda link: link["text"], best.strip()) if worth(best)[0] else ""
    if line.startswith("|"):
        line = ", ".join(cell.strip() for cell in line.strip("|").split("|") if cell.strip())
    return re.sub(r"[*`]", "", line).removeprefix("- ")
