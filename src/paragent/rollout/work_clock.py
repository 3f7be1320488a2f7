"""`WorkClock`: working time and waiting time of a rollout, its time limit, and what it was doing when."""

from __future__ import annotations

import asyncio
import time

from paragent._internal.clock import Clock, monotonic
from paragent.store.activity import MOST_INTERVALS, ActivityInterval, RolloutActivity, merged, pack_activity

__all__ = ["WorkClock"]

_SHORTEST = 0.001
"""Seconds. A shorter interval is counted with the next one: nobody sees it, and agents switch activities without a pause."""
_REPORTED = {one.value: one for one in (RolloutActivity.WORKING, RolloutActivity.GENERATING, RolloutActivity.ACTING)}
"""The activities that models, agents and environments report while the agent works."""


class WorkClock:
    """Measures working time and waiting time of a rollout separately, and enforces the limit of working time.

    Several waits may overlap: working time continues when all of them have ended.
    """

    def __init__(self, limit: float | None = None, clock: Clock = monotonic) -> None:
        self.started = time.time()
        """When the rollout started, in seconds since the epoch."""
        self._limit = limit
        self._clock = clock
        self._started = clock()
        self._waited = 0.0
        self._waits = 0
        self._wait_began = 0.0
        self._timeout: asyncio.Timeout | None = None
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

    @property
    def expired(self) -> bool:
        """Whether the limit of working time is used up."""
        return self._limit is not None and self.worked >= self._limit

    def enforce(self, timeout: asyncio.Timeout) -> None:
        """Let `timeout` expire when the working time is used up."""
        self._timeout = timeout
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
        machine = what == RolloutActivity.WAITING_FOR_MACHINE
        self._switch(RolloutActivity.WAITING_FOR_MACHINE if machine else RolloutActivity.WAITING_FOR_ENDPOINT)
        self._waits += 1
        if self._waits == 1:
            self._wait_began = self.since
            if self._timeout and not self._timeout.expired():
                self._timeout.reschedule(None)

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
        if self._timeout is None or self._limit is None or self._waits or self._timeout.expired():
            return
        left = max(0.0, self._limit - self.worked)
        self._timeout.reschedule(asyncio.get_running_loop().time() + left)
