"""`WorkClock`: working time and waiting time of a rollout, its time limit, and what it was doing when."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING

from paragent._internal.clock import Clock, monotonic
from paragent.execution import STARTING_HELPER
from paragent.store.activity import MOST_INTERVALS, ActivityInterval, RolloutActivity, merged, pack_activity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["WorkClock"]

_SHORTEST = 0.001
"""Seconds. A shorter interval is counted with the next one: nobody sees it, and agents switch activities without a pause."""
_REPORTED = {one.value: one for one in (RolloutActivity.WORKING, RolloutActivity.GENERATING, RolloutActivity.ACTING)}
"""The activities that models, agents and environments report while the agent works."""


class WorkClock:
    """Measures working time and waiting time of a rollout separately, and enforces limits of working time.

    Several waits may overlap: working time continues when all of them have ended.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self.started = time.time()
        """When the rollout started, in seconds since the epoch."""
        self._clock = clock
        self._started = clock()
        self._waited = 0.0
        self._waits = 0
        self._wait_began = 0.0
        self._timeout: asyncio.Timeout | None = None
        """The limit in force; None outside of `limited`."""
        self._deadline: float | None = None
        """The working time at which it expires."""
        self._publish_deadline: Callable[[float], None] = lambda _: None
        self.expired = False
        """Whether the limit of the last `limited` block was exceeded."""
        self.activity: str = RolloutActivity.STARTING
        """What the rollout is doing, for the display."""
        self.since = self._started
        """When it began to do that."""
        self.until: float | None = None
        """When the current wait will end, if that is known."""
        self._phase = self._now_doing = RolloutActivity.STARTING
        self._interval_began = self._started
        self._intervals: list[ActivityInterval] = []
        self._interrupted: tuple[str, RolloutActivity] = (self.activity, self._now_doing)
        """What the rollout was doing before it began to wait."""

    @property
    def waited(self) -> float:
        """Seconds of waiting so far."""
        return self._waited + (self._clock() - self._wait_began if self._waits else 0.0)

    @property
    def worked(self) -> float:
        """Seconds of work so far."""
        return self._clock() - self._started - self.waited

    @contextlib.asynccontextmanager
    async def limited(self, seconds: float | None) -> AsyncIterator[None]:
        """Limit the working time of a block, without waits; None: no limit. Not for nested blocks.

        Raises:
            TimeoutError: the block has worked longer; `expired` tells this error from others of the block.
        """
        timeout = asyncio.timeout(None)
        self.expired = False
        try:
            async with timeout:
                self._timeout, self._deadline = timeout, None if seconds is None else self.worked + seconds
                self._reschedule()
                yield
        finally:
            self._timeout = self._deadline = None
            self.expired = timeout.expired()

    @property
    def is_late(self) -> bool:
        """Whether the limit in force is exceeded."""
        return self._deadline is not None and self.worked >= self._deadline

    @property
    def doing_now(self) -> RolloutActivity:
        """What the rollout is doing."""
        return self._now_doing

    def publish(self, publish_deadline: Callable[[float], None]) -> None:
        """Pass the time at which the agent reaches its limit to a function, whenever it changes; see `limit_itself`."""
        self._publish_deadline = publish_deadline
        self._reschedule()

    def excuse(self, seconds: float) -> None:
        """Count the last seconds of work as a wait: another rollout blocked the event loop."""
        if not self._waits:
            self._waited += seconds
            self._reschedule()

    def packed_activity(self) -> bytes:
        """Return what the rollout has been doing so far, as journals store it."""
        current = ActivityInterval(self._now_doing, self._clock() - self._interval_began)
        return pack_activity([*self._intervals, current])

    def enter(self, phase: RolloutActivity) -> None:
        """Begin a part of the rollout. What models and environments report while the agent works is recorded in detail."""
        self._phase = phase
        self._show(phase, None)
        self._switch(phase)
        self._reschedule()

    def doing(self, what: str, name: str = "") -> None:
        """Set the current activity; `name` is displayed instead, for example the name of a tool."""
        self._show(name or what, None)
        if self._phase is RolloutActivity.WORKING:
            self._switch(_REPORTED.get(what, self._now_doing))

    def pause(self, what: str, seconds: float | None) -> None:
        """Begin a wait; `seconds` is its duration, if known."""
        if not self._waits:
            self._interrupted = (self.activity, self._now_doing)
        self._show(what, seconds)
        if what != STARTING_HELPER:
            machine = what == RolloutActivity.WAITING_FOR_MACHINE
            self._switch(RolloutActivity.WAITING_FOR_MACHINE if machine else RolloutActivity.WAITING_FOR_ENDPOINT)
        self._waits += 1
        if self._waits == 1:
            self._wait_began = self.since
            self._reschedule()

    def resume(self) -> None:
        """End a wait."""
        self._waits -= 1
        if not self._waits:
            shown, activity = self._interrupted
            self._show(shown, None)
            self._switch(activity)
            self._waited += self.since - self._wait_began
            self._reschedule()

    def _show(self, what: str, seconds: float | None) -> None:
        self.activity, self.since = what, self._clock()
        self.until = None if seconds is None else self.since + seconds

    def _switch(self, activity: RolloutActivity) -> None:
        """Record the end of one activity and the beginning of another, which began at `since`."""
        if activity is self._now_doing:
            return
        seconds = self.since - self._interval_began
        if seconds >= _SHORTEST:
            self._intervals.append(ActivityInterval(self._now_doing, seconds))
            self._interval_began = self.since
            if len(self._intervals) >= 2 * MOST_INTERVALS:
                self._intervals = merged(self._intervals)
        self._now_doing = activity

    def _reschedule(self) -> None:
        """Set the time at which the limit in force is reached; there is none during a wait."""
        left = math.inf if self._deadline is None or self._waits else self._deadline - self.worked
        self._publish_deadline(self._clock() + left if self._phase is RolloutActivity.WORKING else -1.0)
        if self._timeout is not None and not self._timeout.expired():
            limited = left < math.inf
            self._timeout.reschedule(asyncio.get_running_loop().time() + max(0.0, left) if limited else None)
