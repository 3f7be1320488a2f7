"""Rules about one value: `{"method": ..., "ref": ...}`."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.metrics.vocabulary import NotUnderstood

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["matches", "matches_record", "meets_rules"]

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
