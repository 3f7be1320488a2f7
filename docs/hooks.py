"""Hooks of MkDocs: links from pages to files of the repository that are not pages, such as examples, lead to the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(\]\()(?P<target>\.\./[^)\s]+)(\))")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace relative links that leave the folder `docs`."""
    folder = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match["target"]))
        if path.startswith("docs/"):
            return match[0]
        return f"{match[1]}{config.repo_url}/blob/main/{path}{match[3]}"

    return _LINK.sub(replace, markdown)
