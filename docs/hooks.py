"""Hooks of MkDocs: the home pages are the READMEs, and links to files that are not pages lead to the repository."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(\))")
_HOME_PAGES = {"index.md": "README.md", "zh/index.md": "README.zh.md"}
_TRANSLATIONS = {"README.md": "index.md", "README.zh.md": "zh/index.md"}


def on_page_read_source(*, page: Any, config: Any, **_: Any) -> str | None:
    """Return the text of a README for a home page; None for other pages, which MkDocs then reads."""
    readme = _HOME_PAGES.get(page.file.src_uri)
    return (Path(config.docs_dir).parent / readme).read_text() if readme else None


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Make links relative to the page, and links that leave the folder `docs` links to the repository."""
    page_path = page.file.src_uri
    if page_path in _HOME_PAGES:
        page.meta["hide"] = ["navigation"]
    folder = posixpath.dirname(page_path)
    written_in = "" if page_path in _HOME_PAGES else posixpath.join("docs", folder)

    def replace(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(written_in, match["target"]))
        anchor = match["anchor"] or ""
        if path in _TRANSLATIONS:
            path = f"docs/{_TRANSLATIONS[path]}"
        if not path.startswith("docs/"):
            return f"{match[1]}{config.repo_url}/blob/main/{path}{anchor}{match[4]}"
        return f"{match[1]}{posixpath.relpath(path, posixpath.join('docs', folder))}{anchor}{match[4]}"

    return _LINK.sub(replace, markdown)
