"""How many answers may be on their way at a time, from how large they are. No I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent.parcels import size_of

if TYPE_CHECKING:
    from paragent.tasks import Outcome

__all__ = ["Weight"]

_BUDGET = 32 << 20
"""Bytes of answers that may be on their way or wait for a caller who is slower than the workers: with the copies that sockets
and pickles hold, a driver grows by more than that. Beyond it the workers wait."""
_MEMORY = 20
"""How many answers the running mean remembers, roughly."""


class Weight:
    """A running mean of the size of answers, from samples."""

    def __init__(self) -> None:
        self._mean = 0.0

    def observe(self, outcome: Outcome) -> None:
        """Take in the size of one answer."""
        size = size_of(outcome.value)
        self._mean += (size - self._mean) / _MEMORY if size < self._mean else (size - self._mean) / 2

    def allows(self, window: int, least: int) -> int:
        """Return how much of `window` the budget allows, and at least `least`."""
        return min(window, max(least, int(_BUDGET / max(self._mean, 1.0))))
