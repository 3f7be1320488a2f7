"""Validation of settings: checks of single values, of dataclass fields and of names. All of them raise `ConfigError`.

A check is a function `check(value, name)`. It returns the value, as a float where the setting is a float, or raises. A
dataclass declares the checks of its fields and calls `check_fields` in `__post_init__`::

    _CHECKS = {"size": at_least(1), "timeout": optional(seconds), "mode": one_of("fast", "slow")}
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Check = Callable[..., Any]
    """`check(value, name, *, none=False)`; `none` only adds "or None" to the message."""

C = TypeVar("C", bound=type)

__all__ = [
    "MOST_SECONDS",
    "at_least",
    "check_fields",
    "flag",
    "instance_of",
    "integer",
    "mapping",
    "number",
    "one_of",
    "optional",
    "port",
    "reject_unknown",
    "seconds",
    "suggests_fields",
    "text",
]

_LARGEST_INTEGER = 2**63 - 1
"""The largest integer that the journal can store."""
MOST_SECONDS = 1e9
"""Thirty years. Timers of the operating system and of Python overflow not far above it."""


def check_fields(settings: Any, checks: Mapping[str, Check], label: Callable[[str], str] = str) -> None:
    """Check fields of a dataclass, frozen or not, and store the checked values.

    Args:
        settings: the dataclass.
        checks: the check of each field.
        label: returns what the user calls a field, for messages: for example its command-line flag.

    Raises:
        ConfigError: a field has a wrong value.
    """
    for name, check in checks.items():
        value = getattr(settings, name)
        checked = check(value, label(name))
        if checked is not value:
            object.__setattr__(settings, name, checked)


def reject_unknown(owner: str, noun: str, given: Iterable[str], known: Iterable[str], listed: str = "") -> None:
    """Check names that a user gave.

    Args:
        owner: what has the names, for the message.
        noun: what a name stands for: `field`, `option`, ...
        given: the names that the user gave.
        known: the names that are allowed.
        listed: a sentence that says where the names are described; empty: the message lists them.

    Raises:
        ConfigError: a name is unknown; the message suggests a similar name and lists the known ones.
    """
    names = sorted(known)
    for name in given:
        if name not in names:
            from paragent._internal.text import suggestion  # not at the top: every worker loads this module

            listed = listed or (f"The {noun}s are: {', '.join(names)}" if names else f"There are no {noun}s")
            raise ConfigError(f"{owner} has no {noun} {name!r}{suggestion(name, names) or '.'} {listed}")


def suggests_fields(cls: C) -> C:
    """Make the constructor of a dataclass raise `ConfigError` for an unknown field; class decorator.

    The message suggests a similar name and lists the known ones. The signature stays as the dataclass has it.
    """
    from functools import wraps

    kind: Any = cls
    construct = kind.__init__
    known = frozenset(kind.__dataclass_fields__)

    @wraps(construct)
    def check_names(self: Any, *args: Any, **settings: Any) -> None:
        if not known.issuperset(settings):
            reject_unknown(cls.__name__, "field", settings, known)
        construct(self, *args, **settings)

    kind.__init__ = check_names
    return cls


def number(value: Any, name: str, *, none: bool = False) -> float:
    """Return a finite number.

    Raises:
        ConfigError: it is not a number, or NaN or infinite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(name, "a finite number", value, none)
    return float(value)


def seconds(value: Any, name: str, *, zero: bool = False, none: bool = False) -> float:
    """Return a duration in seconds: above 0, or with `zero` at least 0.

    Raises:
        ConfigError: it is not a number, NaN, negative, 0, or more than thirty years.
    """
    fits = not isinstance(value, bool) and isinstance(value, int | float) and value <= MOST_SECONDS
    if not fits or not (value > 0 or (zero and value == 0)):
        raise _wrong(name, f"a number of seconds {'of at least' if zero else 'above'} 0", value, none)
    return float(value)


def integer(value: Any, name: str, *, least: int, none: bool = False) -> int:
    """Return an integer that is not below `least` and fits into 64 bits.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _wrong(name, f"an integer of at least {least}", value, none)
    if value > _LARGEST_INTEGER:
        raise _wrong(name, f"an integer of at most 2**63 - 1 = {_LARGEST_INTEGER}", value, none)
    return value


def at_least(least: int) -> Check:
    """Return the check of an integer that must not be below `least`."""

    def check(value: Any, name: str, *, none: bool = False) -> int:
        return integer(value, name, least=least, none=none)

    return check


def port(value: Any, name: str, *, none: bool = False) -> int:
    """Return the number of a TCP port.

    Raises:
        ConfigError: it is not an integer between 1 and 65535.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536:
        raise _wrong(name, "a port between 1 and 65535", value, none)
    return value


def flag(value: Any, name: str, *, none: bool = False) -> bool:
    """Return a bool.

    Raises:
        ConfigError: it is something else, such as 1 or "yes".
    """
    if not isinstance(value, bool):
        raise _wrong(name, "True or False", value, none)
    return value


def text(value: Any, name: str, *, none: bool = False) -> str:
    """Return a non-empty string.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, str) or not value:
        raise _wrong(name, "a non-empty string", value, none)
    return value


def mapping(value: Any, name: str, *, none: bool = False) -> Any:
    """Return a mapping.

    Raises:
        ConfigError: it is something else.
    """
    from collections.abc import Mapping

    if not isinstance(value, Mapping):
        raise _wrong(name, "a mapping", value, none)
    return value


def instance_of(kind: type, example: str) -> Check:
    """Return the check of a value that must be an instance of `kind`; `example` is shown in the error."""

    def check(value: Any, name: str, *, none: bool = False) -> Any:
        if not isinstance(value, kind):
            raise _wrong(name, f"a {kind.__name__}, for example {example},", value, none)
        return value

    return check


def one_of(*choices: Any) -> Check:
    """Return the check of a value that must be one of `choices`."""

    def check(value: Any, name: str, *, none: bool = False) -> Any:
        if value not in choices:
            raise _wrong(name, f"one of {', '.join(map(repr, choices))}", value, none)
        return value

    return check


def optional(check: Check) -> Check:
    """Return a check that accepts None besides what `check` accepts."""

    def check_or_none(value: Any, name: str, *, none: bool = True) -> Any:
        return None if value is None else check(value, name, none=none)

    return check_or_none


def _wrong(name: str, expected: str, value: Any, none: bool) -> ConfigError:
    none = none and not name.startswith("--")  # a flag is left out instead
    return ConfigError(f"{name} must be {expected}{' or None' if none else ''}, not {value!r}")
