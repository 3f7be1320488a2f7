"""Metrics of the browser: tabs, addresses, bookmarks, history, extensions, shortcuts."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse, urlunparse

from paragent.osworld.evaluators.supported import checked, one_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "address_of",
    "check_font_size",
    "check_history_deleted",
    "is_added_to_steam_cart",
    "is_expected_active_tab_approximate",
    "is_expected_bookmarks",
    "is_expected_installed_extensions",
    "is_expected_search_query",
    "is_expected_url_pattern_match",
    "is_shortcut_on_desktop",
]

_RENAMED = {"Zoom for Google Chrome": "Zoom Chrome Extension"}
"""Extensions that the store has renamed."""
_LIKED = "Liked Authors"
"""The bookmark folder of one rule."""
_NOWHERE = object()
"""Replaces the address of a tab that has none."""


def address_of(tab: Any) -> str | None:
    """Return the address of a tab, which a getter returns alone or with a title."""
    found = tab.get("url") if isinstance(tab, dict) else tab
    return found if isinstance(found, str) else None


def is_expected_active_tab_approximate(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the tab has the expected address; the query does not matter."""
    found = address_of(result) if result else None
    return found is not None and rules["type"] == "url" and _without_query(found) == _without_query(rules["url"])


def _without_query(address: str) -> str:
    return urlunparse(urlparse(address)._replace(query=""))


def is_expected_url_pattern_match(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the tab's address matches every expected pattern."""
    if not result:
        return False
    found = result.get("url", _NOWHERE) if isinstance(result, dict) else result
    return found is not _NOWHERE and all(re.search(pattern, found) for pattern in rules["expected"])


def is_expected_search_query(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the tab's address matches the expected pattern."""
    return bool(result) and re.search(rules["expect"]["pattern"], result["url"]) is not None


def is_expected_installed_extensions(result: Sequence[str] | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether all expected extensions are installed, by their current or former name."""
    if not result:
        return False
    found, expected = ({_RENAMED.get(name, name) for name in names} for names in (result, rules["expected"]))
    return expected <= found


_BOOKMARKS = {"bookmark_bar_folders_names", "bookmark_bar_websites_urls", "liked_authors_websites_urls"}


@checked(rules=one_of("type", _BOOKMARKS, "bookmarks"))
def is_expected_bookmarks(result: Mapping[str, Any] | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the bookmark bar has exactly the expected folders, the expected pages, or a folder with such pages."""
    if not result:
        return False
    bar = result["bookmark_bar"]["children"]
    if rules["type"] == "bookmark_bar_folders_names":
        return {entry["name"] for entry in bar if entry["type"] == "folder"} == set(rules["names"])
    if rules["type"] == "bookmark_bar_websites_urls":
        return _pages(bar) == set(rules["urls"])
    folder = next((entry for entry in bar if entry["type"] == "folder" and entry["name"] == _LIKED), None)
    choices = [[page] if isinstance(page, str) else page for page in rules["urls"]]
    return folder is not None and any(set(one) == _pages(folder["children"]) for one in itertools.product(*choices))


def _pages(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    return {entry["url"] for entry in entries if entry["type"] == "url"}


@checked(rules=one_of("type", {"keywords"}, "the history"))
def check_history_deleted(result: Sequence[Sequence[Any]], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether no address of the history contains one of the keywords."""
    return not any(keyword in visit[0] for keyword in rules["keywords"] for visit in result)


@checked(rules=one_of("type", {"name", "exec"}, "shortcuts"))
def is_shortcut_on_desktop(result: Mapping[str, str], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a shortcut on the desktop has the expected name or command.

    It matches if one of both contains the other; names are compared without case.
    """
    kind = rules["type"]
    key = f"{kind.capitalize()}="
    wanted = rules[kind]
    if any(f"{key}{wanted}\n" in shortcut for shortcut in result.values()):
        return True
    lines = (line for shortcut in result.values() for line in shortcut.split("\n") if line.startswith(key))
    return any(_overlap(line.removeprefix(key), wanted, ignore_case=kind == "name") for line in lines)


def _overlap(found: str, wanted: str, *, ignore_case: bool) -> bool:
    if ignore_case:
        found, wanted = found.lower(), wanted.lower()
    return found in wanted or wanted in found


@checked(rules=one_of("type", {"value", "range"}, "font sizes"))
def check_font_size(result: Mapping[str, Any], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the browser's font size is the expected one, or within the expected range."""
    size = result["default_font_size"]
    if rules["type"] == "value":
        return bool(size == rules["value"])
    return bool(rules["min"] < size < rules["max"])


def is_added_to_steam_cart(result: Mapping[str, Any], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a page contains every expected item."""
    return all(item in result["content"] for item in rules["items"])
