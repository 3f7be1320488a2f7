"""Decides which worker gets which call. Pure decisions without I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from paragent.execution import Ending
from paragent.serialization import size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.engines.base import Call
    from paragent.execution import Outcome

__all__ = ["AnswerSize", "CallDuration", "CallScheduler", "ConcurrencyLimits", "WorkerLoad", "max_held"]


_PREFETCH_SECONDS = 0.02
"""Seconds of work that a worker may hold beyond its limit. A round trip takes well under a millisecond, so this hides it many
times over; more would only keep calls from idle workers."""
_LONGEST_PREFETCHED = 0.1
"""Seconds: a worker whose calls take longer holds no further call. It waits about a millisecond for the next one, a few where
the cores are busy, which is less than 1 % of such a call."""
_MAX_PREFETCH = 1024
_SAMPLES = 20
"""How many samples a running mean remembers, roughly."""


def max_held(limit: int) -> int:
    """Return the largest number of calls that a worker with this limit ever holds."""
    return limit + _MAX_PREFETCH


class CallDuration:
    """A running mean of the seconds that calls take."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def observe(self, seconds: Sequence[float]) -> None:
        """Add the working times of calls that ended."""
        if not seconds:
            return
        mean = sum(seconds) / len(seconds)
        if self._mean is None:
            self._mean = mean
        else:
            self._mean += (mean - self._mean) * len(seconds) / (len(seconds) + _SAMPLES)

    def prefetch(self, limit: int) -> int:
        """Return how many calls beyond its `limit` a worker should hold; 0 until a duration is known."""
        if self._mean is None or self._mean > _LONGEST_PREFETCHED:
            return 0
        return max(1, min(_MAX_PREFETCH, int(limit * _PREFETCH_SECONDS / max(self._mean, 1e-6))))


class ConcurrencyLimits(NamedTuple):
    """How many calls one worker runs at a time."""

    sync: int
    asynchronous: int
    shared: bool
    """Both numbers are the same and limit both kinds together."""
    single_use: bool = False
    """A worker runs one call in its lifetime."""

    def of(self, is_async: bool) -> int:
        """Return the limit for one kind of call."""
        return self.asynchronous if is_async else self.sync


class WorkerLoad:
    """The calls that one worker holds."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        """By number."""
        self.counts = [0, 0]
        """The number of sync and of async calls among them."""
        self.max_group = 0
        """The smallest `max_group` of these calls; 0: none has one."""
        self.used = False
        """The worker was given a call at some time."""
        self.last_outcome = 0.0
        """When the worker started or last returned an outcome, by the monotonic clock; set by the engine."""

    def add(self, calls: Sequence[Call]) -> None:
        """Record that the worker was given `calls`."""
        self.used = True
        self.calls.update([(call.number, call) for call in calls])
        is_async = sum([call.is_async for call in calls])
        self.counts[True] += is_async
        self.counts[False] += len(calls) - is_async
        if groups := [call.max_group for call in calls if call.max_group]:
            self.max_group = min(*groups, self.max_group or groups[0])

    def remove(self, outcomes: Sequence[Outcome]) -> tuple[list[float], list[float]]:
        """Record that calls ended; return the working times of the sync and of the async calls that ran."""
        pop = self.calls.pop
        kinds = [pop(outcome.number).is_async for outcome in outcomes]
        is_async = sum(kinds)
        self.counts[True] -= is_async
        self.counts[False] -= len(kinds) - is_async
        if not self.calls:
            self.max_group = 0
        displaced = Ending.DISPLACED
        if not is_async:
            return [outcome.seconds for outcome in outcomes if outcome.ending is not displaced], []
        ran = [
            (kind, outcome) for kind, outcome in zip(kinds, outcomes, strict=True) if outcome.ending is not displaced
        ]
        return (
            [outcome.seconds for kind, outcome in ran if not kind],
            [outcome.seconds for kind, outcome in ran if kind],
        )


class CallScheduler:
    """Queues calls and distributes them over workers.

    Calls of one kind are sent in the order of their submission. A worker holds as many calls as it may run, and a few more if
    calls are short (`CallDuration.prefetch`). Calls with a `max_group` wait for a worker without calls and share it only
    with each other.
    """

    def __init__(self, limits: ConcurrencyLimits) -> None:
        self._limits = limits
        self._queues: tuple[deque[Call], deque[Call]] = (deque(), deque())
        self._grouped: deque[Call] = deque()
        """Calls with a `max_group`."""
        self._durations = (CallDuration(), CallDuration())
        self._async_seen = False

    def __len__(self) -> int:
        return len(self._queues[0]) + len(self._queues[1]) + len(self._grouped)

    def has_room(self) -> tuple[bool, bool]:
        """Return whether a worker may have room for another sync call, and for another async call.

        After `assign`, a queued call means that no worker has room for its kind. A grouped call waits for an empty worker
        while others may have room.
        """
        if self._grouped or not len(self):
            return True, True
        if self._limits.shared or self._limits.single_use:
            return False, False
        return not self._queues[False], not self._queues[True]

    def add(self, calls: Sequence[Call]) -> None:
        """Queue calls."""
        self._grouped += [call for call in calls if call.max_group]
        self._queues[False].extend([call for call in calls if not call.is_async and not call.max_group])
        self._queues[True].extend([call for call in calls if call.is_async and not call.max_group])
        self._async_seen = self._async_seen or any(call.is_async for call in calls)

    def clear(self) -> list[Call]:
        """Remove and return all queued calls."""
        removed = [*self._queues[0], *self._queues[1], *self._grouped]
        for queue in (*self._queues, self._grouped):
            queue.clear()
        return removed

    def observe(self, seconds: tuple[list[float], list[float]]) -> None:
        """Add the working times of sync and of async calls that ended."""
        for duration, observed in zip(self._durations, seconds, strict=True):
            duration.observe(observed)

    def capacity(self, workers: int) -> int:
        """Return how many calls of the submitted kind run at a time."""
        return workers * self._limits.of(self._async_seen)

    def window(self, workers: int) -> int:
        """Return how many calls the engine should hold so that workers never wait for the next submission."""
        limit = self._limits.of(self._async_seen)
        return 2 * workers * (limit + self._durations[self._async_seen].prefetch(limit))

    def assign(self, workers: Sequence[WorkerLoad]) -> list[tuple[WorkerLoad, list[Call]]]:
        """Distribute queued calls, and record them in the loads of their workers."""
        assigned: list[tuple[WorkerLoad, list[Call]]] = []
        if self._grouped:
            self._assign_grouped(workers, assigned)
        reserved = min(workers, key=lambda worker: len(worker.calls)) if self._grouped and workers else None
        for queue, is_async in zip(self._queues, (False, True), strict=True):
            if not queue:
                continue
            eligible = [worker for worker in workers if worker is not reserved and not worker.max_group]
            free = sum(max(0, self._room(worker, is_async, prefetch=False)) for worker in eligible)
            # The last calls stay in the queue for the worker that is free first.
            prefetch = len(queue) - free >= max(1, len(eligible))
            receivers = [worker for worker in eligible if self._room(worker, is_async, prefetch=prefetch) > 0]
            receivers.sort(key=lambda worker: len(worker.calls))
            for index, worker in enumerate(receivers):
                if not queue:
                    break
                share = -(-len(queue) // (len(receivers) - index))
                count = min(share, self._room(worker, is_async, prefetch=prefetch))
                _assign(worker, [queue.popleft() for _ in range(min(count, len(queue)))], assigned)
        return assigned

    def overfull(self, workers: Sequence[WorkerLoad]) -> list[WorkerLoad]:
        """Return the workers that hold more calls than they may run while another worker is free and the queue is empty."""
        if len(self) or self._limits.single_use:
            return []
        overfull: list[WorkerLoad] = []
        for is_async in (False, True):
            room = {worker: self._room(worker, is_async, prefetch=False) for worker in workers}
            if any(free > 0 and not worker.max_group for worker, free in room.items()):
                overfull += [worker for worker, free in room.items() if free < 0 and worker not in overfull]
        return overfull

    def _assign_grouped(self, workers: Sequence[WorkerLoad], assigned: list[tuple[WorkerLoad, list[Call]]]) -> None:
        for worker in workers:
            if self._grouped and not worker.calls and self._room(worker, self._grouped[0].is_async) > 0:
                size = self._grouped[0].max_group
                group = [self._grouped.popleft()]
                while self._grouped and len(group) < size and self._grouped[0].max_group >= size:
                    group.append(self._grouped.popleft())
                _assign(worker, group, assigned)

    def _room(self, worker: WorkerLoad, is_async: bool, *, prefetch: bool = True) -> int:
        if self._limits.single_use:
            return 0 if worker.used else 1
        limit = self._limits.of(is_async)
        held = sum(worker.counts) if self._limits.shared else worker.counts[is_async]
        return limit + (self._durations[is_async].prefetch(limit) if prefetch else 0) - held


def _assign(worker: WorkerLoad, calls: list[Call], assigned: list[tuple[WorkerLoad, list[Call]]]) -> None:
    if calls:
        worker.add(calls)
        assigned.append((worker, calls))


_ANSWER_BYTES = 32 << 20
"""Bytes of answers that may be in transit or wait for a caller that is slower than the workers. Sockets and pickles hold
copies, so the engine's process grows by more than that. Beyond it the workers wait."""


class AnswerSize:
    """A running mean of the size of answers, from samples."""

    def __init__(self) -> None:
        self._mean = 0.0

    def observe(self, outcome: Outcome) -> None:
        """Add the size of one answer; growth counts more than decline."""
        size = size_of(outcome.value)
        self._mean += (size - self._mean) / _SAMPLES if size < self._mean else (size - self._mean) / 2

    def limited(self, window: int, least: int) -> int:
        """Return `window`, reduced so that its answers fit into memory, but at least `least`."""
        return min(window, max(least, int(_ANSWER_BYTES / max(self._mean, 1.0))))
