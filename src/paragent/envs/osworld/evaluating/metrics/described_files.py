"""JSON and YAML files against rules about single values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paragent._plugins import require
from paragent.envs.osworld.evaluating.metrics.reading import text_of
from paragent.envs.osworld.evaluating.metrics.value_rules import matches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check_json"]

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
