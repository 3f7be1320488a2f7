"""Time as a parameter, so that decisions which depend on it are tested without sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "ManualClock", "monotonic"]

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
