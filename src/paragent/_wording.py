"""How numbers of things are told to people."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 machine`, `0 machines`, `12,000 machines`; `plural` is for more than an `s`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
