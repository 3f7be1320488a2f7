"""Thunderbird: preferences, filters and folders."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.metrics.reading import text_of
from paragent.envs.osworld.evaluating.metrics.value_rules import matches, meets_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_thunderbird_filter", "check_thunderbird_folder", "check_thunderbird_prefs"]

_PREFERENCE = re.compile(r'user_pref\("((?:\\"|[^"])+)", (.+)\);')
_CONDITION = re.compile(r"\b(?:AND|OR) \([\w ]+,[\w ']+,(?:\"(?s:.)+\"|[^)]+)\)|\bALL\b")
"""A condition of a filter. One in quotes reaches to the last quote of the line, as in OSWorld."""
_FILTER_FIELDS = ("name", "enabled", "type", "action", "actionValue", "condition")
_DELETED = re.compile(r"X-Mozilla-Status: 000[89]")
_MESSAGE = "FROM - "


def check_thunderbird_prefs(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether preferences follow the rules of `expect`, and those that are set do not follow those of `unexpect`.

    Raises:
        ValueError: some preference, whichever, is no JSON.
    """
    if result is None:
        return False
    expected, unexpected = rules.get("expect", {}), rules.get("unexpect", {})
    met = dict.fromkeys(expected, False)
    for line in io.StringIO(text_of(result)):
        found = _PREFERENCE.fullmatch(line.strip())
        if found is None:
            continue
        key, value = found[1], json.loads(found[2])
        if key in expected:
            met[key] = matches(value, expected[key])
        elif key in unexpected and matches(value, unexpected[key]):
            return False
    return all(met.values())


def check_thunderbird_filter(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether each filter of `expect` is there, and none of `unexpect`."""
    return result is not None and meets_rules(_filters(text_of(result)), rules)


def _filters(text: str) -> list[dict[str, Any]]:
    """Return the filters of a rules file. A filter begins with its name and is complete with its condition.

    Values are in quotes; of a last line that does not end, the last letter is taken for a quote.

    Raises:
        ValueError: something comes before the first name.
    """
    filters: list[dict[str, Any]] = []
    current: dict[str, Any] | None = None
    for line in io.StringIO(text):
        key, separator, _ = line.partition("=")
        if not separator or key not in _FILTER_FIELDS:
            continue
        value = line[len(key) + 2 : -2].replace('\\"', '"').replace("\\\\", "\\")
        if key == "name":
            current = {}
        if current is None:
            raise ValueError(f"the filter file begins with {key!r}, not with a name")
        current[key] = value
        if key == "condition":
            current[key] = _CONDITION.findall(value)
            filters.append(current)
    return filters


def check_thunderbird_folder(
    result: str | list[str | None] | None,
    expected: str | list[str],
    *,
    remove_duplicate: bool = True,
    strict_evaluators: bool = False,
    **options: Any,
) -> bool:
    """Return whether mail folders have the expected messages, in any order.

    Deleted messages do not count unless `remove_deleted` is off; `ignore_status` and `ignore_keys` leave out Thunderbird's
    own headers. OSWorld drops every message that is not empty; with `strict_evaluators` they are compared.
    """
    if isinstance(expected, list) and not isinstance(result, list):
        return False
    pairs: list[tuple[Any, Any]] = (
        list(zip(result or (), expected, strict=False)) if isinstance(expected, list) else [(result, expected)]
    )

    def messages(path: str) -> list[str]:
        read = _messages(text_of(path), **options) if strict_evaluators else _blanks(text_of(path))
        return sorted(set(read) if remove_duplicate else read)

    return all(one is not None and messages(one) == messages(other) for one, other in pairs)


def _blanks(text: str) -> list[str]:
    """Return the empty parts of a folder between the beginnings of messages, written as OSWorld expects them."""
    return [part.strip() for part in text.strip().split(_MESSAGE) if not part.strip()]


def _messages(
    text: str, *, remove_deleted: bool = True, ignore_status: bool = False, ignore_keys: bool = False, **_: Any
) -> list[str]:
    kept = []
    for message in re.split("(?m)^From - |FROM - ", text.strip()):
        if not message.strip() or (remove_deleted and _DELETED.search(message)):
            continue
        plain = re.sub(r"X-Mozilla-Status\d?:[\s\d]+", "", message) if ignore_status else message
        plain = re.sub(r"X-Mozilla-Keys:[^\n]*\n(?=MIME-Version)", "", plain) if ignore_keys else plain
        kept.append(plain.strip())
    return kept
