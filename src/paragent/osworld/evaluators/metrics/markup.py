"""Metrics of structured documents and addresses: accessibility tree, HTML, JSON, YAML, URLs of tabs and cookies."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.browser import address_of
from paragent.osworld.evaluators.metrics.matching import check_methods, matches, ratio
from paragent.osworld.evaluators.metrics.reading import text_of
from paragent.osworld.evaluators.supported import UnsupportedCheck, checked, one_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "check_accessibility_tree",
    "check_json",
    "compare_htmls",
    "is_cookie_deleted",
    "is_expected_active_tab",
    "is_expected_tabs",
]

require("bs4", "cssselect", "lxml", "tldextract", "yaml")
_PARTS = {
    "st": "state",
    "attr": "attributes",
    "cp": "component",
    "doc": "document",
    "docattr": "document/attributes",
    "txt": "text",
    "val": "value",
    "act": "action",
    "class": "class",
    "role": "role",
}


def _check_elements(rules: Sequence[Mapping[str, Any]]) -> None:
    if any("xpath" not in rule and "selectors" not in rule for rule in rules):
        raise UnsupportedCheck("a rule about the accessibility tree needs xpath or selectors")


@checked(rules=_check_elements)
def check_accessibility_tree(
    result: str, rules: Sequence[Mapping[str, Any]], *, osname: str = "ubuntu", **_: Any
) -> float:
    """Return the product of the scores of all rules.

    A rule's `xpath` or `selectors` must find an element. With `text`, the best text found counts: it must be equal if the rule's
    `exact` is true, otherwise its similarity is the score.

    Raises:
        KeyError: a rule has `text` without `exact`.
        TypeError: an XPath returns something other than elements.
    """
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    tree = etree.fromstring(result, parser)
    namespaces = {short: f"https://accessibility.{osname}.example.org/ns/{long}" for short, long in _PARTS.items()}
    total = 1.0
    for rule in rules:
        found = _find(tree, rule, namespaces)
        if len(found) == 0:
            return 0.0
        if "text" in rule:
            total *= max(_likeness(element.text or None, rule) for element in found)
    return total


def _find(tree: Any, rule: Mapping[str, Any], namespaces: dict[str, str]) -> Any:
    from lxml.cssselect import CSSSelector

    if "xpath" in rule:
        return tree.xpath(rule["xpath"], namespaces=namespaces)
    return CSSSelector(", ".join(rule["selectors"]), namespaces=namespaces)(tree)


def _likeness(text: str | None, rule: Mapping[str, Any]) -> float:
    return float(text == rule["text"]) if rule["exact"] else ratio(text, rule["text"])


def compare_htmls(result: str, expected: str, *, ignore_sdnum: bool = False, **_: Any) -> bool:
    """Return whether two pages have the same elements with the same texts and attributes, up to the end of the shorter one.

    With `ignore_sdnum` the attribute for LibreOffice's number formats does not count.
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


@checked(rules=lambda rules: check_methods([*rules.get("expect", []), *rules.get("unexpect", [])]))
def check_json(result: str | None, rules: Mapping[str, Any], *, is_yaml: bool = False, **_: Any) -> bool:
    """Return whether the values at the keys of `expect` match their rules, and those of `unexpect` do not."""
    if result is None:
        return False
    data = _yaml(result) if is_yaml else json.loads(text_of(result))
    if is_yaml and data is None:
        return False
    if not all(matches(_at(data, rule["key"]), rule) for rule in rules.get("expect", [])):
        return False
    return not any(_fits(data, rule) for rule in rules.get("unexpect", []))


def _yaml(path: str) -> Any:
    import yaml

    return yaml.safe_load(text_of(path))


def _at(data: Any, keys: Sequence[Any]) -> Any:
    for key in keys:
        data = data[key]
    return data


def _fits(data: Any, rule: Mapping[str, Any]) -> bool:
    try:
        value = _at(data, rule["key"])
    except (KeyError, TypeError):
        value = None
    return matches(value, rule)


_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+\-.]*://")


@cache
def _suffixes() -> Any:
    import tldextract

    # Uses the list that is part of the package, without network access.
    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


def _same_address(first: str | None, second: str | None) -> bool:
    """Return whether two addresses are equal except for `www.`, the public suffix and a single slash as the path."""
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
    """Return whether the tab has the expected address."""
    return bool(result) and rules["type"] == "url" and _same_address(rules["url"], address_of(result))


def is_expected_tabs(result: Sequence[Mapping[str, Any]], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the expected number of tabs is open, and each expected address among them."""
    if not result or rules["type"] != "url":
        return False
    found = [address_of(tab) for tab in result]
    return len(found) == len(rules["urls"]) and all(
        any(_same_address(url, one) for one in found) for url in rules["urls"]
    )


@checked(rules=one_of("type", {"domains"}, "cookies"))
def is_cookie_deleted(result: Sequence[Sequence[Any]], rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether no cookie belongs to one of the domains."""
    return not any(_same_address(domain, cookie[1]) for domain in rules["domains"] for cookie in result)
