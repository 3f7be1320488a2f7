"""Checks of numbers that users give: durations, limits, counts. Neither NaN nor infinity passes any of them."""

from __future__ import annotations

import math
from typing import Any

from paragent.errors import ConfigError

__all__ = ["MOST_SECONDS", "finite", "seconds", "whole"]

MOST_SECONDS = 1e9
"""Thirty years. Timers of the operating system and of Python overflow not far above it."""


def finite(value: Any, what: str) -> float:
    """Return a number.

    Raises:
        ConfigError: it is not a number, or NaN or infinite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{what} must be a finite number, not {value!r}")
    return float(value)


def seconds(value: Any, what: str, *, zero: bool = False, none: bool = False) -> float:
    """Return a duration in seconds: above 0, or with `zero` at least 0.

    Args:
        value: what the user gave.
        what: how the user calls it, for the message.
        zero: whether 0 is allowed.
        none: whether the caller takes None for "no limit", for the message.

    Raises:
        ConfigError: it is not a number, NaN, infinite, negative, 0, or more than thirty years.
    """
    fits = not isinstance(value, bool) and isinstance(value, int | float) and value <= MOST_SECONDS
    if not fits or not (value > 0 or (zero and value == 0)):
        least = "of at least 0" if zero else "above 0"
        or_none = " or None" if none else ""
        raise ConfigError(f"{what} must be a number of seconds {least}{or_none}, not {value!r}")
    return float(value)


def whole(value: Any, what: str, *, least: int, none: bool = False) -> int:
    """Return a whole number that is not below `least`; `none` as in `seconds`.

    Raises:
        ConfigError: it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        or_none = ", or None" if none else ""
        raise ConfigError(f"{what} must be a whole number of at least {least}{or_none}, not {value!r}")
    return value
