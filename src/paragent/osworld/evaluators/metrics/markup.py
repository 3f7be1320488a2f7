"""The accessibility tree against XPath and CSS selectors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.reading import text_of
from paragent.osworld.evaluators.metrics.rules import NotUnderstood, matches, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check_accessibility_tree", "check_json", "compare_htmls"]


require("lxml", "cssselect")
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


def check_accessibility_tree(
    result: str, rules: Sequence[Mapping[str, Any]], *, osname: str = "ubuntu", **_: Any
) -> float:
    """Return the product of how well each rule is met.

    A rule's `xpath`, or its `selectors`, must find something; with `text`, the best text found counts, which must be the
    same if the rule's `exact` is true, and is scored by likeness if it is false.

    Raises:
        NotUnderstood: a rule has neither.
        KeyError: a rule has `text` without `exact`.
        TypeError: an XPath gives something else than elements.
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
    if "selectors" in rule:
        return CSSSelector(", ".join(rule["selectors"]), namespaces=namespaces)(tree)
    raise NotUnderstood("a rule about the accessibility tree needs xpath or selectors")


def _likeness(text: str | None, rule: Mapping[str, Any]) -> float:
    return float(text == rule["text"]) if rule["exact"] else ratio(text, rule["text"])


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


require("yaml")


def check_json(result: str | None, rules: Mapping[str, Any], *, is_yaml: bool = False, **_: Any) -> bool:
    """Return whether the values at the keys of `expect` follow their rules, and those of `unexpect` do not."""
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
