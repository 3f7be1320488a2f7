"""HTML of the documentation: Markdown pages, source files, folders and search results. No page has a script."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name
from pygments.util import ClassNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it.token import Token

    from paragent.cli.docs.library import Library, Page

__all__ = ["code_page", "folder_page", "markdown_page", "missing_page", "search_page", "style_of_code"]

_TITLE = re.compile(r"""title=["']([^"']+)["']""")
_RELATIVE = re.compile(r"(?![a-z]+:|//|#|/)", re.IGNORECASE)


@dataclass(frozen=True)
class _Content:
    """What the frame of all pages is put around."""

    title: str
    body: str
    path: str = ""
    headings: tuple[tuple[str, str], ...] = ()
    """Anchor and text of the headings of the second level."""
    words: str = ""


def markdown_page(library: Library, page: Page) -> str:
    """Return a page of the documentation."""
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    markdown.add_render_rule("fence", _fence)
    tokens = markdown.parse(library.source(page))
    headings = _add_anchors(tokens)
    for token in tokens:
        for child in token.children or []:
            _check_link(child, library, page.path)
    body = markdown.renderer.render(tokens, markdown.options, {})
    return _framed(library, _Content(library.title(page), body, page.path, tuple(headings)))


def code_page(library: Library, path: str) -> str:
    """Return a source file."""
    code = (library.root / path).read_text(encoding="utf-8")
    body = f"<h1><code>{escape(path)}</code></h1>{_highlighted(code, 'python' if path.endswith('.py') else 'bash')}"
    return _framed(library, _Content(path, body, path))


def folder_page(library: Library, path: str) -> str:
    """Return the list of the files in a folder."""
    links = "".join(f'<li><a href="/{quote(name)}">{escape(name)}</a></li>' for name in library.folder(path))
    return _framed(library, _Content(path, f"<h1><code>{escape(path)}</code></h1><ul>{links}</ul>", path))


def search_page(library: Library, words: str) -> str:
    """Return the pages that have some words."""
    hits = library.search(words)
    found = "".join(
        f'<li><a href="/{quote(hit.page.path)}">{escape(hit.title)}</a> <code>{escape(hit.page.topic)}</code>'
        f"<br>{escape(hit.line)}</li>"
        for hit in hits
    )
    body = f"<ol class=hits>{found}</ol>" if hits else f"<p>No page has all of these words: {escape(words)}</p>"
    body = body if words.strip() else "<p>Type words into the field above.</p>"
    return _framed(library, _Content("Search", f"<h1>Search</h1>{body}", words=words))


def missing_page(library: Library, path: str) -> str:
    """Return the page for an address that does not exist."""
    words = " ".join(re.findall(r"\w+", posixpath.basename(path).removesuffix(".md").replace("_", " ")))
    search = f' <a href="/search?q={quote_plus(words)}">Search for {escape(words)}</a>' if words else ""
    body = f"<h1>No such page</h1><p>There is no page <code>{escape(path)}</code>.{search}</p>"
    return _framed(library, _Content("No such page", body, words=words))


def style_of_code() -> str:
    """Return the colours of code, light and dark."""
    light, dark = (HtmlFormatter(style=name).get_style_defs(".code") for name in ("default", "github-dark"))  # type: ignore[no-untyped-call]
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _framed(library: Library, content: _Content) -> str:
    contents = "".join(f'<li><a href="#{anchor}">{escape(text)}</a></li>' for anchor, text in content.headings)
    aside = f"<aside><b>On this page</b><ul>{contents}</ul></aside>" if len(content.headings) > 1 else ""
    return f"""<!doctype html>
<html lang="{"zh" if "zh" in content.path.replace(".", "/").split("/") else "en"}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(content.title)} - paragent</title>
<link rel="stylesheet" href="/style.css"><link rel="icon" href="/docs/images/logo.svg"></head>
<body>
<header><a href="/README.md"><img src="/docs/images/logo.svg" alt="">paragent</a>
<form action="/search">
<input type="search" name="q" placeholder="Search" aria-label="Search" value="{escape(content.words)}"></form></header>
<nav>{_navigation(library, content.path)}</nav>
<main>{content.body}</main>
{aside}
</body>
</html>
"""


def _navigation(library: Library, current: str) -> str:
    parts = []
    for section, pages in groupby(library.pages, key=lambda page: page.section):
        listed = list(pages)
        links = "".join(
            f'<li><a href="/{quote(page.path)}"{" aria-current=page" if page.path == current else ""}>'
            f"{escape(page.name)}</a></li>"
            for page in listed
        )
        is_open = " open" if any(page.path == current for page in listed) else ""
        parts.append(f"<details{is_open}><summary>{escape(section)}</summary><ul>{links}</ul></details>")
    return "".join(parts)


def _add_anchors(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """Give each heading its anchor, as GitHub does, and return anchor and text of those of the second level."""
    used: dict[str, int] = {}
    found = []
    for token, inline in pairwise(tokens):
        if token.type != "heading_open":
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", inline.content)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        used[anchor] = count = used.get(anchor, 0) + 1
        anchor = anchor if count == 1 else f"{anchor}-{count - 1}"
        token.attrSet("id", anchor)
        if token.tag == "h2":
            found.append((anchor, text.replace("`", "")))
    return found


def _check_link(token: Token, library: Library, path: str) -> None:
    """Remove the address of a link to a file that is not part of the documentation."""
    target = str(token.attrGet("href") or "")
    if token.type == "link_open" and _RELATIVE.match(target):
        found = library.resolve(target, path)
        if found is None:
            del token.attrs["href"]
        else:
            _, mark, anchor = target.partition("#")
            relative = posixpath.relpath(found, posixpath.dirname(path) or ".")
            token.attrSet("href", f"{relative}{mark}{anchor}")


def _fence(_self: Any, tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
    """Return a code block with its title."""
    token = tokens[index]
    language, _, attributes = token.info.strip().partition(" ")
    title = f"<div class=title>{escape(found[1])}</div>" if (found := _TITLE.search(attributes)) else ""
    return f"{title}{_highlighted(token.content, language)}"


def _highlighted(code: str, language: str) -> str:
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        lexer = TextLexer()
    return str(highlight(code, lexer, HtmlFormatter(cssclass="code")))
