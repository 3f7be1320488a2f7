"""Addresses that mean the same site, by the list of public suffixes."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.browser import address_of
from paragent.osworld.evaluators.metrics.rules import NotUnderstood

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["is_cookie_deleted", "is_expected_active_tab", "is_expected_tabs"]

require("tldextract")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+\-.]*://")


@cache
def _suffixes() -> Any:
    import tldextract

    return tldextract.TLDExtract(
        suffix_list_urls=(), cache_dir=None
    )  # the list that comes with the package: no network


def same_address(first: str | None, second: str | None) -> bool:
    """Return whether two addresses are the same but for `www.`, the public suffix and a single slash as the path."""
    if first is None or second is None:
        return first == second
    return _plain(first) == _plain(second)


def _plain(address: str) -> tuple[str, ...]:
    parsed = urlparse(address if _SCHEME.match(address) else f"http://{address}")
    host = _suffixes()(parsed.netloc.lower())
    name = f"{host.subdomain}.{host.domain}" if host.subdomain not in {"", "www"} else host.domain
    path = "" if parsed.path == "/" else parsed.path
    return (parsed.scheme.lower(), name, path, parsed.params, parsed.query, parsed.fragment)


def is_expected_active_tab(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the tab is at the expected address."""
    return bool(result) and rules["type"] == "url" and same_address(rules["url"], address_of(result))


def is_expected_tabs(result: Sequence[Mapping[str, Any]], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether as many tabs are open as expected, and each expected address among them."""
    if not result or rules["type"] != "url":
        return False
    found = [address_of(tab) for tab in result]
    return len(found) == len(rules["urls"]) and all(
        any(same_address(url, one) for one in found) for url in rules["urls"]
    )


def is_cookie_deleted(result: Sequence[Sequence[Any]], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether no cookie belongs to one of the domains.

    Raises:
        NotUnderstood: there is no such rule.
    """
    if rules["type"] != "domains":
        raise NotUnderstood(f"there is no rule {rules['type']!r} about cookies")
    return not any(same_address(domain, cookie[1]) for domain in rules["domains"] for cookie in result)
