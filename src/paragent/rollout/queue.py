"""`RolloutQueue`: decides which rollouts of a session start, in which order, and when. Does no I/O."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

from paragent._internal.clock import Clock, monotonic
from paragent.rollout.live_status import RunState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paragent.store import PendingRollout

__all__ = ["RolloutKey", "RolloutQueue", "key_of"]

RolloutKey = tuple[str, int]
"""The id of the task and the attempt."""


def key_of(rollout: PendingRollout) -> RolloutKey:
    """Return what identifies a rollout in its run."""
    return rollout.task.id, rollout.attempt


class RolloutQueue:
    """The rollouts of a session that have not ended: pending ones, those that are retried later, and those under way.

    Each pending rollout is given out once, and again only after `retry_later` or `add`.

    Args:
        pending: the pending rollouts in their order; read as far as needed. None: there is none now, ask again later.
        limit: how many rollouts may be under way.
        clock: returns monotonic seconds.
    """

    def __init__(self, pending: Iterator[PendingRollout | None], limit: int, clock: Clock = monotonic) -> None:
        self._pending, self._clock = pending, clock
        self._exhausted = False
        self._later: list[tuple[float, int, PendingRollout]] = []
        """A heap of rollouts to execute out of order, by the time from which they may be."""
        self._order = itertools.count()
        self._skipped: set[RolloutKey] = set()
        """Rollouts that `pending` may still yield and that are not to be taken from there."""
        self.limit = limit
        """How many rollouts may be under way."""
        self.active: dict[str, PendingRollout] = {}
        """Rollouts under way, by the id of their runner task."""
        self.cancelling: set[RolloutKey] = set()
        """Rollouts under way that are to be cancelled."""
        self.paused = False
        """Whether no new rollouts start for now."""
        self.stopped = ""
        """Why no new rollouts start any more; empty while they do."""
        self.cancels_active = False
        """Whether the rollouts under way are to be cancelled because the session stops."""

    def take(self, number: int) -> Iterator[tuple[str, PendingRollout]]:
        """Yield up to `number` rollouts that start now, each with the id of its runner task; they are under way from then on."""
        room = min(number, self.limit - len(self.active))
        for _ in range(room):
            rollout = None if self.paused or self.stopped else self._next()
            if rollout is None:
                return
            task_id = f"{next(self._order)}:{rollout.label}"
            self.active[task_id] = rollout
            yield task_id, rollout

    def end(self, task_id: str) -> None:
        """Remove a rollout that is no longer under way."""
        rollout = self.active.pop(task_id, None)
        if rollout is not None:
            self.cancelling.discard(key_of(rollout))

    def retry_later(self, rollout: PendingRollout, seconds: float) -> None:
        """Execute a rollout again after some seconds."""
        heapq.heappush(self._later, (self._clock() + seconds, next(self._order), rollout))

    def add(self, rollout: PendingRollout) -> None:
        """Execute a rollout next, although it had a result."""
        self._skipped.add(key_of(rollout))
        self.retry_later(rollout, 0.0)

    def drop(self, key: RolloutKey) -> None:
        """Do not execute a rollout that is not under way."""
        self._skipped.add(key)
        self._later = [entry for entry in self._later if key_of(entry[2]) != key]
        heapq.heapify(self._later)

    def waits(self, key: RolloutKey) -> bool:
        """Return whether a rollout is to be executed out of order."""
        return any(key_of(rollout) == key for _, _, rollout in self._later)

    def is_active(self, key: RolloutKey) -> bool:
        """Return whether a rollout is under way."""
        return any(key_of(rollout) == key for rollout in self.active.values())

    @property
    def has_more(self) -> bool:
        """Whether rollouts may start, now or later."""
        return not self.stopped and (not self._exhausted or bool(self._later))

    @property
    def seconds_to_retry(self) -> float | None:
        """The seconds until the next retry may start; None if none is planned."""
        return max(0.0, self._later[0][0] - self._clock()) if self._later else None

    @property
    def state(self) -> RunState:
        """What the session is doing, from its first dispatch to its end."""
        if self.stopped:
            return RunState.STOPPING
        if self.paused:
            return RunState.PAUSING if self.active else RunState.PAUSED
        return RunState.RUNNING

    def _next(self) -> PendingRollout | None:
        if self._later and self._later[0][0] <= self._clock():
            return heapq.heappop(self._later)[2]
        for rollout in self._pending:
            if rollout is None or key_of(rollout) not in self._skipped:
                return rollout
        self._exhausted = True
        return None
