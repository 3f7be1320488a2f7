"""Who gets which call: a decision without I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from paragent.serialization import size_of
from paragent.tasks import Ending

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paragent.engines.base import Call
    from paragent.tasks import Outcome

__all__ = ["Dispatch", "Limits", "Pace", "Seat", "Weight"]


_HORIZON = 0.02
"""Seconds of work that a worker may hold in reserve: a round trip is well under a millisecond, so this hides it many times
over; more would only keep work from workers that are idle."""
_WORTH_A_RESERVE = 0.1
"""Seconds: a worker whose calls take longer need not hold the next one. The way there and back, which it would wait for, takes
about a millisecond, and more where the cores are busy; for a call that takes longer than this that is less than 1 %."""
_MOST_AHEAD = 1024
_MEMORY = 20
"""How many calls the running mean remembers, roughly."""


class Pace:
    """A running mean of the seconds that calls take."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def observe(self, seen: Sequence[float]) -> None:
        """Take in the working times of calls that ended."""
        if not seen:
            return
        mean = sum(seen) / len(seen)
        if self._mean is None:
            self._mean = mean
        else:
            self._mean += (mean - self._mean) * len(seen) / (len(seen) + _MEMORY)

    def ahead(self, limit: int) -> int:
        """Return how many calls beyond its `limit` a worker should hold; none until something is known."""
        if self._mean is None or self._mean > _WORTH_A_RESERVE:
            return 0
        return max(1, min(_MOST_AHEAD, int(limit * _HORIZON / max(self._mean, 1e-6))))

    @staticmethod
    def most(limit: int) -> int:
        """Return the most calls that a worker with this limit can ever hold."""
        return limit + _MOST_AHEAD


class Limits(NamedTuple):
    """How many calls one worker runs at a time."""

    sync: int
    asynchronous: int
    shared: bool
    """One limit (both numbers are the same) for both kinds together."""
    once: bool = False
    """A worker is given a single call in its life."""

    def of(self, is_async: bool) -> int:
        """Return the limit for one kind of call."""
        return self.asynchronous if is_async else self.sync


class Seat:
    """What the dispatch knows of one worker."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        """What the worker holds, by number."""
        self.counts = [0, 0]
        """How many of these are sync and async."""
        self.company = 0
        """The smallest company that one of its calls asks for; 0: none does."""
        self.used = False
        """It was given something at some time."""

    def add(self, calls: Iterable[Call]) -> None:
        """Note that the worker was given `calls`."""
        self.used = True
        held, counts = self.calls, self.counts
        for call in calls:
            held[call.number] = call
            counts[call.is_async] += 1
            if call.company:
                self.company = min(self.company or call.company, call.company)

    def remove_ended(self, outcomes: Sequence[Outcome]) -> tuple[list[float], list[float]]:
        """Note that calls have left the worker; return the working times of the sync and of the async ones that worked."""
        seconds: tuple[list[float], list[float]] = ([], [])
        calls, counts = self.calls, self.counts
        for outcome in outcomes:
            is_async = calls.pop(outcome.number).is_async
            counts[is_async] -= 1
            if outcome.ending is not Ending.DISPLACED:
                seconds[is_async].append(outcome.seconds)
        if not calls:
            self.company = 0
        return seconds


class Dispatch:
    """Keeps the calls that wait and shares them out among seats.

    Calls of one kind go out in the order in which they came. A seat holds its limit and a little more, as `Pace` says.
    Calls that ask for small company wait for a seat to be empty and then have it to themselves.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: tuple[deque[Call], deque[Call]] = (deque(), deque())
        self._guarded: deque[Call] = deque()
        self._paces = (Pace(), Pace())
        self._async_seen = False

    def __len__(self) -> int:
        return len(self._waiting[0]) + len(self._waiting[1]) + len(self._guarded)

    def add(self, calls: Sequence[Call]) -> None:
        """Take in calls that wait for a seat."""
        for call in calls:
            if call.company:
                self._guarded.append(call)
            else:
                self._waiting[call.is_async].append(call)
            self._async_seen = self._async_seen or call.is_async

    def clear(self) -> list[Call]:
        """Give up, and return, everything that waits."""
        given_up = [*self._waiting[0], *self._waiting[1], *self._guarded]
        for queue in (*self._waiting, self._guarded):
            queue.clear()
        return given_up

    def observe(self, seconds: tuple[list[float], list[float]]) -> None:
        """Learn from the working times of sync and of async calls that ended how long their kind takes."""
        for pace, seen in zip(self._paces, seconds, strict=True):
            pace.observe(seen)

    def capacity(self, workers: int) -> int:
        """Return how many calls of the kind that was seen run at a time."""
        return workers * self._limits.of(self._async_seen)

    def window(self, workers: int) -> int:
        """Return how many calls the engine should hold so that no worker ever waits for the driver."""
        limit = self._limits.of(self._async_seen)
        return 2 * workers * (limit + self._paces[self._async_seen].ahead(limit))

    def assign(self, seats: Sequence[Seat]) -> list[tuple[Seat, list[Call]]]:
        """Share out what waits, and note it on the seats."""
        given: list[tuple[Seat, list[Call]]] = []
        if self._guarded:
            self._assign_guarded(seats, given)
        reserved = min(seats, key=lambda seat: len(seat.calls)) if self._guarded and seats else None
        for queue, is_async in zip(self._waiting, (False, True), strict=True):
            eligible = [seat for seat in seats if seat is not reserved and not seat.company]
            hands = sum(max(0, self._room(seat, is_async, ahead=False)) for seat in eligible)
            ahead = len(queue) - hands >= max(1, len(eligible))  # the last ones wait here for whoever is free first
            open_to = [seat for seat in eligible if self._room(seat, is_async, ahead=ahead) > 0]
            open_to.sort(key=lambda seat: len(seat.calls))
            for index, seat in enumerate(open_to):
                if not queue:
                    break
                share = -(-len(queue) // (len(open_to) - index))
                count = min(share, self._room(seat, is_async, ahead=ahead))
                self._give(seat, [queue.popleft() for _ in range(min(count, len(queue)))], given)
        return given

    def overfull(self, seats: Sequence[Seat]) -> list[Seat]:
        """Return the seats that hold more than their limit while another one has hands free and nothing waits."""
        if len(self) or self._limits.once:
            return []
        over: list[Seat] = []
        for is_async in (False, True):
            hands = {seat: self._room(seat, is_async, ahead=False) for seat in seats}
            if any(free > 0 and not seat.company for seat, free in hands.items()):
                over += [seat for seat, free in hands.items() if free < 0 and seat not in over]
        return over

    def _assign_guarded(self, seats: Sequence[Seat], given: list[tuple[Seat, list[Call]]]) -> None:
        for seat in seats:
            if self._guarded and not seat.calls and self._room(seat, self._guarded[0].is_async) > 0:
                company = self._guarded[0].company
                group = [self._guarded.popleft()]
                while self._guarded and len(group) < company and self._guarded[0].company >= company:
                    group.append(self._guarded.popleft())
                self._give(seat, group, given)

    def _room(self, seat: Seat, is_async: bool, *, ahead: bool = True) -> int:
        if self._limits.once:
            return 0 if seat.used else 1
        limit = self._limits.of(is_async)
        held = sum(seat.counts) if self._limits.shared else seat.counts[is_async]
        return limit + (self._paces[is_async].ahead(limit) if ahead else 0) - held

    @staticmethod
    def _give(seat: Seat, calls: list[Call], given: list[tuple[Seat, list[Call]]]) -> None:
        if calls:
            seat.add(calls)
            given.append((seat, calls))


_BUDGET = 32 << 20
"""Bytes of answers that may be on their way or wait for a caller who is slower than the workers: with the copies that sockets
and pickles hold, a driver grows by more than that. Beyond it the workers wait."""
"""How many answers the running mean remembers, roughly."""


class Weight:
    """A running mean of the size of answers, from samples."""

    def __init__(self) -> None:
        self._mean = 0.0

    def observe(self, outcome: Outcome) -> None:
        """Take in the size of one answer."""
        size = size_of(outcome.value)
        self._mean += (size - self._mean) / _MEMORY if size < self._mean else (size - self._mean) / 2

    def allows(self, window: int, least: int) -> int:
        """Return how much of `window` the budget allows, and at least `least`."""
        return min(window, max(least, int(_BUDGET / max(self._mean, 1.0))))
