"""Time as a parameter, so that decisions which depend on it are tested without sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "Heartbeat", "ManualClock", "monotonic"]

Clock = Callable[[], float]
"""Seconds that only ever grow; the zero point means nothing."""

monotonic: Clock = time.monotonic


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move time forward; negative steps are refused."""
        if seconds < 0:
            raise ValueError(f"time does not go back ({seconds} s)")
        self.now += seconds


class Heartbeat:
    """How long a thread or another process has not been heard of, as somebody who looks regularly can tell.

    Time in which this process did not run (it was stopped, or its machine was frozen or out of memory) is nobody's silence: a
    look that comes much later than planned counts as two.

    Args:
        interval: the seconds between two looks.
        clock: the time.
    """

    def __init__(self, interval: float, clock: Clock = monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._beaten = True
        self._looked = clock()
        self._silence = 0.0

    def beat(self) -> None:
        """Note a sign of life."""
        self._beaten = True

    def silence(self) -> float:
        """Return the seconds without a beat; to be called at least once in each interval, by one thread."""
        now = self._clock()
        passed, self._looked = now - self._looked, now
        if self._beaten:
            self._beaten, self._silence = False, 0.0
        else:
            self._silence += min(passed, 2 * self._interval)
        return self._silence
