"""How often something may happen: a decision without I/O."""

from __future__ import annotations

__all__ = ["Pace"]


class Pace:
    """Allows `rate` things a second, and a second's worth at once after a rest."""

    __slots__ = ("_left", "_rate", "_then")

    def __init__(self, rate: int, now: float) -> None:
        self._rate, self._left, self._then = rate, float(rate), now

    def take(self, count: int, now: float) -> float:
        """Count things that have happened; return the seconds to wait until more may."""
        self._fill(now)
        self._left -= count
        return max(0.0, -self._left / self._rate)

    def allows(self, now: float) -> bool:
        """Return whether one more may happen now; it is counted if so."""
        self._fill(now)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _fill(self, now: float) -> None:
        self._left = min(float(self._rate), self._left + (now - self._then) * self._rate)
        self._then = now
