"""Values of settings: conversion from texts of the command line, variables and files, and checks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from paragent._internal.validation import number
from paragent.errors import ConfigError

__all__ = ["CONVERTERS", "DURATION", "KIND_NAMES", "above_zero", "between", "in_seconds", "not_empty", "to_json_object"]

_JSON_EXAMPLE = '{"top_k": 20}'
_DURATION = re.compile(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?")


def between(least: float, most: float) -> Any:
    """Return the check of a number within limits, which are allowed themselves."""

    def check(value: Any, name: str, *, none: bool = False) -> float:
        if not least <= number(value, name, none=none) <= most:
            raise ConfigError(f"{name} must be a number from {least:g} to {most:g}, not {value!r}")
        return float(value)

    return check


def not_empty(value: Any, name: str, *, none: bool = False) -> str:
    """Return a text that is not empty.

    Raises:
        ConfigError: it is empty.
    """
    del none
    if not value:
        raise ConfigError(f"{name} must not be empty")
    return str(value)


def above_zero(value: Any, name: str, *, none: bool = False) -> float:
    """Return a number above 0.

    Raises:
        ConfigError: it is something else.
    """
    if number(value, name, none=none) <= 0:
        raise ConfigError(f"{name} must be above 0, not {value!r}")
    return float(value)


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]


def _to_list(value: Any) -> list[str]:
    return [str(one) for one in ([value] if isinstance(value, str) else value)]


def _to_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    pairs = [str(one).partition("=") for one in ([value] if isinstance(value, str) else value)]
    if not all(separator for _, separator, _ in pairs):
        raise ValueError(value)
    return {name: text for name, _, text in pairs}


def to_json_object(value: Any, flag: str) -> dict[str, Any]:
    """Return a JSON object that is given as text, as a list of texts whose fields are joined, or as a mapping.

    Raises:
        ConfigError: it is something else.
    """
    given = [value] if isinstance(value, str | Mapping) else value
    joined: dict[str, Any] = {}
    for one in given if isinstance(given, list | tuple) else [given]:
        try:
            parsed = json.loads(one, parse_constant=_no_constant) if isinstance(one, str) else one
            json.dumps(parsed, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(f"{flag} must be JSON, such as {_JSON_EXAMPLE}: {error}, in {one!r}") from None
        if not isinstance(parsed, Mapping):
            raise ConfigError(f"{flag} must be a JSON object, such as {_JSON_EXAMPLE}, not {one!r}")
        joined |= parsed
    return joined


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def in_seconds(value: Any) -> Any:
    """Return a duration with units, as `2h`, `90m` or `1h30m`, in seconds; other values are returned unchanged."""
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or not any(found.groups()):
        return value
    hours, minutes, rest = (float(one or 0) for one in found.groups())
    return 3600 * hours + 60 * minutes + rest


def _scalar(kind: type) -> Any:
    def convert(value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            raise TypeError(value)
        return kind(value)

    return convert


CONVERTERS: dict[type, Any] = {
    bool: _to_bool,
    list: _to_list,
    dict: _to_dict,
    **{kind: _scalar(kind) for kind in (int, float, str, Path)},
}
DURATION = "a number of seconds, or a time such as 90s, 30m or 1h30m"
KIND_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    Path: "a path",
    list: "a list",
    dict: "of the form NAME=VALUE",
    str: "a string",
}
