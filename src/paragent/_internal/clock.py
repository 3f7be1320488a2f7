"""Clocks as parameters, so that tests of time-dependent code need not sleep."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "Heartbeat", "ManualClock", "monotonic"]

Clock = Callable[[], float]
"""Returns seconds that never decrease; the zero point is arbitrary."""

monotonic: Clock = time.monotonic


class ManualClock:
    """A clock for tests: it moves only by `advance`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move time forward.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time cannot go back ({seconds} s)")
        self.now += seconds


class Heartbeat:
    """Measures how long a thread or another process has given no sign of life, for an owner that checks regularly.

    Time in which this process itself did not run (it was stopped, or its host was frozen) does not count: the time between
    two checks counts as two intervals at most.

    Args:
        interval: the seconds between two checks.
        clock: the clock.
    """

    def __init__(self, interval: float, clock: Clock = monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._beaten = True
        self._checked = clock()
        self._silence = 0.0

    def beat(self) -> None:
        """Record a sign of life."""
        self._beaten = True

    def silence(self) -> float:
        """Return the seconds since the last sign of life. Call it at least once in each interval, from one thread."""
        now = self._clock()
        passed, self._checked = now - self._checked, now
        if self._beaten:
            self._beaten, self._silence = False, 0.0
        else:
            self._silence += min(passed, 2 * self._interval)
        return self._silence
