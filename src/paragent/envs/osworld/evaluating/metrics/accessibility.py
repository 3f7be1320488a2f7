"""The accessibility tree against XPath and CSS selectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._plugins import require
from paragent.envs.osworld.evaluating.metrics.fuzzy import ratio
from paragent.envs.osworld.evaluating.metrics.vocabulary import NotUnderstood

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check_accessibility_tree"]

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
