"""The mark of methods whose calls may overlap."""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["concurrent", "is_concurrent"]

F = TypeVar("F")

_MARK = "__paragent_concurrent__"


def concurrent(method: F) -> F:
    """Let calls of this method run at the same time as other calls of the same agent.

    Without it an agent does one thing at a time, in the order in which each caller asked.
    """
    setattr(method, _MARK, True)
    return method


def is_concurrent(method: Any) -> bool:
    """Return whether a method carries the mark."""
    return getattr(method, _MARK, False) is True
