"""HTML files."""

from __future__ import annotations

from typing import Any

from paragent._plugins import require
from paragent.envs.osworld.evaluating.metrics.reading import text_of

__all__ = ["compare_htmls"]

require("bs4", "lxml")


def compare_htmls(result: str, expected: str, *, ignore_sdnum: bool = False, **_: Any) -> bool:
    """Return whether two pages have the same elements with the same texts and attributes, as far as the shorter goes.

    With `ignore_sdnum` the attribute by which LibreOffice keeps a number's format does not count.
    """
    from bs4 import BeautifulSoup

    pages = [BeautifulSoup(text_of(path), "lxml") for path in (result, expected)]
    pairs = zip(pages[0].descendants, pages[1].descendants, strict=False)
    return all(_shown(one, ignore_sdnum) == _shown(other, ignore_sdnum) for one, other in pairs)


def _shown(node: Any, ignore_sdnum: bool) -> Any:
    from bs4 import Tag

    if not isinstance(node, Tag):
        return str(node)
    attributes = {name: value for name, value in node.attrs.items() if not (ignore_sdnum and name == "sdnum")}
    return (node.name, node.text.strip(), attributes)
