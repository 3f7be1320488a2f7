"""Versions of the policy and pauses for training, through the connection of the rate limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent._internal.clock import ManualClock
from paragent.errors import PauseTimeout, UsageError
from paragent.execution import current_activity
from paragent.models import Completion, Model, ModelSettings, open_model
from paragent.models.base import RateLimitAddress
from paragent.models.policy import PolicyControl
from paragent.models.rate_limit_server import RateLimitServer
from paragent.testing import OpenAIServer, Script
from tests.waiting import wait_until, wait_until_async

ASK = [{"role": "user", "content": "?"}]


class Worker:
    """A model in a thread with an event loop of its own, as in a worker process."""

    def __init__(self, server: OpenAIServer, address: RateLimitAddress) -> None:
        self._settings = ModelSettings(
            name="m", base_url=server.url, api_key="k", max_retries=0, rate_limit=address, answered=True
        )
        self._ready = threading.Event()
        self.waits: list[str] = []
        """The reasons of waits, `over` when one has ended."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(10)

    async def _run(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.model: Model = open_model(self._settings)
        self._ready.set()
        await self._stop.wait()
        await self.model.close()

    def ask(self) -> Future[Completion]:
        """Start a request; its result can be awaited from any thread."""

        async def request() -> Completion:
            current_activity.set(self)
            return await self.model.complete(ASK, [])

        return asyncio.run_coroutine_threadsafe(request(), self.loop)

    def doing(self, what: str, name: str = "") -> None: ...

    def pause(self, what: str, seconds: float | None) -> None:
        del seconds
        self.waits.append(what)

    def resume(self) -> None:
        self.waits.append("over")

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)


@contextmanager
def workers(server: OpenAIServer, rate_limit: RateLimitServer, count: int) -> Iterator[list[Worker]]:
    opened: list[Worker] = []
    try:
        for _ in range(count):
            opened.append(Worker(server, rate_limit.address))
        yield opened
    finally:
        for worker in opened:
            worker.close()


def versions(worker: Worker, count: int = 1) -> list[int | None]:
    asked = [worker.ask() for _ in range(count)]
    return [one.result(20).version for one in asked]


def test_completions_have_the_version_of_the_policy_when_they_were_sent() -> None:
    with (
        OpenAIServer(Script()) as server,
        RateLimitServer(8, controlled=True) as control,
        workers(server, control, 2) as (first, second),
    ):
        assert versions(first) == [None]
        control.publish(3)
        wait_until(lambda: versions(first) == [3])
        assert versions(second, 4) == [3] * 4, "a worker that joins later gets the current version"


def test_a_pause_waits_for_requests_in_flight_and_admits_no_others() -> None:
    with (
        OpenAIServer(Script(latency=0.3)) as server,
        RateLimitServer(8, controlled=True) as control,
        workers(server, control, 3) as (first, second, late),
    ):
        control.publish(1)
        before = [first.ask(), second.ask()]
        wait_until(lambda: server.seen.in_flight == 2)
        control.pause(20)
        assert server.seen.in_flight == 0
        assert server.seen.requests == 2
        assert all(one.done() or one.result(5) for one in before)
        asked = [one.ask() for one in (first, second, late)]
        wait_until(lambda: all(one.waits and one.waits[-1] != "over" for one in (first, second, late)))
        control.publish(2)
        control.pause(20)  # a second call changes nothing
        assert server.seen.requests == 2, "no request is sent during a pause, not even by a new worker"
        control.resume()
        assert [one.result(20).version for one in asked] == [2, 2, 2]
        assert [one.result(5).version for one in before] == [1, 1]
    assert all(one.waits[-1] == "over" for one in (first, second, late)), "the pause was no working time"
    assert any("trainer" in why for why in first.waits)


def test_a_pause_that_takes_too_long_is_reported_and_stays() -> None:
    with (
        OpenAIServer(Script(latency=0.5)) as server,
        RateLimitServer(8, controlled=True) as control,
        workers(server, control, 1) as [worker],
    ):
        first = worker.ask()
        wait_until(lambda: server.seen.in_flight == 1)
        with pytest.raises(PauseTimeout, match="1 worker still had requests"):
            control.pause(0.05)
        second = worker.ask()
        assert first.result(20).message["content"] == "42"
        control.pause(20)
        assert not second.done()
        control.resume()
        assert second.result(20).version is None


def test_a_worker_without_connection_sends_nothing_while_the_policy_is_controlled() -> None:
    async def ask(url: str) -> tuple[int, int]:
        nowhere = RateLimitAddress(address="127.0.0.1:1", secret="x" * 20, controlled=True)
        model = open_model(ModelSettings(name="m", base_url=url, api_key="k", rate_limit=nowhere))
        request = asyncio.create_task(model.complete(ASK, []))
        await wait_until_async(lambda: model.pressure() == (0, 5))
        await asyncio.wait([request], timeout=0.2)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await model.close()
        return model.pressure()

    with OpenAIServer(Script()) as server:
        assert asyncio.run(ask(server.url))[0] == 0
        assert server.seen.requests == 0


def test_a_worker_that_ends_does_not_delay_a_pause_for_ever() -> None:
    with OpenAIServer(Script()) as server, RateLimitServer(8, controlled=True) as control:
        opened = workers(server, control, 1)
        with opened as [worker]:
            assert versions(worker) == [None]
        control.pause(20)
        control.resume()


def test_a_server_of_an_ordinary_run_cannot_pause() -> None:
    with RateLimitServer(8) as rate_limit:
        calls: list[Callable[[], None]] = [
            lambda: rate_limit.pause(1),
            rate_limit.resume,
            lambda: rate_limit.publish(1),
        ]
        for call in calls:
            with pytest.raises(UsageError, match="controlled=True"):
                call()


def test_requests_of_a_lost_worker_count_for_a_while() -> None:
    clock = ManualClock()
    control = PolicyControl(lambda: None, clock)
    for client in "ab":
        control.join(client)
        control.report(client, 1, 1)
    control.pause()
    control.report("a", control.state.number, 0)
    control.leave("b")
    assert control.busy() == 1
    assert control.frees_in() == 10.0
    clock.advance(3)
    control.join("b")
    assert control.busy() == 1, "it has not said yet what it has in flight"
    control.report("b", control.state.number, 2)
    control.leave("b")
    clock.advance(10)
    assert control.busy() == 0
    assert control.frees_in() is None


@given(st.lists(st.sampled_from(["publish", "pause", "resume", "join", "send", "end", "obey", "leave"]), max_size=60))
def test_nobody_is_in_flight_when_a_pause_is_complete(events: list[str]) -> None:
    """A model of one worker that only sends when the state that it obeys is not paused."""
    control = PolicyControl(lambda: None, ManualClock())
    obeyed, in_flight, connected = None, 0, False
    for event in events:
        if event in {"publish", "pause", "resume"}:
            getattr(control, event)(*([1] if event == "publish" else []))
        elif event == "join":
            control.join("w")
            connected, obeyed = True, None
        elif event == "leave":
            control.leave("w")
            connected, obeyed, in_flight = False, None, 0
        elif event == "obey" and connected:
            obeyed = control.state
        elif event == "send" and obeyed is not None and not obeyed.paused:
            in_flight += 1
        elif event == "end":
            in_flight = max(0, in_flight - 1)
        if connected:
            control.report("w", 0 if obeyed is None else obeyed.number, in_flight)
        if control.state.paused and control.busy() == 0:
            assert in_flight == 0
            assert obeyed is None or obeyed.paused


def test_requests_after_publish_has_returned_have_the_new_version() -> None:
    with (
        OpenAIServer(Script(default="42")) as server,
        RateLimitServer(10, "127.0.0.1", controlled=True) as rate_limit,
        workers(server, rate_limit, 2) as both,
    ):
        rate_limit.publish(0)
        for worker in both:
            assert worker.ask().result(20).version == 0  # it is connected now
        for version in range(1, 6):
            rate_limit.publish(version)
            assert [one.result(20).version for one in [worker.ask() for worker in both]] == [version, version]
