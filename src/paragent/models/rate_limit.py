"""The adaptive limit of concurrent requests to one endpoint, and its division among workers. No I/O; it takes a clock.

The limit starts at the user's setting. The *fraction* of refused requests (HTTP 429) lowers it, not a single refusal:
endpoints without a real limit refuse some requests at random, and fewer concurrent requests would not change that.

- While the fraction is tolerated, a refused request only keeps its own slot unused for a moment.
- Above that, each refusal lowers the limit to the number of requests that the endpoint has accepted and not yet answered.
  This lasts as long as two answers take. It is about what the endpoint can serve, whether it limits concurrent requests or
  requests per second.
- Then the limiter measures the remaining refusals for one round without changing the limit. They have another cause, so
  that fraction is tolerated from then on.
- Answers raise the limit again: by a twentieth in the first round, and by twice as much in each further round without
  refusals.

Server errors never lower the limit. Many of them stop its growth, because more load does not help an endpoint recover.
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

__all__ = ["Limiter", "RequestReport", "SharedLimit", "divide", "without_occupied"]


_TOLERATED = 0.1
"""The fraction of refusals that is always tolerated: an endpoint with a real limit is used fully; a tenth of requests fail."""
_NOISE_FACTOR = 1.5
"""The measured fraction of unrelated refusals is tolerated times this: fractions of single rounds vary."""
_MOST_NOISE = 0.5
"""Above this fraction, refusals are caused by load or an exhausted quota, whatever a round measures."""
_FIRST_GROWTH = 0.05
"""How much each answer raises the limit in the first round after a fall."""
_CALM = 0.03
"""The fraction of refusals, beyond the measured one, up to which growth speeds up."""
_LONGEST_COOLING = 1.0
"""Seconds for which the slot of a refused request stays unused at most."""
_SHORTEST_ROUND = 1.0
"""Seconds; where answers take milliseconds, a shorter round would have too few of them."""
_FEWEST = 20
"""Fractions are computed over at least this many outcomes,"""
_ROUNDS = 2
"""or this many rounds of answers where that is more,"""
_MEMORY = 30.0
"""and over at most this many seconds."""
_SHORTEST_TYPICAL = 0.01
_SERVED = 0.7
"""In one step the limit does not fall below this fraction of the recent throughput: answers come in waves, and little is in
flight between them."""
_FEWEST_MEASURED = 5


class _Phase(Enum):
    STEADY = "answers raise the limit; more refusals than tolerated start FALLING"
    FALLING = "the limit follows the number of accepted requests"
    MEASURING = "the limit does not change; remaining refusals are counted"


class Limiter:
    """The limit of one endpoint. Belongs to one event loop.

    Args:
        most: the user's setting, which the limit never exceeds.
        clock: returns monotonic seconds.
    """

    def __init__(self, most: int, clock: Clock = monotonic) -> None:
        self._most = most
        self._limit = float(most)
        self._clock = clock
        self._closed_until = -math.inf
        self._share: int | None = None
        self.in_flight = 0
        self._cooling: deque[float] = deque()
        """When the slots of refused requests become usable again."""
        self._recent = _Recent(clock())
        self._typical = 1.0
        """Average seconds that an answer takes."""
        self._phase = _Phase.STEADY
        self._phase_ends = math.inf
        self._fell_from = self._limit
        """The limit before the last fall."""
        self._round_answered = self._round_refused = 0
        self._noise = 0.0
        """The fraction of refusals that a lower limit did not avoid."""
        self._growth = _FIRST_GROWTH

    @property
    def limit(self) -> int:
        """How many requests may be in flight now: the assigned share if there is one, otherwise the adaptive limit."""
        return max(1, int(self._limit)) if self._share is None else self._share

    @property
    def tolerated(self) -> float:
        """The fraction of refusals that does not lower the limit."""
        return _TOLERATED + _NOISE_FACTOR * self._noise

    def set_share(self, share: int, closed: float) -> None:
        """Use a share assigned by the rate limit server, and send nothing for `closed` seconds."""
        self._share = share
        self._limit = max(1.0, float(share))  # the start value if the share is cleared
        if closed:
            self._closed_until = max(self._closed_until, self._clock() + closed)

    def clear_share(self) -> None:
        """Use the adaptive limit again."""
        self._share = None

    def resize(self, most: int) -> None:
        """Change the user's setting. A limit that the endpoint has lowered is not raised at once: answers raise it."""
        raised = self._limit >= self._most and most > self._most
        self._most = most
        self._limit = float(most) if raised else min(self._limit, float(most))

    def opens_in(self) -> float:
        """Return the seconds until requests may be sent again; usually 0."""
        return max(0.0, self._closed_until - self._clock())

    def frees_in(self) -> float:
        """Return the seconds after which `admit` may succeed without a request ending; 0 if it will not."""
        cooling = self._cooling[0] - self._clock() if self._cooling else 0.0
        return max(self.opens_in(), cooling, 0.0)

    def admit(self) -> bool:
        """Count a request as in flight if the limit allows it, and return whether it does."""
        now = self._clock()
        if self.in_flight + self._cooling_at(now) >= self.limit or self._closed_until > now:
            return False
        self.in_flight += 1
        return True

    def leave(self) -> None:
        """Count a request as ended, successfully or not."""
        self.in_flight -= 1

    def answered(self, seconds: float | None = None) -> None:
        """Record an answer, and how many seconds it took if known."""
        now = self._clock()
        if seconds is not None:
            self._typical += (seconds - self._typical) * 0.2
        self._recent.add(now, self._limit, self._typical, answered=1)
        self._round_answered += 1
        self._move_on(now)
        if self._phase is not _Phase.STEADY or self._recent.problems(self.in_flight) > self.tolerated:
            return
        self._limit = min(float(self._most), self._limit + self._growth)
        if self._round_answered >= self._limit:
            calm = self._round_fraction() <= _NOISE_FACTOR * self._noise + _CALM
            self._growth = min(1.0, self._growth * 2) if calm else _FIRST_GROWTH
            self._round_answered = self._round_refused = 0

    def throttled(self, retry_after: float | None) -> bool:
        """Record a refused request, which still counts as in flight.

        Args:
            retry_after: the seconds to wait that the endpoint named, if any.

        Returns:
            Whether the endpoint refuses most requests, so that pauses should grow. Otherwise this request may be sent
            again soon.
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
                self._share = min(self._share, int(self._limit))  # until the server assigns the next share
        elif self._cooling_at(now) < self._most:
            self._cooling.append(now + min(self._typical, _LONGEST_COOLING))
        if retry_after and above:
            self._closed_until = max(self._closed_until, now + retry_after)
        return self._recent.refusals(accepted) > max(self.tolerated, _MOST_NOISE)

    def correct_fall(self) -> None:
        """Raise the limit during a fall if more requests are in flight than it allows: it fell too far."""
        if self._phase is _Phase.FALLING:
            self._limit = max(self._limit, min(float(self.in_flight), self._fell_from))

    def server_error(self) -> None:
        """Record a server error."""
        self._recent.add(self._clock(), self._limit, self._typical, failed=1)

    @property
    def _window(self) -> float:
        """Seconds after which a change of the limit takes effect."""
        return 2 * max(self._typical, _SHORTEST_ROUND)

    def _cooling_at(self, now: float) -> int:
        """Return how many slots of refused requests are unused."""
        while self._cooling and self._cooling[0] <= now:
            self._cooling.popleft()
        return len(self._cooling)

    def _round_fraction(self) -> float:
        outcomes = self._round_answered + self._round_refused
        return self._round_refused / outcomes if outcomes else 0.0

    def _enter(self, phase: _Phase, ends: float) -> None:
        self._phase, self._phase_ends = phase, ends
        self._round_answered = self._round_refused = 0
        self._growth = _FIRST_GROWTH

    def _move_on(self, now: float) -> None:
        """Enter the next phase if the current one is over."""
        if now < max(self._phase_ends, self._closed_until):
            return
        if self._phase is _Phase.FALLING:
            self._recent.forget()
            self._enter(_Phase.MEASURING, now + max(self._typical, _SHORTEST_ROUND))
        elif self._phase is _Phase.MEASURING and self._round_answered + self._round_refused >= _FEWEST_MEASURED:
            fraction = self._round_fraction()
            if fraction < _MOST_NOISE:
                self._noise = fraction
            self._recent.forget()
            self._enter(_Phase.STEADY, math.inf)


class _Recent:
    """Counts of outcomes that decay with time and with each further outcome."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._answered = self._refused = self._failed = self._served = 0.0

    def add(
        self, now: float, limit: float, typical: float, *, answered: int = 0, refused: int = 0, failed: int = 0
    ) -> None:
        """Count outcomes."""
        since = now - self._at
        self._at = now
        fading = math.exp(-since / _MEMORY - 1 / max(_FEWEST, _ROUNDS * limit))
        self._answered = self._answered * fading + answered
        self._refused = self._refused * fading + refused
        self._failed = self._failed * fading + failed
        self._served = self._served * math.exp(-since / max(typical, _SHORTEST_TYPICAL)) + answered

    @property
    def served(self) -> float:
        """About how many answers came within the time that one takes, which is how many requests were served concurrently."""
        return self._served

    def refusals(self, accepted: float, *, doubt: float = 0.0) -> float:
        """Return the fraction of refusals.

        Args:
            accepted: the number of requests accepted and not yet answered, which count as not refused.
            doubt: subtract this many standard deviations of the count: one refusal in three requests means little.
        """
        refused = max(0.0, self._refused - doubt * math.sqrt(self._refused))
        return refused / (self._refused + self._answered + accepted) if refused else 0.0

    def problems(self, accepted: float) -> float:
        """Return the fraction of refusals and server errors."""
        bad = self._refused + self._failed
        return bad / (bad + self._answered + accepted) if bad else 0.0

    def forget(self) -> None:
        """Reset the counts, except for the throughput."""
        self._answered = self._refused = self._failed = 0.0


@dataclass(frozen=True, slots=True)
class RequestReport:
    """The report of a worker: its state, and what happened since its last report."""

    in_flight: int = 0
    wanted: int = 0
    """Requests in flight or waiting."""
    answered: int = 0
    refused: int = 0
    """Requests refused with HTTP 429."""
    retry_after: float = 0.0
    """The longest `Retry-After`, in seconds."""
    server_errors: int = 0
    """Requests that failed with a server error."""
    seconds: float = 0.0
    """The total time that the answers took."""
    policy: int = 0
    """The number of the `PolicyState` that the worker obeys."""

    @property
    def has_events(self) -> bool:
        """Whether something happened. Such a report must be sent even if it equals the previous one."""
        return bool(self.answered or self.refused or self.server_errors)


class SharedLimit:
    """The limit of one endpoint, shared by all workers of a run. It is 1 until the first answer. Not thread-safe."""

    def __init__(self, most: int, clock: Clock = monotonic) -> None:
        self._limiter = Limiter(most, clock)
        self.answered = False
        """Whether the endpoint has answered a request."""
        self._reports: dict[str, RequestReport] = {}
        self._most: dict[str, int] = {}
        """How many requests each worker can use."""
        self._resized: int | None = None
        """The limit that was set by `resize`. How many rollouts a worker then executes is not known in advance."""
        self._turn = 0

    @property
    def pressure(self) -> tuple[int, int]:
        """How many requests are in flight, and how many may be."""
        return sum(report.in_flight for report in self._reports.values()), self._limit

    @property
    def _limit(self) -> int:
        return self._limiter.limit if self.answered else 1

    def join(self, worker: str, most: int) -> None:
        """Add a worker that can use at most `most` concurrent requests."""
        self._most[worker] = self._resized or most
        self._reports[worker] = RequestReport()

    def resize(self, most: int) -> None:
        """Change how many requests may be in flight; from now on, each worker can use as many as all together."""
        self._limiter.resize(most)
        self._resized = most
        self._most = dict.fromkeys(self._most, most)

    def leave(self, worker: str) -> None:
        """Remove a worker; its share goes to the others."""
        self._most.pop(worker, None)
        self._reports.pop(worker, None)

    def report(self, worker: str, report: RequestReport) -> None:
        """Process the report of a worker."""
        self._reports[worker] = report
        self.answered = self.answered or report.answered > 0
        limiter = self._limiter
        limiter.in_flight = self.pressure[0]
        for _ in range(report.answered):
            limiter.answered(report.seconds / report.answered)
        limiter.in_flight += report.refused  # the limiter expects refused requests to be in flight still
        for _ in range(report.refused):
            limiter.throttled(report.retry_after or None)
            limiter.leave()
        for _ in range(report.server_errors):
            limiter.server_error()
        limiter.correct_fall()  # reports come one after the other, so those that caused a fall may be outdated

    def opens_in(self) -> float:
        """Return the seconds until requests may be sent again."""
        return self._limiter.opens_in()

    def shares(self) -> dict[str, int]:
        """Return how many requests each worker may have in flight."""
        workers = sorted(self._most)
        start = self._turn % max(1, len(workers))
        order = workers[start:] + workers[:start]
        wanted = {worker: min(self._reports[worker].wanted, self._most[worker]) for worker in order}
        shares = divide(self._limit, wanted, self._most)
        return without_occupied(shares, {worker: self._reports[worker].in_flight for worker in order})

    def rotate(self) -> None:
        """Change which workers get the remainder that cannot be divided evenly."""
        self._turn += 1


def without_occupied(shares: Mapping[str, int], in_flight: Mapping[str, int]) -> dict[str, int]:
    """Return the shares minus the slots that other workers still occupy by having more in flight than their share.

    A slot that is assigned to another worker before it is free only leads to a refusal.
    """
    occupied = sum(max(0, in_flight[worker] - share) for worker, share in shares.items())
    left = dict(shares)
    for worker, share in shares.items():
        held_back = min(occupied, max(0, share - in_flight[worker]))
        left[worker] -= held_back
        occupied -= held_back
    return left


def divide(limit: int, wanted: Mapping[str, int], most: Mapping[str, int]) -> dict[str, int]:
    """Divide `limit` evenly among the workers with demand, at most their demand; divide the rest as reserve.

    Args:
        limit: the sum of all shares is at most this.
        wanted: the demand of each worker.
        most: the maximum share of each worker.
    """
    shares = dict.fromkeys(wanted, 0)
    left = limit
    for target in (wanted, most):
        unsatisfied = [worker for worker in shares if shares[worker] < target[worker]]
        while left > 0 and unsatisfied:
            each = max(1, left // len(unsatisfied))
            for worker in unsatisfied:
                more = min(each, target[worker] - shares[worker], left)
                shares[worker] += more
                left -= more
            unsatisfied = [worker for worker in unsatisfied if shares[worker] < target[worker]]
    return shares
