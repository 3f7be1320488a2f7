"""Thunderbird: preferences, filters and folders."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.metrics.reading import text_of
from paragent.envs.osworld.evaluating.metrics.value_rules import matches, meets_rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check_thunderbird_filter", "check_thunderbird_folder", "check_thunderbird_prefs"]

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PREFERENCE = re.compile(rf"user_pref\((?P<key>{_QUOTED}),\s*(?P<value>.+)\);")
_CONDITION = re.compile(rf"\b(?:AND|OR) \([^,()]+,[^,()]+,(?:{_QUOTED}|[^)]+)\)|\bALL\b")
_FILTER_FIELDS = ("name", "enabled", "type", "action", "actionValue", "condition")
_DELETED = re.compile(r"X-Mozilla-Status: 000[89]")
_MESSAGE = "FROM - "


def check_thunderbird_prefs(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether preferences follow the rules of `expect`, and those that are set do not follow those of `unexpect`."""
    if result is None:
        return False
    expected, unexpected = rules.get("expect", {}), rules.get("unexpect", {})
    met = dict.fromkeys(expected, False)
    for line in text_of(result).splitlines():
        found = _PREFERENCE.fullmatch(line.strip())
        key = None if found is None else found["key"][1:-1]
        if found is None or (key not in expected and key not in unexpected):
            continue
        value = json.loads(found["value"])
        if key in expected:
            met[key] = matches(value, expected[key])
        elif matches(value, unexpected[key]):
            return False
    return all(met.values())


def check_thunderbird_filter(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether each filter of `expect` is there, and none of `unexpect`."""
    return result is not None and meets_rules(_filters(text_of(result)), rules)


def _filters(text: str) -> list[dict[str, Any]]:
    """Return the filters of a rules file. A filter begins with its name and is complete with its condition."""
    filters: list[dict[str, Any]] = []
    current: dict[str, Any] = {}
    for line in text.splitlines():
        key, separator, quoted = line.partition("=")
        if not separator or key not in _FILTER_FIELDS:
            continue
        value = quoted[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        if key == "name":
            current = {}
        current[key] = value
        if key == "condition":
            current[key] = _CONDITION.findall(value)
            filters.append(current)
    return filters


def check_thunderbird_folder(
    result: str | list[str | None] | None, expected: str | list[str], *, remove_duplicate: bool = True, **options: Any
) -> bool:
    """Return whether mail folders have the expected messages, in any order.

    Deleted messages do not count unless `remove_deleted` is off; `ignore_status` and `ignore_keys` leave out Thunderbird's
    own headers.
    """
    found: Sequence[Any] = result if isinstance(expected, list) and isinstance(result, list) else [result]
    wanted = expected if isinstance(expected, list) else [expected]

    def messages(path: str) -> list[str]:
        read = _messages(text_of(path), **options)
        return sorted(set(read) if remove_duplicate else read)

    return all(one is not None and messages(one) == messages(other) for one, other in zip(found, wanted, strict=False))


def _messages(
    text: str, *, remove_deleted: bool = True, ignore_status: bool = False, ignore_keys: bool = False, **_: Any
) -> list[str]:
    kept = []
    for message in text.strip().split(_MESSAGE):
        if not message.strip() or (remove_deleted and _DELETED.search(message)):
            continue
        plain = re.sub(r"X-Mozilla-Status\d?:[\s\d]+", "", message) if ignore_status else message
        plain = re.sub(r"X-Mozilla-Keys:[^\n]*\n(?=MIME-Version)", "", plain) if ignore_keys else plain
        kept.append(plain.strip())
    return kept
