"""How many requests an endpoint gets at a time. No I/O; it takes a clock.

The number starts at what the user asked for, is halved when the endpoint says "too many", and grows by one for every round of
answers after that. A server error does not halve it, but stops the growth for a while: more load does not help it recover.
"""

from __future__ import annotations

from paragent._clock import Clock, monotonic

__all__ = ["Limiter"]

_CUT_PAUSE = 1.0
"""Seconds after a cut in which further refusals do not cut again: they answer requests that were sent before it."""
_GROWTH_PAUSE = 10.0
"""Seconds after a server error or a refusal without growth."""


class Limiter:
    """Additive increase, multiplicative decrease. Belongs to one event loop."""

    def __init__(self, most: int, clock: Clock = monotonic) -> None:
        self._most = most
        self._limit = float(most)
        self._clock = clock
        self._cut_at = float("-inf")
        self._no_growth_before = float("-inf")
        self._closed_until = float("-inf")
        self._share: int | None = None
        self.in_flight = 0

    @property
    def limit(self) -> int:
        """How many requests may be in flight now: what was found out here or, in company, this one's share."""
        return max(1, int(self._limit)) if self._share is None else self._share

    def follow(self, share: int, closed: float) -> None:
        """Go by what somebody decides who hears of all requests: how many, and for how long none at all."""
        self._share = share
        self._limit = max(1.0, float(share))  # where to go on from if nobody decides any more
        if closed:
            self._closed_until = max(self._closed_until, self._clock() + closed)

    def decide_alone(self) -> None:
        """Go by what is found out here, from now on."""
        self._share = None

    def opens_in(self) -> float:
        """Return the seconds until the endpoint wants to hear from anybody again; 0 most of the time."""
        return max(0.0, self._closed_until - self._clock())

    def admit(self) -> bool:
        """Count a request as in flight if there is room for it, and return whether there was."""
        if self.in_flight >= self.limit or self.opens_in() > 0:
            return False
        self.in_flight += 1
        return True

    def leave(self) -> None:
        """Say that a request has ended, whatever way."""
        self.in_flight -= 1

    def answered(self, seconds: float = 0.0) -> None:
        """Say that the endpoint answered."""
        if self._limit < self._most and self._clock() >= self._no_growth_before:
            self._limit = min(float(self._most), self._limit + 1.0 / self._limit)

    def throttled(self, retry_after: float | None) -> None:
        """Say that the endpoint asked for fewer requests, and for how long it wants none at all."""
        now = self._clock()
        if now - self._cut_at >= _CUT_PAUSE:
            self._cut_at = now
            self._limit = max(1.0, min(self._limit, float(self.in_flight)) / 2)
            if self._share is not None:
                self._share = min(self._share, int(self._limit))  # until the next word from whoever decides
        self._no_growth_before = now + _GROWTH_PAUSE
        if retry_after:
            self._closed_until = max(self._closed_until, now + retry_after)

    def troubled(self) -> None:
        """Say that the endpoint failed by its own fault."""
        self._no_growth_before = self._clock() + _GROWTH_PAUSE
