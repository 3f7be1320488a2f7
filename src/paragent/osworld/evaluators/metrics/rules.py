"""Rules about one value: `{"method": ..., "ref": ...}`."""

from __future__ import annotations

import operator
import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["NotUnderstood", "common_length", "matches", "matches_record", "meets_rules", "ratio"]


class NotUnderstood(ValueError):
    """A task says something that no metric here knows: a rule, a property, a kind of file.

    It is the one error of a metric that does not count as 0: the agent has nothing to do with it.
    """


_COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "le", "lt", "ge", "gt")}


def matches(value: Any, rule: Mapping[str, Any]) -> bool:
    """Return whether a value follows a rule.

    The methods are `eq`, `ne`, `le`, `lt`, `ge`, `gt`; `re` with flags (`re.S.I`), which searches; `approx:0.1`;
    `range.te` and its like (less than, less or equal, at either end); `str_list_eq` and `str_set_eq` on a text with commas;
    `spreadsheet_range`, for cell ranges that must hold one range and be held by another.

    Raises:
        NotUnderstood: there is no such method.
    """
    method, ref = str(rule["method"]), rule["ref"]
    if method in _COMPARISONS:
        return bool(_COMPARISONS[method](value, ref))
    if method.startswith("re") and method.split(".")[0] == "re":
        flags = sum(getattr(re, flag) for flag in method.split(".")[1:])
        return re.search(ref, value, flags) is not None
    if method.startswith("approx:"):
        return _near(value, float(ref), float(method.partition(":")[2]))
    if method.startswith("range."):
        low, high = (_COMPARISONS[f"l{end}"] for end in method[6:8])
        return bool(low(ref[0], value) and high(value, ref[1]))
    if method in {"str_list_eq", "str_set_eq"}:
        kind = list if method == "str_list_eq" else set
        return bool(kind(value.strip("\"'").split(",")) == kind(ref))
    if method == "spreadsheet_range":
        return _between_ranges(value, *ref)
    raise NotUnderstood(f"there is no rule with the method {method!r}")


def _near(value: Any, ref: float, threshold: float) -> bool:
    try:
        return abs(float(value) - ref) <= threshold
    except (TypeError, ValueError):
        return False


def _between_ranges(value: Any, least: str, most: str) -> bool:
    from openpyxl.worksheet.cell_range import MultiCellRange

    inner, outer = MultiCellRange(least), MultiCellRange(most)
    return all(part in value for part in inner) and all(part in outer for part in value)


def matches_record(pattern: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Return whether a record has every field of the pattern, with its value."""
    return all(key in record and record[key] == value for key, value in pattern.items())


def meets_rules(records: Iterable[Mapping[str, Any]], rules: Mapping[str, Any]) -> bool:
    """Return whether each pattern of `expect` fits some record, and no pattern of `unexpect` fits any."""
    known = list(records)
    expected = all(any(matches_record(pattern, record) for record in known) for pattern in rules.get("expect", []))
    unexpected = any(matches_record(pattern, record) for pattern in rules.get("unexpect", []) for record in known)
    return expected and not unexpected


def ratio(first: str | None, second: str | None) -> float:
    """Return twice the length of the longest common subsequence over the lengths of both, from 0 to 1.

    It is the normalised indel similarity, which published scores use. Two empty texts are alike, and None is like nothing.
    """
    if first is None or second is None:
        return 0.0
    if not first and not second:
        return 1.0
    return 2 * _common_length()(first, second) / (len(first) + len(second))


@cache
def _common_length() -> Callable[[str, str], int]:
    """Return the function that tells the length of the longest common subsequence of two texts."""
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
    """Return the same, a row of the usual table at a time: each row is the bits of one large number (Hyyrö 2004)."""
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
