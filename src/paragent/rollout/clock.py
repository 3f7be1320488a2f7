"""The working clock of one rollout, which stands still while the rollout waits for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.clock import Clock, monotonic

if TYPE_CHECKING:
    import asyncio

__all__ = ["WorkClock"]


class WorkClock:
    """Counts working and waiting time apart, and says what is being done. Several waits may overlap: it stands until all end."""

    def __init__(self, limit: float | None = None, clock: Clock = monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._started = clock()
        self._waited = 0.0
        self._waits = 0
        self._wait_began = 0.0
        self._timeout: asyncio.Timeout | None = None
        self.what = "starting"
        self.since = self._started
        self.until: float | None = None
        """When the wait under way will end, where that is known."""

    @property
    def waited(self) -> float:
        """Seconds of waiting so far."""
        return self._waited + (self._clock() - self._wait_began if self._waits else 0.0)

    @property
    def worked(self) -> float:
        """Seconds of work so far."""
        return self._clock() - self._started - self.waited

    def enforce(self, timeout: asyncio.Timeout) -> None:
        """Let `timeout` expire when the limit is used up by work."""
        self._timeout = timeout
        self._rearm()

    def doing(self, what: str) -> None:
        """Note what the rollout works on."""
        self.what, self.since, self.until = what, self._clock(), None

    def pause(self, what: str, seconds: float | None) -> None:
        """Stop counting work."""
        now = self._clock()
        self.what, self.since = what, now
        self.until = None if seconds is None else now + seconds
        self._waits += 1
        if self._waits == 1:
            self._wait_began = now
            if self._timeout and not self._timeout.expired():
                self._timeout.reschedule(None)

    def resume(self) -> None:
        """Go on counting, if nothing else is waited for."""
        self._waits -= 1
        if not self._waits:
            self._waited += self._clock() - self._wait_began
            self.doing("working")
            self._rearm()

    def _rearm(self) -> None:
        if self._timeout is None or self._limit is None or self._waits or self._timeout.expired():
            return
        import asyncio

        left = max(0.0, self._limit - self.worked)
        self._timeout.reschedule(asyncio.get_running_loop().time() + left)
