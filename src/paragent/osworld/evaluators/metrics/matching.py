"""Values that a getter found against values that a task names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paragent.osworld.evaluators.metrics.rules import NotUnderstood, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "check_direct_json_object",
    "check_include_exclude",
    "exact_match",
    "fuzzy_match",
    "is_extension_installed",
    "is_in_list",
    "is_in_vm_clickboard",
    "literal_match",
    "match_in_list",
]

_NOT_KNOWN = "__EVALUATION_FAILED__"
"""What a getter puts where it could not find out what to expect."""


def exact_match(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the result is what is expected."""
    return bool(result == rules["expected"])


def match_in_list(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the result is one of those expected."""
    return bool(result in rules["expected"])


def is_in_list(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether what is expected is among the results."""
    return bool(rules["expected"] in result)


def literal_match(result: Any, expected: Any, *, type: str = "str", ignore_case: bool = False, **_: Any) -> bool:  # noqa: A002 - the task's own word
    """Return whether two texts, or two lists of the same length entry by entry, read the same.

    Raises:
        NotUnderstood: the type is neither `str` nor `list`.
    """
    if type == "str":
        return _read(result, ignore_case) == _read(expected, ignore_case)
    if type != "list":
        raise NotUnderstood(f"literal_match knows no type {type!r}")
    if not (isinstance(result, list) and isinstance(expected, list)):
        return False
    return [_read(value, ignore_case) for value in result] == [_read(value, ignore_case) for value in expected]


def _read(value: Any, ignore_case: bool) -> str:
    return str(value).lower() if ignore_case else str(value)


def fuzzy_match(result: str, rules: Mapping[str, Any], **_: Any) -> float:
    """Return how alike the result and what is expected are."""
    return ratio(result, rules["expected"])


def check_include_exclude(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a text has all that it must include and nothing that it must not."""
    if result is None:
        return False
    return all(part in result for part in rules.get("include", [])) and not any(
        part in result for part in rules.get("exclude", [])
    )


def is_extension_installed(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether an editor's list of extensions contains one, or does not, as the rule says.

    Raises:
        NotUnderstood: the rule is neither `contain` nor `not_contain`.
    """
    if rules["type"] not in {"contain", "not_contain"}:
        raise NotUnderstood(f"there is no rule {rules['type']!r}")
    return bool((rules["expected"] in result) == (rules["type"] == "contain"))


def is_in_vm_clickboard(rules: Mapping[str, Any], output: str, **_: Any) -> bool:
    """Return whether the clipboard has all that the rule, which here comes first, expects."""
    expected = rules["expected"]
    return all(part in output for part in (expected if isinstance(expected, list) else [expected]))


def check_direct_json_object(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether an object has every expected key with its value; other keys do not matter.

    With `expect_in_result`, a text must be part of the found one, and of a list of alternatives one must be found. With
    `ignore_list_order` among the expected keys, lists are compared sorted.
    """
    found = json.loads(result.strip().replace("'", '"')) if isinstance(result, str) else result
    expected = rules["expected"]
    if found is None or _NOT_KNOWN in expected.values():
        return False
    if rules.get("expect_in_result", False):
        return all(_has(found.get(key), value) for key, value in expected.items())
    if expected.get("ignore_list_order", False):
        return all(sorted(found[key]) == sorted(value) for key, value in expected.items())
    return all(found.get(key) == value for key, value in expected.items())


def _has(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        candidates = found if isinstance(found, list) else [found] if isinstance(found, str) else []
        return any(value in candidates for value in expected)
    return isinstance(expected, str) and expected in found
