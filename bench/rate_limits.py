"""The adaptive limit of concurrent requests, compared with the best fixed limit in a simulation with simulated time.

The simulation uses the client's `Limiter` and `Backoff`. An endpoint limits concurrent requests, or requests per second with a
burst (a token bucket), or refuses requests at random; some send `Retry-After`. The best fixed limit is found by trying all of
them, which a client cannot do.
"""

from __future__ import annotations

import heapq
import itertools
import random
import re
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from bench.measure import Contender, Measurement, Target
from paragent._internal.clock import ManualClock
from paragent.models.rate_limit import Limiter
from paragent.models.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.measure import Run

__all__ = ["ENDPOINTS", "MEASUREMENTS", "Endpoint", "FixedLimit", "Simulation", "best_fixed"]

_ROLLOUTS = 100
"""Rollouts at the same time, which is also the limit that the client begins with."""
_TURNS = 3
"""Requests of each rollout."""
_REFUSAL_SECONDS = 0.05
_FIXED = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64, 80, 100)
_LONGEST = 3600.0
"""Simulated seconds after which a simulation ends without a result."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How an endpoint answers."""

    name: str
    latency: float = 2.0
    """Mean seconds of an answer."""
    steady: bool = False
    """Whether all answers take equally long; otherwise from half to twice the mean."""
    most_at_once: int = 0
    """Requests in flight above which it refuses; 0: no limit."""
    rate: float = 0.0
    """Requests per second that it accepts in the long run; 0: no limit."""
    burst: int = 1
    refused: float = 0.0
    """The fraction of requests that it refuses at random."""
    retry_after: float | None = None


ENDPOINTS = (
    Endpoint("no limit"),
    Endpoint("random 1 %", refused=0.01),
    Endpoint("random 5 %", refused=0.05),
    Endpoint("random 5 %, Retry-After 1 s", refused=0.05, retry_after=1.0),
    Endpoint("random 5 %, answers in 0.2 s", refused=0.05, latency=0.2),
    Endpoint("random 20 %", refused=0.2),
    Endpoint("10 at once", most_at_once=10),
    Endpoint("10 at once, answers in 0.2 s", most_at_once=10, latency=0.2),
    Endpoint("10 at once, answers in 10 s", most_at_once=10, latency=10.0),
    Endpoint("40 at once", most_at_once=40),
    Endpoint("40 at once, Retry-After 1 s", most_at_once=40, retry_after=1.0),
    Endpoint("40 at once, random 5 %", most_at_once=40, refused=0.05),
    Endpoint("30 at once, all answers in 2 s", most_at_once=30, steady=True),
    Endpoint("5 a second", rate=5.0, burst=5),
    Endpoint("20 a second", rate=20.0, burst=20),
    Endpoint("20 a second, Retry-After 1 s", rate=20.0, burst=20, retry_after=1.0),
    Endpoint("20 a second, answers in 0.2 s", rate=20.0, burst=20, latency=0.2),
    Endpoint("600 a minute in one burst", rate=10.0, burst=600),
)


class FixedLimit(Limiter):
    """A limit that does not adapt."""

    def throttled(self, retry_after: float | None) -> bool:
        """Do nothing; pauses stay short."""
        return False


def best_fixed(endpoint: Endpoint, tasks: int, seeds: range) -> float:
    """Return the seconds that a run takes with the best fixed limit, as a mean over runs with these seeds."""
    runs = (
        sum(_seconds(endpoint, tasks, seed, partial(FixedLimit, limit)) for seed in seeds) / len(seeds)
        for limit in _FIXED
    )
    return min(runs)


def _seconds(endpoint: Endpoint, tasks: int, seed: int, limiter: Callable[[ManualClock], Limiter]) -> float:
    clock = ManualClock()
    return Simulation(endpoint, tasks, limiter(clock), clock, random.Random(seed)).run()


@dataclass(slots=True)
class Simulation:
    """A run of rollouts against an endpoint, in simulated time."""

    endpoint: Endpoint
    tasks: int
    limiter: Limiter
    clock: ManualClock
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    requests: int = 0
    refusals: int = 0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _queue: deque[Callable[[], None]] = field(default_factory=deque)
    _wakes: float = -1.0
    """The time of the next scheduled check of the queue."""
    _at_endpoint: int = 0
    _tokens: float = 0.0
    _filled: float = 0.0
    _begun: int = 0
    _done: int = 0

    def run(self) -> float:
        """Return the seconds until all tasks are done."""
        self._tokens = float(self.endpoint.burst)
        for _ in range(min(_ROLLOUTS, self.tasks)):
            self._begin()
        while self._done < self.tasks and self._events:
            at, _, happen = heapq.heappop(self._events)
            if at > _LONGEST:
                break
            self.clock.advance(max(0.0, at - self.clock.now))
            happen()
        return self.clock.now if self._done == self.tasks else _LONGEST

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.clock.now + seconds, next(self._numbers), happen))

    def _begin(self) -> None:
        if self._begun < self.tasks:
            self._begun += 1
            self._ask(_TURNS, Backoff(3, self.rng))

    def _ask(self, turns: int, backoff: Backoff) -> None:
        self._queue.append(lambda: self._send(turns, backoff))
        self._admit()

    def _admit(self) -> None:
        while self._queue and self.limiter.admit():
            self._queue.popleft()()
        wait = self.limiter.frees_in()
        if self._queue and wait > 0 and not self.clock.now < self._wakes <= self.clock.now + wait:
            self._wakes = self.clock.now + wait
            self._after(wait, self._admit)

    def _send(self, turns: int, backoff: Backoff) -> None:
        self.requests += 1
        sent = self.clock.now
        if self._accepts():
            self._at_endpoint += 1
            spread = 1.0 if self.endpoint.steady else self.rng.choice((0.5, 0.75, 1.0, 1.25, 2.0)) / 1.1
            seconds = self.endpoint.latency * spread
            self._after(seconds, lambda: self._answered(turns, sent))
        else:
            self._after(_REFUSAL_SECONDS, lambda: self._refused(turns, backoff))

    def _accepts(self) -> bool:
        endpoint, now = self.endpoint, self.clock.now
        if endpoint.refused and self.rng.random() < endpoint.refused:
            return False
        if endpoint.most_at_once and self._at_endpoint >= endpoint.most_at_once:
            return False
        if endpoint.rate:
            self._tokens = min(float(endpoint.burst), self._tokens + (now - self._filled) * endpoint.rate)
            self._filled = now
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
        return True

    def _answered(self, turns: int, sent: float) -> None:
        self._at_endpoint -= 1
        self.limiter.leave()
        self.limiter.answered(self.clock.now - sent)
        if turns > 1:
            self._ask(turns - 1, Backoff(3, self.rng))
        else:
            self._done += 1
            self._begin()
        self._admit()

    def _refused(self, turns: int, backoff: Backoff) -> None:
        self.refusals += 1
        general = self.limiter.throttled(self.endpoint.retry_after)
        self.limiter.leave()
        pause = backoff.after_refusal(self.endpoint.retry_after, general=general)
        if pause is not None:
            self._after(pause, lambda: self._ask(turns, backoff))
        self._admit()


def _measurement(endpoint: Endpoint) -> Measurement:
    @contextmanager
    def found(size: int) -> Iterator[Run]:
        seeds = itertools.count()
        yield lambda: size / _seconds(endpoint, size, next(seeds), partial(Limiter, _ROLLOUTS))

    @contextmanager
    def fixed(size: int) -> Iterator[Run]:
        seeds = itertools.count()
        yield lambda: size / best_fixed(endpoint, size, range(seed := next(seeds), seed + 1))

    return Measurement(
        "limit-" + re.sub(r"[^a-z0-9.]+", "-", endpoint.name.lower().replace(" %", "pc")),
        f"How fast are rollouts with the adaptive limit, at an endpoint with: {endpoint.name}?",
        "rollouts/s",
        600,
        200,
        (Contender("paragent", found), Contender("best fixed limit", fixed)),
        (Target("at least", 0.85, "best fixed limit"),),
        warm_up=False,
        title=endpoint.name[0].upper() + endpoint.name[1:],
    )


MEASUREMENTS = tuple(map(_measurement, ENDPOINTS))
