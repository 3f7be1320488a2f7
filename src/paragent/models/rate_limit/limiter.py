"""How many requests an endpoint gets at a time. No I/O; it takes a clock.

The number starts at what the user asked for. What lowers it is the *share* of refused requests ("too many requests"), not a
single refusal: endpoints without any real limit refuse some at random, and fewer requests at a time would not change that.

- While the share is below what is tolerated, a refusal only keeps its own place free for a moment.
- Above, the number falls with each refusal to what the endpoint has accepted and not yet answered, for as long as two answers
  take: that is about what it can serve, whether its limit is one of concurrent requests or of requests a second.
- Then follows a round without decisions, which measures how many refusals remain. They have another cause, so that many are
  tolerated from then on.
- Answers let the number grow again: by a twentieth in the first round, by twice as much in each further one without trouble.

Server errors never lower it; many of them stop its growth, for more load does not help an endpoint recover.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from paragent._internal.clock import Clock, monotonic

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Limiter", "RequestReport", "SharedLimit", "divide", "withheld"]


_TOLERATED = 0.1
"""The share of refusals that lowers nothing. With a real limit it means a tenth of requests in vain, and full use of it."""
_NOISE_FACTOR = 1.5
"""How many times the measured share of other refusals is tolerated beside that: shares of single rounds vary."""
_MOST_NOISE = 0.5
"""Above this share refusals have to do with load or a closed quota, whatever a round seems to show."""
_FIRST_PACE = 0.05
_CALM = 0.03
"""The share of refusals, beyond the measured one, up to which growth speeds up."""
_LONGEST_COOLING = 1.0
_SHORTEST_ROUND = 1.0
"""Seconds; less would be too few answers to judge by where they come within milliseconds."""
_FEWEST = 20
"""Outcomes over which shares are computed at least."""
_ROUNDS = 2
"""Rounds of answers over which shares are computed where that is more."""
_MEMORY = 30.0
"""Seconds over which they are computed at most."""
_SHORTEST_TYPICAL = 0.01
_SERVED = 0.7
"""The part of what was served lately that the number does not fall below in one step: answers come in waves, between which
little is in flight."""
_FEWEST_MEASURED = 5


class _Phase(Enum):
    STEADY = "grows with answers; refusals above what is tolerated begin a fall"
    FALLING = "follows what the endpoint has accepted"
    MEASURING = "changes nothing, and counts the refusals that remain"


class Limiter:
    """Decides for one endpoint. Belongs to one event loop."""

    def __init__(self, most: int, clock: Clock = monotonic) -> None:
        self._most = most
        self._limit = float(most)
        self._clock = clock
        self._closed_until = -math.inf
        self._share: int | None = None
        self.in_flight = 0
        self._cooling: deque[float] = deque()
        """When the places of refused requests become free again."""
        self._recent = _Recent(clock())
        self._typical = 1.0
        """Seconds that an answer takes."""
        self._phase = _Phase.STEADY
        self._phase_ends = math.inf
        self._fell_from = self._limit
        """The number before the last fall."""
        self._round_answered = self._round_refused = 0
        self._noise = 0.0
        """The share of refusals that fewer requests at a time did not avoid."""
        self._pace = _FIRST_PACE

    @property
    def limit(self) -> int:
        """How many requests may be in flight now: what was found out here or, in company, this one's share."""
        return max(1, int(self._limit)) if self._share is None else self._share

    @property
    def tolerated(self) -> float:
        """The share of refusals that lowers nothing."""
        return _TOLERATED + _NOISE_FACTOR * self._noise

    def follow(self, share: int, closed: float) -> None:
        """Use what is decided for all workers: how many requests, and for how long none at all."""
        self._share = share
        self._limit = max(1.0, float(share))  # where to go on from if nobody decides any more
        if closed:
            self._closed_until = max(self._closed_until, self._clock() + closed)

    def decide_alone(self) -> None:
        """Use what is found out here, from now on."""
        self._share = None

    def opens_in(self) -> float:
        """Return the seconds until the endpoint wants to hear from anybody again; 0 most of the time."""
        return max(0.0, self._closed_until - self._clock())

    def frees_in(self) -> float:
        """Return the seconds after which `admit` may succeed although no request has ended; 0: not by itself."""
        cooling = self._cooling[0] - self._clock() if self._cooling else 0.0
        return max(self.opens_in(), cooling, 0.0)

    def admit(self) -> bool:
        """Count a request as in flight if there is room for it, and return whether there was."""
        now = self._clock()
        if self.in_flight + self._cooling_at(now) >= self.limit or self._closed_until > now:
            return False
        self.in_flight += 1
        return True

    def leave(self) -> None:
        """Count a request as ended, whatever way."""
        self.in_flight -= 1

    def answered(self, seconds: float | None = None) -> None:
        """The endpoint answered, after so many seconds where that is known."""
        now = self._clock()
        if seconds is not None:
            self._typical += (seconds - self._typical) * 0.2
        self._recent.add(now, self._limit, self._typical, answered=1)
        self._round_answered += 1
        self._move_on(now)
        if self._phase is not _Phase.STEADY or self._recent.trouble(self.in_flight) > self.tolerated:
            return
        self._limit = min(float(self._most), self._limit + self._pace)
        if self._round_answered >= self._limit:
            calm = self._round_share() <= _NOISE_FACTOR * self._noise + _CALM
            self._pace = min(1.0, self._pace * 2) if calm else _FIRST_PACE
            self._round_answered = self._round_refused = 0

    def throttled(self, retry_after: float | None) -> bool:
        """The endpoint refused a request, which still counts as in flight, and named a time to wait, or not.

        Returns whether it refuses most requests, so that pauses should grow; else this one may be made again soon.
        """
        now = self._clock()
        self._recent.add(now, self._limit, self._typical, refused=1)
        self._round_refused += 1
        self._move_on(now)
        accepted = max(0.0, self.in_flight - 1.0)
        above = self._recent.refusals(accepted) > self.tolerated
        if self._phase is _Phase.STEADY and self._recent.refusals(accepted, doubt=1.0) > self.tolerated:
            self._fell_from = self._limit
            self._enter(_Phase.FALLING, now + self._window)
        if self._phase is _Phase.FALLING:
            self._limit = max(1.0, min(self._limit, max(accepted, _SERVED * self._recent.served)))
            self._cooling.clear()
            if self._share is not None:
                self._share = min(self._share, int(self._limit))  # until the next word from whoever decides for all
        elif self._cooling_at(now) < self._most:
            self._cooling.append(now + min(self._typical, _LONGEST_COOLING))
        if retry_after and above:
            self._closed_until = max(self._closed_until, now + retry_after)
        return self._recent.refusals(accepted) > max(self.tolerated, _MOST_NOISE)

    def seen_in_flight(self) -> None:
        """`in_flight` was counted anew. More than the number fell to was accepted, so it fell too far."""
        if self._phase is _Phase.FALLING:
            self._limit = max(self._limit, min(float(self.in_flight), self._fell_from))

    def troubled(self) -> None:
        """The endpoint failed by its own fault."""
        self._recent.add(self._clock(), self._limit, self._typical, failed=1)

    @property
    def _window(self) -> float:
        """Seconds after which a change has its effect."""
        return 2 * max(self._typical, _SHORTEST_ROUND)

    def _cooling_at(self, now: float) -> int:
        """Return how many places of refused requests are kept free."""
        while self._cooling and self._cooling[0] <= now:
            self._cooling.popleft()
        return len(self._cooling)

    def _round_share(self) -> float:
        outcomes = self._round_answered + self._round_refused
        return self._round_refused / outcomes if outcomes else 0.0

    def _enter(self, phase: _Phase, ends: float) -> None:
        self._phase, self._phase_ends = phase, ends
        self._round_answered = self._round_refused = 0
        self._pace = _FIRST_PACE

    def _move_on(self, now: float) -> None:
        """Go to the next phase if this one is over."""
        if now < max(self._phase_ends, self._closed_until):
            return
        if self._phase is _Phase.FALLING:
            self._recent.forget()
            self._enter(_Phase.MEASURING, now + max(self._typical, _SHORTEST_ROUND))
        elif self._phase is _Phase.MEASURING and self._round_answered + self._round_refused >= _FEWEST_MEASURED:
            share = self._round_share()
            if share < _MOST_NOISE:
                self._noise = share
            self._recent.forget()
            self._enter(_Phase.STEADY, math.inf)


class _Recent:
    """Counts of outcomes that fade, with time and with each further outcome."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._answered = self._refused = self._failed = self._served = 0.0

    def add(
        self, now: float, limit: float, typical: float, *, answered: int = 0, refused: int = 0, failed: int = 0
    ) -> None:
        """Count an outcome."""
        since = now - self._at
        self._at = now
        fading = math.exp(-since / _MEMORY - 1 / max(_FEWEST, _ROUNDS * limit))
        self._answered = self._answered * fading + answered
        self._refused = self._refused * fading + refused
        self._failed = self._failed * fading + failed
        self._served = self._served * math.exp(-since / max(typical, _SHORTEST_TYPICAL)) + answered

    @property
    def served(self) -> float:
        """About how many answers came within the time that one takes: as many requests were served at the same time."""
        return self._served

    def refusals(self, accepted: float, *, doubt: float = 0.0) -> float:
        """Return the share of refusals; requests that are `accepted` and not yet answered count as not refused.

        Args:
            accepted: how many.
            doubt: how many standard deviations of the count to leave out: one refusal among three requests says little.
        """
        refused = max(0.0, self._refused - doubt * math.sqrt(self._refused))
        return refused / (self._refused + self._answered + accepted) if refused else 0.0

    def trouble(self, accepted: float) -> float:
        """Return the share of refusals and errors."""
        bad = self._refused + self._failed
        return bad / (bad + self._answered + accepted) if bad else 0.0

    def forget(self) -> None:
        """Begin anew, except for what was served."""
        self._answered = self._refused = self._failed = 0.0


@dataclass(frozen=True, slots=True)
class RequestReport:
    """What a worker tells: its state, and what happened since its last report."""

    in_flight: int = 0
    wanted: int = 0
    """Requests in flight, and those that wait to be."""
    answered: int = 0
    refused: int = 0
    """Answers that asked for fewer requests."""
    retry_after: float = 0.0
    """The longest time for which the endpoint asked to hear nothing."""
    troubled: int = 0
    """Errors of the endpoint's own."""
    seconds: float = 0.0
    """How long the answers took, together."""

    @property
    def has_events(self) -> bool:
        """Whether something happened: an equal report then says that it happened again."""
        return bool(self.answered or self.refused or self.troubled)


class SharedLimit:
    """One endpoint's limit, over all workers. Belongs to one thread."""

    def __init__(self, most: int, clock: Clock = monotonic) -> None:
        self._limiter = Limiter(most, clock)
        self._reports: dict[str, RequestReport] = {}
        self._most: dict[str, int] = {}
        self._turn = 0

    @property
    def pressure(self) -> tuple[int, int]:
        """How many requests are in flight, and how many may be."""
        return sum(report.in_flight for report in self._reports.values()), self._limiter.limit

    def join(self, worker: str, most: int) -> None:
        """A worker takes part that can use `most` requests at a time."""
        self._most[worker] = most
        self._reports[worker] = RequestReport()

    def leave(self, worker: str) -> None:
        """A worker is gone; others may have its share."""
        self._most.pop(worker, None)
        self._reports.pop(worker, None)

    def report(self, worker: str, report: RequestReport) -> None:
        """Take in what a worker tells."""
        self._reports[worker] = report
        limiter = self._limiter
        limiter.in_flight = self.pressure[0]
        for _ in range(report.answered):
            limiter.answered(report.seconds / report.answered)
        limiter.in_flight += report.refused  # the limiter hears of a refusal before the request leaves
        for _ in range(report.refused):
            limiter.throttled(report.retry_after or None)
            limiter.leave()
        for _ in range(report.troubled):
            limiter.troubled()
        limiter.seen_in_flight()  # reports of workers come one after the other: those of a fall may have been old

    def opens_in(self) -> float:
        """Return the seconds until the endpoint wants to hear from anybody again."""
        return self._limiter.opens_in()

    def shares(self) -> dict[str, int]:
        """Return how many requests each worker may have in flight now."""
        workers = sorted(self._most)
        start = self._turn % max(1, len(workers))
        order = workers[start:] + workers[:start]
        wanted = {worker: min(self._reports[worker].wanted, self._most[worker]) for worker in order}
        shares = divide(self._limiter.limit, wanted, self._most)
        return withheld(shares, {worker: self._reports[worker].in_flight for worker in order})

    def rotate(self) -> None:
        """Let what cannot be divided evenly go to others from now on."""
        self._turn += 1


def withheld(shares: Mapping[str, int], in_flight: Mapping[str, int]) -> dict[str, int]:
    """Return shares without the places that other workers still occupy: they have more in flight than their share.

    A place that is given to somebody else before it is free only leads to a refusal.
    """
    occupied = sum(max(0, in_flight[worker] - share) for worker, share in shares.items())
    left = dict(shares)
    for worker, share in shares.items():
        held_back = min(occupied, max(0, share - in_flight[worker]))
        left[worker] -= held_back
        occupied -= held_back
    return left


def divide(limit: int, wanted: Mapping[str, int], most: Mapping[str, int]) -> dict[str, int]:
    """Divide `limit`: first to those who want, each as much as the others or all that it wants; the rest to be ready with.

    The sum is never more than `limit`, and no share is more than `most` of it.
    """
    shares = dict.fromkeys(wanted, 0)
    left = limit
    for wish in (wanted, most):
        hungry = [worker for worker in shares if shares[worker] < wish[worker]]
        while left > 0 and hungry:
            each = max(1, left // len(hungry))
            for worker in hungry:
                more = min(each, wish[worker] - shares[worker], left)
                shares[worker] += more
                left -= more
            hungry = [worker for worker in hungry if shares[worker] < wish[worker]]
    return shares
