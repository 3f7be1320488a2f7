"""Short representations of records: `repr` in a notebook, a debugger or a failed assertion."""

from __future__ import annotations

import reprlib
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["short_record", "short_value"]

_VALUES = reprlib.Repr()
_VALUES.maxstring = _VALUES.maxother = 200
"""Characters: some lines of a terminal. Longer texts lose their middle; of containers the first items are shown."""


def short_value(value: Any) -> str:
    """Return the representation of a value with a limited length; a member of an enum of strings is shown as its string."""
    return _VALUES.repr(str(value) if isinstance(value, StrEnum) else value)


def short_record(record: Any, *, always: Collection[str] = (), never: Collection[str] = ()) -> str:
    """Return the representation of a dataclass: its fields without those that have their defaults. Floats are rounded.

    Args:
        record: the dataclass.
        always: fields that are shown even if they have their defaults.
        never: fields that are not shown.
    """
    shown = []
    for name, spec in record.__dataclass_fields__.items():
        value = getattr(record, name)
        default = spec.default_factory() if callable(spec.default_factory) else spec.default
        if name not in never and (name in always or not _equals(value, default)):
            shown.append(f"{name}={_rounded(value) if type(value) is float else short_value(value)}")
    return f"{type(record).__name__}({', '.join(shown)})"


def _equals(value: Any, default: Any) -> bool:
    # Values of other types are not compared: the comparison of two arrays is an array.
    return value is default or (isinstance(value, str | int | float | list | dict) and bool(value == default))


def _rounded(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1 else f"{round(value, 3):g}" if abs(value) < 1000 else f"{value:.0f}"
