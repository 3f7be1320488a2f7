"""Metrics of single values, the rules `{"method": ..., "ref": ...}`, and the similarity of texts."""

from __future__ import annotations

import json
import operator
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from paragent.osworld.evaluators.supported import UnsupportedCheck, checked, one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "COMPARISONS",
    "check_direct_json_object",
    "check_include_exclude",
    "check_methods",
    "common_length",
    "exact_match",
    "fuzzy_match",
    "is_extension_installed",
    "is_in_list",
    "is_in_vm_clickboard",
    "literal_match",
    "match_in_list",
    "matcher_of",
    "matches",
    "meets_rules",
    "ratio",
]

_NOT_KNOWN = "__EVALUATION_FAILED__"
"""A getter's placeholder for an expectation that it could not determine."""


def exact_match(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the result equals the expectation."""
    return bool(result == rules["expected"])


def match_in_list(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the result is one of the expected values."""
    return bool(result in rules["expected"])


def is_in_list(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the expected value is among the results."""
    return bool(rules["expected"] in result)


def _check_literals(*, type: str = "str", **_: Any) -> None:  # noqa: A002 - the task's own word
    if type not in {"str", "list"}:
        raise UnsupportedCheck(f"values of the type {type!r} are not supported")


@checked(options=_check_literals)
def literal_match(result: Any, expected: Any, *, type: str = "str", ignore_case: bool = False, **_: Any) -> bool:  # noqa: A002 - the task's own word
    """Return whether two values, or two lists of the same length entry by entry, are equal as strings."""
    if type == "str":
        return _read(result, ignore_case) == _read(expected, ignore_case)
    if not (isinstance(result, list) and isinstance(expected, list)):
        return False
    return [_read(value, ignore_case) for value in result] == [_read(value, ignore_case) for value in expected]


def _read(value: Any, ignore_case: bool) -> str:
    return str(value).lower() if ignore_case else str(value)


def fuzzy_match(result: str, rules: Mapping[str, Any], **_: Any) -> float:
    """Return the similarity of the result and the expectation."""
    return ratio(result, rules["expected"])


def check_include_exclude(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a text contains everything in `include` and nothing in `exclude`."""
    if result is None:
        return False
    return all(part in result for part in rules.get("include", [])) and not any(
        part in result for part in rules.get("exclude", [])
    )


@checked(rules=one_of("type", {"contain", "not_contain"}, "extensions"))
def is_extension_installed(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether an editor's list of extensions contains one, or does not, depending on the rule."""
    return bool((rules["expected"] in result) == (rules["type"] == "contain"))


def is_in_vm_clickboard(rules: Mapping[str, Any], output: str, **_: Any) -> bool:
    """Return whether the clipboard contains everything that the rule expects. Here the rule is the first argument."""
    expected = rules["expected"]
    return all(part in output for part in (expected if isinstance(expected, list) else [expected]))


def check_direct_json_object(result: Any, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether an object has every expected key with its value; other keys do not matter.

    With `expect_in_result`, an expected string must be part of the value, and one of a list of alternatives must match. With
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


COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "le", "lt", "ge", "gt")}


def matches(value: Any, rule: Mapping[str, Any]) -> bool:
    """Return whether a value matches a rule; raises the same errors as `matcher_of`, and for a value of another type."""
    return bool(matcher_of(rule)(value))


def matcher_of(rule: Mapping[str, Any]) -> Callable[[Any], object]:
    """Return the function that tells whether a value matches a rule.

    The methods are `eq`, `ne`, `le`, `lt`, `ge`, `gt`; `re` with flags (`re.S.I`), which searches, and any other word that begins
    with `re`; `approx:0.1`; `range.te` and so on (less than, less or equal, for each end); `str_list_eq` and `str_set_eq` for a
    string with commas; `spreadsheet_range`, for cell ranges that must contain one range and be contained in another.

    Raises:
        UnsupportedCheck: the method is unknown.
    """
    method, ref = str(rule["method"]), rule["ref"]
    if method in COMPARISONS:
        return lambda value: COMPARISONS[method](value, ref)
    if method.startswith("re"):
        pattern = re.compile(ref, sum(getattr(re, flag) for flag in method.split(".")[1:]))
        return lambda value: pattern.search(value) is not None
    if method.startswith("approx:"):
        target, threshold = float(ref), float(method.partition(":")[2])
        return lambda value: _near(value, target, threshold)
    if re.fullmatch(r"range\.[te][te]", method):
        low, high = (COMPARISONS[f"l{end}"] for end in method[6:])
        return lambda value: low(ref[0], value) and high(value, ref[1])
    if method in {"str_list_eq", "str_set_eq"}:
        kind = list if method == "str_list_eq" else set
        return lambda value: kind(value.strip("\"'").split(",")) == kind(ref)
    if method == "spreadsheet_range":
        return lambda value: _between_ranges(value, *ref)
    raise UnsupportedCheck(f"unknown method {method!r} in a rule")


def check_methods(rules: Iterable[Mapping[str, Any]]) -> None:
    """Check the methods of rules about values, and what they refer to; raises the same errors as `matcher_of`."""
    for rule in rules:
        matcher_of(rule)


def _near(value: Any, ref: float, threshold: float) -> bool:
    try:
        return abs(float(value) - ref) <= threshold
    except (TypeError, ValueError):
        return False


def _between_ranges(value: Any, least: str, most: str) -> bool:
    from openpyxl.worksheet.cell_range import MultiCellRange

    inner, outer = MultiCellRange(least), MultiCellRange(most)
    return all(part in value for part in inner) and all(part in outer for part in value)


def _matches_record(pattern: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Return whether a record has every field of the pattern with its value."""
    return all(key in record and record[key] == value for key, value in pattern.items())


def meets_rules(records: Iterable[Mapping[str, Any]], rules: Mapping[str, Any]) -> bool:
    """Return whether each pattern of `expect` matches some record, and no pattern of `unexpect` any."""
    known = list(records)
    expected = all(any(_matches_record(pattern, record) for record in known) for pattern in rules.get("expect", []))
    unexpected = any(_matches_record(pattern, record) for pattern in rules.get("unexpect", []) for record in known)
    return expected and not unexpected


def ratio(first: str | None, second: str | None) -> float:
    """Return twice the length of the longest common subsequence divided by the sum of both lengths, from 0 to 1.

    It is the normalised indel similarity, which published scores use. Two empty texts have the similarity 1, None has 0.
    """
    if first is None or second is None:
        return 0.0
    if not first and not second:
        return 1.0
    return 2 * _common_length()(first, second) / (len(first) + len(second))


@cache
def _common_length() -> Callable[[str, str], int]:
    """Return the function that computes the length of the longest common subsequence of two texts."""
    try:
        from rapidfuzz.distance import LCSseq
    except ModuleNotFoundError:
        return common_length
    return LCSseq.similarity


def common_length(first: str, second: str) -> int:
    """Return the length of the longest common subsequence."""
    ends = _common_prefix(first, second)
    first, second = first[ends:], second[ends:]
    tail = _common_prefix(first[::-1], second[::-1])
    first, second = first[: len(first) - tail], second[: len(second) - tail]
    return ends + tail + _common_bits(first, second)


def _common_prefix(first: str, second: str) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low


def _common_bits(first: str, second: str) -> int:
    """Return the length of the longest common subsequence; each row of the table is one integer (Hyyrö 2004)."""
    if not first or not second:
        return 0
    places: dict[str, int] = {}
    for place, letter in enumerate(first):
        places[letter] = places.get(letter, 0) | 1 << place
    full = (1 << len(first)) - 1
    row = full
    for letter in second:
        matches = row & places.get(letter, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(first) - row.bit_count()
