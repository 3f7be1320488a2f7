"""Citations: which documents an answer names, and whether they are the right ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paragent.tasks import Item

__all__ = ["citation", "cited", "expected_documents"]

_BRACKETS = re.compile(r"\[([^\[\]\n]{1,300})\]")
_KEYS = ("documents", "document", "evidence", "supporting_facts", "source", "sources")


def expected_documents(item: Item) -> set[str]:
    """Return the documents that support the answer, as ids or titles; empty if the benchmark does not say.

    Read is the first of `documents`, `document`, `evidence`, `supporting_facts`, `source` and `sources`; as a text, a list of
    texts, HotpotQA's list of `[title, sentence]` or its `{"title": [...]}`.
    """
    given: Any = next((item.metadata[key] for key in _KEYS if item.metadata.get(key)), ())
    if isinstance(given, dict):
        given = given.get("title", ())
    if isinstance(given, str):
        given = (given,)
    firsts = (one[0] if isinstance(one, (list, tuple)) and one else one for one in given)
    return {_plain(one) for one in firsts if isinstance(one, str)}


def cited(answer: str) -> set[str]:
    """Return what an answer cites: whatever stands in square brackets, several parted by `;` or `,`."""
    return {_plain(part) for found in _BRACKETS.findall(answer) for part in re.split(r"[;,]", found) if part.strip()}


def citation(item: Item, answer: str) -> float | None:
    """Return the F1 of the documents cited against those expected, so that citing all of them does not help.

    None if the benchmark does not say which are expected.
    """
    expected = expected_documents(item)
    if not expected:
        return None
    given = cited(answer)
    right = {one for one in expected if any(one in (name, name.partition("#")[0]) for name in given)}
    useful = {name for name in given if name in expected or name.partition("#")[0] in expected}
    if not right:
        return 0.0
    precision, recall = len(useful) / len(given), len(right) / len(expected)
    return 2 * precision * recall / (precision + recall)


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()
