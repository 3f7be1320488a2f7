"""What the browser shows and has kept: tabs, addresses, bookmarks, cookies, history, shortcuts."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse, urlunparse

from paragent.osworld.evaluators.metrics.matching import UnsupportedCheck

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
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
"""The folder of bookmarks that one rule is about."""
_NOWHERE = object()
"""In place of the address of a tab that has none."""


def address_of(tab: Any) -> str | None:
    """Return the address of a tab, which a getter may give alone or with a title."""
    found = tab.get("url") if isinstance(tab, dict) else tab
    return found if isinstance(found, str) else None


def is_expected_active_tab_approximate(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the tab is at the expected address; what follows a question mark does not matter."""
    found = address_of(result) if result else None
    return found is not None and rules["type"] == "url" and _without_query(found) == _without_query(rules["url"])


def _without_query(address: str) -> str:
    return urlunparse(urlparse(address)._replace(query=""))


def is_expected_url_pattern_match(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether every expected pattern is found in the tab's address."""
    if not result:
        return False
    found = result.get("url", _NOWHERE) if isinstance(result, dict) else result
    return found is not _NOWHERE and all(re.search(pattern, found) for pattern in rules["expected"])


def is_expected_search_query(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the expected pattern is found in the tab's address."""
    return bool(result) and re.search(rules["expect"]["pattern"], result["url"]) is not None


def is_expected_installed_extensions(result: Sequence[str] | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether all expected extensions are there, by their present or their former name."""
    if not result:
        return False
    found, expected = ({_RENAMED.get(name, name) for name in names} for names in (result, rules["expected"]))
    return expected <= found


def is_expected_bookmarks(result: Mapping[str, Any] | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the bookmark bar has exactly the expected folders, the expected pages, or a folder with such pages.

    Raises:
        UnsupportedCheck: there is no such rule.
    """
    if not result:
        return False
    bar = result["bookmark_bar"]["children"]
    if rules["type"] == "bookmark_bar_folders_names":
        return {entry["name"] for entry in bar if entry["type"] == "folder"} == set(rules["names"])
    if rules["type"] == "bookmark_bar_websites_urls":
        return _pages(bar) == set(rules["urls"])
    if rules["type"] != "liked_authors_websites_urls":
        raise UnsupportedCheck(f"there is no rule {rules['type']!r} about bookmarks")
    folder = next((entry for entry in bar if entry["type"] == "folder" and entry["name"] == _LIKED), None)
    choices = [[page] if isinstance(page, str) else page for page in rules["urls"]]
    return folder is not None and any(set(one) == _pages(folder["children"]) for one in itertools.product(*choices))


def _pages(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    return {entry["url"] for entry in entries if entry["type"] == "url"}


def check_history_deleted(result: Sequence[Sequence[Any]], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether no address of the history has one of the keywords.

    Raises:
        UnsupportedCheck: there is no such rule.
    """
    if rules["type"] != "keywords":
        raise UnsupportedCheck(f"there is no rule {rules['type']!r} about the history")
    return not any(keyword in visit[0] for keyword in rules["keywords"] for visit in result)


def is_shortcut_on_desktop(result: Mapping[str, str], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether one of the desktop's shortcuts has the expected name, or command.

    It has if one of both is part of the other; names may be written in other cases.

    Raises:
        UnsupportedCheck: there is no such rule.
    """
    kind = rules["type"]
    if kind not in {"name", "exec"}:
        raise UnsupportedCheck(f"there is no rule {kind!r} about shortcuts")
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


def check_font_size(result: Mapping[str, Any], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the browser's font size is the expected one, or within the expected bounds.

    Raises:
        UnsupportedCheck: there is no such rule.
    """
    size = result["default_font_size"]
    if rules["type"] == "value":
        return bool(size == rules["value"])
    if rules["type"] == "range":
        return bool(rules["min"] < size < rules["max"])
    raise UnsupportedCheck(f"there is no rule {rules['type']!r} about font sizes")


def is_added_to_steam_cart(result: Mapping[str, Any], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a page has every expected item in it."""
    return all(item in result["content"] for item in rules["items"])
