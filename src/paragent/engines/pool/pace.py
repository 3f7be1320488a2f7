"""How far ahead of its limit a worker is fed, from how long calls take. No I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Pace"]

_HORIZON = 0.02
"""Seconds of work that a worker may hold in reserve: a round trip is well under a millisecond, so this hides it many times
over; more would only keep work from workers that are idle."""
_WORTH_A_RESERVE = 0.1
"""Seconds: a worker whose calls take longer need not hold the next one. The way there and back, which it would wait for, takes
about a millisecond, and more where the cores are busy; for a call that takes longer than this that is less than 1 %."""
_MOST_AHEAD = 1024
_MEMORY = 20
"""How many calls the running mean remembers, roughly."""


class Pace:
    """A running mean of the seconds that calls take."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def observe(self, seen: Sequence[float]) -> None:
        """Take in the working times of calls that ended."""
        if not seen:
            return
        mean = sum(seen) / len(seen)
        if self._mean is None:
            self._mean = mean
        else:
            self._mean += (mean - self._mean) * len(seen) / (len(seen) + _MEMORY)

    def ahead(self, limit: int) -> int:
        """Return how many calls beyond its `limit` a worker should hold; none until something is known."""
        if self._mean is None or self._mean > _WORTH_A_RESERVE:
            return 0
        return max(1, min(_MOST_AHEAD, int(limit * _HORIZON / max(self._mean, 1e-6))))

    @staticmethod
    def most(limit: int) -> int:
        """Return the most calls that a worker with this limit can ever hold."""
        return limit + _MOST_AHEAD
