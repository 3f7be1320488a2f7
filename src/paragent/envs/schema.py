"""Values checked against Python annotations, and annotations told as JSON schema: written once, for tools and options.

Understood are `str`, `int`, `float`, `bool`, `Path`, `Any`, `list[T]`, `dict[str, T]`, `Literal[...]`, `T | None` and
`Annotated[T, "what it means"]`.
"""

from __future__ import annotations

import math
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

__all__ = ["convert", "schema"]

_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Path: {"type": "string"},
    dict: {"type": "object"},
    list: {"type": "array"},
    Any: {},
}
_WORDS = {"true": True, "false": False}


def schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of an annotation.

    Raises:
        TypeError: the annotation is none of those above.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return {**schema(args[0]), "description": str(args[1])}
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    if origin in (Union, types.UnionType):
        return schema(_without_none(annotation))
    if origin is list:
        return {"type": "array", "items": schema(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(args[1])}
    if annotation in _SIMPLE:
        return dict(_SIMPLE[annotation])
    raise TypeError(f"no JSON schema is known for the annotation {annotation!r}")


def convert(value: Any, annotation: Any) -> Any:
    """Return `value` as the annotation has it; numbers and booleans may come as text, as models and shells write them.

    Raises:
        ValueError: it cannot be read so; the message says what was expected.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return convert(value, args[0])
    if origin in (Union, types.UnionType):
        return None if value is None else convert(value, _without_none(annotation))
    if origin is Literal:
        if value in args:
            return value
        raise ValueError(f"must be one of {', '.join(map(repr, args))}, not {value!r}")
    if origin is list and isinstance(value, (list, tuple)):
        return [convert(one, args[0]) for one in value]
    if origin is dict and isinstance(value, dict):
        return {str(key): convert(one, args[1]) for key, one in value.items()}
    return _simple(value, origin or annotation)


def _simple(value: Any, kind: Any) -> Any:
    if kind is Any or (isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)):
        return _finite(value) if kind is float else value
    try:
        if kind is Path and isinstance(value, str):
            return Path(value)
        if kind is bool and isinstance(value, str):
            return _WORDS[value.strip().lower()]
        if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
            return _finite(float(value))
        if kind is int and isinstance(value, (float, str)) and float(value) == int(float(value)):
            return int(value)
    except (ValueError, KeyError, OverflowError):
        pass
    raise ValueError(f"must be of type {_SIMPLE[kind].get('type', 'any')}, not {value!r:.200}")


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"must be a finite number, not {value!r}")
    return value


def _without_none(annotation: Any) -> Any:
    others = [one for one in get_args(annotation) if one is not types.NoneType]
    if len(others) != 1:
        raise TypeError(f"only `T | None` is understood as a union, not {annotation!r}")
    return others[0]
