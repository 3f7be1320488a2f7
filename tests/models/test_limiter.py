"""The adaptive limit of concurrent requests: properties for any history, and how well a real limit is found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.rate_limits import ENDPOINTS, Endpoint, FixedLimit, Simulation, best_fixed
from paragent._internal.clock import ManualClock
from paragent.models.rate_limit import Limiter

KNOWN = {endpoint.name: endpoint for endpoint in ENDPOINTS}


def full(limiter: Limiter) -> int:
    count = 0
    while limiter.admit():
        count += 1
    return count


def refuse(limiter: Limiter, count: int, retry_after: float | None = None) -> None:
    for _ in range(count):
        limiter.throttled(retry_after)
        limiter.leave()


def answer(limiter: Limiter, count: int, seconds: float = 1.0) -> None:
    for _ in range(count):
        limiter.leave()
        limiter.answered(seconds)


events = st.lists(
    st.tuples(
        st.sampled_from(["admit", "answer", "refuse", "close", "fail", "wait"]), st.floats(0.0, 100.0), st.booleans()
    ),
    max_size=200,
)


@given(st.integers(1, 200), events)
def test_for_any_history_the_limit_is_in_range_and_slots_are_released(
    most: int, happened: list[tuple[str, float, bool]]
) -> None:
    clock = ManualClock()
    limiter = Limiter(most, clock)
    for what, amount, many in happened:
        if what == "admit":
            full(limiter) if many else limiter.admit()
        elif what == "wait":
            clock.advance(amount)
        elif limiter.in_flight:
            if what == "answer":
                answer(limiter, 1, amount)
            elif what == "fail":
                limiter.server_error()
                limiter.leave()
            else:
                refuse(limiter, limiter.in_flight if many else 1, amount if what == "close" else None)
        assert 1 <= limiter.limit <= most
        assert 0 <= limiter.in_flight <= most
        assert 0 <= limiter.frees_in() <= 100 + 1e-9  # the clock adds floats
        assert 0 <= limiter.tolerated < 1
    answer(limiter, limiter.in_flight)
    clock.advance(limiter.frees_in() + 1.0)
    assert limiter.admit(), "when nothing is in flight, there is room for one at least"


@given(st.integers(20, 200), st.floats(0.0, 0.05), st.integers(0, 2**32))
def test_few_random_refusals_do_not_lower_the_limit(most: int, share: float, seed: int) -> None:
    clock, rng = ManualClock(), random.Random(seed)
    limiter = Limiter(most, clock)
    for _ in range(10):
        sent = full(limiter)
        refused = min(sum(rng.random() < share for _ in range(sent)), sent // 12)
        refuse(limiter, refused, 1.0)
        clock.advance(1.0)
        answer(limiter, sent - refused)
        clock.advance(1.0)
    assert limiter.limit == most
    assert limiter.opens_in() == 0, "a time that was named for one request is not one for all"


def test_many_refusals_lower_the_limit_to_the_accepted_requests() -> None:
    clock = ManualClock()
    limiter = Limiter(100, clock)
    assert full(limiter) == 100
    refuse(limiter, 90)
    assert (limiter.limit, limiter.in_flight) == (10, 10)
    assert not limiter.admit()


def test_refusals_that_a_lower_limit_does_not_avoid_are_tolerated() -> None:
    clock = ManualClock()
    limiter = Limiter(100, clock)
    limits = []
    for _ in range(30):
        sent = full(limiter)
        refuse(limiter, sent // 4)
        clock.advance(1.0)
        answer(limiter, sent - sent // 4)
        limits.append(limiter.limit)
        clock.advance(1.0)
    assert min(limits) < 100, "first it tries with fewer"
    assert limits[-1] == 100, "then it knows that this does not help"


def test_growth_is_slow_at_first_and_then_fast() -> None:
    clock = ManualClock()
    limiter = Limiter(100, clock)
    full(limiter)
    refuse(limiter, 90)
    limits: list[int] = []
    for _ in range(16):
        sent = full(limiter)
        clock.advance(2.0)
        answer(limiter, sent + 10 if not limits else sent, 2.0)
        limits.append(limiter.limit)
    first = next(index for index, limit in enumerate(limits) if limit > 10)
    assert limits[first] <= 12
    assert limits[-1] == 100


def test_many_server_errors_stop_growth_and_few_do_not() -> None:
    for failures, grows in ((0, True), (1, True), (20, False)):
        clock = ManualClock()
        limiter = Limiter(100, clock)
        full(limiter)
        refuse(limiter, 60)
        answer(limiter, 40)
        for _ in range(8):
            sent = full(limiter)
            clock.advance(1.0)
            for _ in range(failures):
                limiter.server_error()
                limiter.leave()
            answer(limiter, sent - failures)
        assert (limiter.limit > 40) is grows, failures


def test_the_slot_of_a_refused_request_stays_unused_for_a_moment() -> None:
    clock = ManualClock()
    limiter = Limiter(20, clock)
    assert full(limiter) == 20
    refuse(limiter, 1)
    assert not limiter.admit()
    assert 0 < limiter.frees_in() <= 1.0
    clock.advance(limiter.frees_in())
    assert limiter.admit()


def speed(endpoint: Endpoint, seeds: range = range(2)) -> float:
    """Return the throughput with the adaptive limit, as a fraction of that with the best fixed limit."""
    seconds = 0.0
    for seed in seeds:
        clock = ManualClock()
        seconds += Simulation(endpoint, 300, Limiter(100, clock), clock, random.Random(seed)).run()
    return best_fixed(endpoint, 300, seeds) * len(seeds) / seconds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no limit", "random 5 %", "random 5 %, Retry-After 1 s", "random 20 %"])
def test_an_endpoint_without_a_limit_is_used_fully(name: str) -> None:
    assert speed(KNOWN[name]) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("name", ["10 at once", "40 at once", "40 at once, random 5 %", "5 a second", "20 a second"])
def test_the_real_limit_of_an_endpoint_is_found(name: str) -> None:
    assert speed(KNOWN[name]) > 0.75


def test_most_requests_are_answered_by_an_endpoint_with_a_limit() -> None:
    for name in ("10 at once", "40 at once", "20 a second"):
        clock = ManualClock()
        simulation = Simulation(KNOWN[name], 600, Limiter(100, clock), clock)
        simulation.run()
        assert simulation.refusals / simulation.requests < 0.25, name
    clock = ManualClock()
    careless = Simulation(KNOWN["10 at once"], 600, FixedLimit(100, clock), clock)
    careless.run()
    assert careless.refusals / careless.requests > 0.25
