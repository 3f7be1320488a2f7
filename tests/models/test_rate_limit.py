"""The rate limit shared by all workers: division, client and server, and a run of several processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent import RolloutConfig, run_parallel_rollout
from paragent._internal.clock import Clock, ManualClock
from paragent.models import ModelSettings, open_model
from paragent.models.base import RateLimitAddress
from paragent.models.rate_limit import Limiter, RequestReport, SharedLimit, divide, without_occupied
from paragent.models.rate_limit_client import RateLimitClient
from paragent.models.rate_limit_server import RateLimitServer
from paragent.rollout.live_status import RolloutProgress
from paragent.testing import Fault, OpenAIServer, Script
from tests.waiting import wait_until

ASK = [{"role": "user", "content": "what is it?"}]


@given(st.integers(1, 300), st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=1, max_size=8))
def test_shares_are_fair_and_within_the_limit(limit: int, wishes: list[tuple[int, int]]) -> None:
    most = {str(index): bound for index, (_, bound) in enumerate(wishes)}
    wanted = {str(index): min(wish, bound) for index, (wish, bound) in enumerate(wishes)}
    shares = divide(limit, wanted, most)
    assert sum(shares.values()) == min(limit, sum(most.values())), "nothing is left over that somebody could use"
    assert all(share <= most[worker] for worker, share in shares.items())
    short = [worker for worker in shares if shares[worker] < wanted[worker]]
    for worker in short:
        richest = max(min(shares[other], wanted[other]) for other in shares)
        assert richest - shares[worker] <= 1, "nobody who wants gets two more than another who wants"
        assert all(shares[other] <= wanted[other] for other in shares), "nobody has spare ones while another lacks some"


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_occupied_slots_are_not_assigned(known: dict[str, tuple[int, int]]) -> None:
    shares, in_flight = ({worker: pair[n] for worker, pair in known.items()} for n in (0, 1))
    given_out = without_occupied(shares, in_flight)
    assert all(min(in_flight[worker], shares[worker]) <= given_out[worker] <= shares[worker] for worker in shares)
    possible = sum(max(given_out[worker], in_flight[worker]) for worker in shares)
    assert possible <= max(sum(shares.values()), sum(in_flight.values()))
    if sum(in_flight.values()) <= sum(shares.values()):
        assert possible == sum(shares.values()), "and none is held back for nothing"


def answered_limit(most: int, clock: Clock) -> SharedLimit:
    """Return the limit of an endpoint that has answered, which is not held at 1."""
    shared = SharedLimit(most, clock)
    shared.answered = True
    return shared


def settings_for(address: RateLimitAddress, most: int, name: str = "m") -> ModelSettings:
    return ModelSettings(name=name, max_concurrency=most, rate_limit=address, answered=True)


def test_until_the_first_answer_one_request_is_in_flight() -> None:
    shared = SharedLimit(8, ManualClock())
    for worker in "ab":
        shared.join(worker, 4)
        shared.report(worker, RequestReport(wanted=4))
    assert sum(shared.shares().values()) == 1
    shared.report("a", RequestReport(in_flight=1, wanted=4, server_errors=1))
    assert shared.shares()["b"] == 0, "a failure proves nothing"
    shared.report("a", RequestReport(wanted=4, answered=1, seconds=1.0))
    assert shared.shares() == {"a": 4, "b": 4}


def test_a_fall_caused_by_outdated_reports_is_corrected() -> None:
    shared = answered_limit(100, ManualClock())
    for worker in "ab":
        shared.join(worker, 50)
    shared.report("b", RequestReport(in_flight=9, wanted=9))
    shared.report("a", RequestReport(in_flight=0, wanted=50, refused=50))
    assert shared.pressure[1] == 9, "as far as is known, the endpoint has accepted nine"
    shared.report("b", RequestReport(in_flight=30, wanted=50, refused=20))
    assert shared.pressure[1] == 30


def test_the_limit_of_a_run_can_be_changed() -> None:
    shared = answered_limit(4, ManualClock())
    shared.join("a", 2)
    shared.join("b", 2)
    for worker in ("a", "b"):
        shared.report(worker, RequestReport(wanted=8))
    assert shared.shares() == {"a": 2, "b": 2}
    shared.resize(10)
    assert shared.shares() == {"a": 5, "b": 5}
    shared.join("c", 2)
    shared.report("c", RequestReport(wanted=8))
    assert sum(shared.shares().values()) == 10
    shared.resize(3)
    assert shared.shares() == {"a": 1, "b": 1, "c": 1}


def test_a_limit_that_the_endpoint_lowered_is_not_raised_at_once() -> None:
    clock = ManualClock()
    limiter = Limiter(20, clock)
    for _ in range(20):
        assert limiter.admit()
    for _ in range(15):
        limiter.throttled(None)
        limiter.leave()
    lowered = limiter.limit
    assert lowered < 20
    limiter.resize(100)
    assert limiter.limit == lowered
    limiter.resize(2)
    assert limiter.limit == 2


def test_retry_after_of_one_worker_applies_to_all() -> None:
    clock = ManualClock()
    shared = answered_limit(16, clock)
    shared.join("a", 8)
    shared.join("b", 8)
    assert shared.shares() == {"a": 8, "b": 8}
    shared.report("b", RequestReport(in_flight=8, wanted=8))
    shared.report("a", RequestReport(in_flight=0, wanted=8, refused=8, retry_after=5.0))
    assert (shared.pressure, shared.opens_in()) == ((8, 8), 5.0)
    assert shared.shares() == {"a": 0, "b": 4}, "b still occupies slots of a"
    shared.report("b", RequestReport(in_flight=6, wanted=8))
    assert shared.shares() == {"a": 2, "b": 4}
    shared.report("b", RequestReport(in_flight=1, wanted=1))
    assert shared.shares() == {"a": 7, "b": 1}
    for _ in range(4):
        clock.advance(60)
        shared.report("a", RequestReport(in_flight=7, wanted=8, answered=16, seconds=16.0))
    assert shared.pressure[1] > 8
    shared.leave("a")
    assert shared.shares() == {"b": 8}


def test_shares_rotate_if_there_are_fewer_slots_than_workers() -> None:
    clock = ManualClock()
    shared = answered_limit(2, clock)
    for worker in "ab":
        shared.join(worker, 1)
        shared.report(worker, RequestReport(in_flight=1, wanted=2))
    shared.report("a", RequestReport(in_flight=0, wanted=2, refused=3))
    shared.report("b", RequestReport(in_flight=0, wanted=2, answered=1, seconds=1.0))
    seen = []
    for _ in range(4):
        seen.append({worker for worker, share in shared.shares().items() if share})
        shared.rotate()
    assert seen in ([{"a"}, {"b"}] * 2, [{"b"}, {"a"}] * 2)


def test_a_limiter_uses_its_share_until_it_is_cleared() -> None:
    limiter = Limiter(8, ManualClock())
    limiter.set_share(0, 0.0)
    assert not limiter.admit()
    limiter.set_share(3, 0.0)
    assert [limiter.admit() for _ in range(4)] == [True, True, True, False]
    limiter.throttled(None)
    limiter.leave()
    assert limiter.limit == 3, "one refusal says little"
    limiter.throttled(None)
    limiter.leave()
    assert limiter.limit == 1
    limiter.set_share(5, 2.0)
    assert (limiter.limit, limiter.opens_in()) == (5, 2.0)
    limiter.clear_share()
    assert limiter.limit == 5


@pytest.mark.slow
def test_two_workers_share_one_limit() -> None:
    """Two clients with eight slots each, and an endpoint that allows four requests: both get answers within a common limit."""

    async def ask(address: RateLimitAddress, url: str) -> None:
        settings = ModelSettings(name="m", base_url=url, api_key="k", max_concurrency=8, rate_limit=address)
        model = open_model(settings)
        try:
            await asyncio.gather(*(model.complete(ASK, []) for _ in range(30)))
        finally:
            await model.close()

    async def both(address: RateLimitAddress, url: str) -> None:
        await asyncio.gather(ask(address, url), ask(address, url))

    with OpenAIServer(Script(latency=0.05, most_at_once=4)) as server, RateLimitServer(16) as rate_limit:
        assert rate_limit.pressure() == (0, 0)
        assert "secret" not in repr(rate_limit.address)
        asyncio.run(both(rate_limit.address, server.url))
        wait_until(lambda: server.seen.answered == 60, 10)  # the last one is counted after it was sent
        wait_until(lambda: rate_limit.pressure()[0] == 0)
        assert 1 <= rate_limit.pressure()[1] < 16


def test_each_model_has_its_own_limit() -> None:
    shares: dict[str, int | None] = {}

    def member(address: RateLimitAddress, model: str) -> RateLimitClient:
        settings = settings_for(address, 8, model)
        return RateLimitClient(settings, lambda: (8, 8), lambda share, *_: shares.update({model: share}))

    with RateLimitServer(8) as rate_limit:
        members = [member(rate_limit.address, model) for model in "ab"]
        wait_until(lambda: shares == {"a": 8, "b": 8} and rate_limit.pressure() == (16, 16))
        for one in members:
            one.close()


def test_workers_continue_without_the_rate_limit_server() -> None:
    async def ask(address: RateLimitAddress, url: str) -> None:
        model = open_model(ModelSettings(name="m", base_url=url, api_key="k", rate_limit=address))
        await asyncio.gather(*(model.complete(ASK, []) for _ in range(9)))
        await model.close()

    with OpenAIServer(Script()) as server:
        asyncio.run(ask(RateLimitAddress(address="127.0.0.1:1", secret="x" * 20), server.url))
        assert server.seen.answered == 9


@pytest.mark.slow
def test_a_run_shows_the_requests_of_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"id": str(n), "question": "?", "answer": "42"}) + "\n" for n in range(60)))
    seen: list[tuple[int, int]] = []
    active_counts: list[int] = []

    def watch(progress: RolloutProgress) -> None:
        active_counts.append(progress.active)
        seen.append((progress.live.in_flight, progress.live.request_limit))

    chosen: dict[str, Any] = {"env": "tests.rollout.test_rollouts:Tiny", "data": data, "workers": 2, "num_rollouts": 20}
    with OpenAIServer(Script(default="42", latency=0.1, most_at_once=6)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        summary = run_parallel_rollout(RolloutConfig(**chosen, output_dir=tmp_path / "results"), watch)
        assert (summary.mean, summary.pending) == (1.0, 0)
        assert server.seen.most_in_flight <= 20
    assert max(active_counts) <= 20, "so many rollouts run at the same time, and no more"
    assert max(flying for flying, _ in seen) > 0
    assert min(limit for _, limit in seen if limit) < 20


@pytest.mark.slow
def test_scattered_refusals_do_not_lower_the_limit_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"id": str(n), "question": "?", "answer": "42"}) + "\n" for n in range(100)))
    limits: list[int] = []
    chosen: dict[str, Any] = {"env": "tests.rollout.test_rollouts:Tiny", "data": data, "workers": 2, "num_rollouts": 20}
    fault = Fault(429, first=10, every=25, retry_after=0.5)
    with OpenAIServer(Script(default="42", latency=0.2, faults=[fault])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        config = RolloutConfig(**chosen, output_dir=tmp_path / "results")
        summary = run_parallel_rollout(config, lambda progress: limits.append(progress.live.request_limit))
        assert (summary.mean, summary.pending) == (1.0, 0)
        assert server.seen.refused >= 4
    assert {limit for limit in limits if limit} <= {1, 20}, "1 until the first answer"


class Participant:
    """A worker with a limiter and a rate limit client."""

    def __init__(self, address: RateLimitAddress, most: int) -> None:
        self.limiter = Limiter(most, ManualClock())
        self.received: list[int | None] = []
        self.most, self.fails = most, False
        self.member = RateLimitClient(settings_for(address, most), self._state, self._changed)

    def _state(self) -> tuple[int, int]:
        if self.fails:
            self.fails = False
            raise MemoryError
        return self.limiter.in_flight, self.most

    def _changed(self, share: int | None, closed: float, answered: bool) -> None:
        self.received.append(share)
        if share is None:
            self.limiter.clear_share()
        else:
            self.limiter.set_share(share, closed)


@pytest.mark.slow
def test_a_burst_of_refusals_lowers_the_share_of_one_worker_briefly() -> None:
    with RateLimitServer(100) as rate_limit:
        workers = [Participant(rate_limit.address, 25) for _ in range(4)]
        wait_until(lambda: all(worker.received and worker.limiter.limit == 25 for worker in workers))
        for worker in workers:
            for _ in range(25):
                worker.limiter.admit()
        refused = workers[0].limiter
        for _ in range(11):
            refused.throttled(None)
            refused.leave()
        assert refused.limit < 25, "its own cut"
        wait_until(lambda: refused.limit == 25)
        for worker in workers:
            worker.member.close()


@pytest.mark.slow
def test_every_report_with_events_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two consecutive refusals cause two equal reports, and both must be sent."""
    reports: list[RequestReport] = []
    take_in = SharedLimit.report

    def noted(self: SharedLimit, worker: str, report: RequestReport) -> None:
        reports.append(report)
        take_in(self, worker, report)

    monkeypatch.setattr(SharedLimit, "report", noted)
    with RateLimitServer(8) as rate_limit:
        worker = Participant(rate_limit.address, 8)
        wait_until(lambda: bool(worker.received) and bool(reports))
        member = worker.member
        events: list[Callable[[], None]] = [
            lambda: member.throttled(None),
            member.server_error,
            lambda: member.answered(0.0),
        ]
        for number, happens in enumerate(event for event in events for _ in range(3)):
            happens()
            wait_until(lambda: sum(one.refused + one.server_errors + one.answered for one in reports) == number + 1)  # noqa: B023
        worker.member.close()
    seen = [sum(getattr(one, name) for one in reports) for name in ("refused", "server_errors", "answered")]
    assert seen == [3, 3, 3]


def test_a_failing_client_reconnects_and_its_worker_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.models.rate_limit_client.RECONNECT_SECONDS", 0.1)
    with RateLimitServer(8) as rate_limit:
        worker = Participant(rate_limit.address, 8)
        wait_until(lambda: worker.received == [8])
        worker.fails = True
        wait_until(lambda: worker.received[-2:] == [None, 8])
        worker.member.close()
        wait_until(lambda: worker.received[-1] is None)
        assert worker.limiter.limit == 8
