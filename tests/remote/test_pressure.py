"""Back-pressure: fast callers, slow readers, and other limits on memory."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from paragent import LimitExceeded, Limits, ProtocolError, RemoteStream, RpcAgentServerLauncher, ServerLost
from paragent.agents.proxy import link_of
from paragent.remote.protocol import CallError, CallMethod, CallResult, Goodbye, ReadAttribute
from paragent.remote.reliable_stream import ReliableStream
from paragent.remote.values import decode_error
from paragent.transport.auth import load_token
from paragent.transport.client import connect
from paragent.transport.limits import TokenBucket
from paragent.transport.loop import run
from tests.remote.agents import Worker
from tests.remote.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def at(server: RpcAgentServerLauncher) -> Any:
    return Worker("agent", to_dist={"host": server.host, "port": server.port})


@pytest.fixture
def launch() -> Iterator[Callable[..., RpcAgentServerLauncher]]:
    """Starts servers with given limits in new processes."""
    launched = []

    def start(**limits: int) -> RpcAgentServerLauncher:
        launcher = RpcAgentServerLauncher(limits=Limits(**limits))
        launched.append(launcher)
        launcher.launch(in_subprocess=True)
        return launcher

    yield start
    for launcher in launched:
        launcher.shutdown()


def info(agent: Any) -> dict[str, Any]:
    report: dict[str, Any] = link_of(agent).control("info").result(20)
    return report


@pytest.mark.slow
def test_unread_results_are_limited(launch: Any, eventually: Any) -> None:
    server = launch(results_bytes=8 << 20)
    watching = at(server)
    before = info(watching)
    reader = RawClient(server.address)
    calls, size = 300, 200_000
    reader.say([CallMethod(number, 1, "make", (size,)) for number in range(1, calls + 1)])
    eventually(lambda: info(watching)["results_waiting_bytes"] > 4 << 20)
    time.sleep(0.3)
    stuck = info(watching)
    assert stuck["results_waiting_bytes"] < (8 << 20) + 2 * size, "the agent waits for its reader"
    assert stuck["calls_served"] - before["calls_served"] < calls
    assert watching.add(1).result(60) == 2, "other clients are not affected"
    answers = reader.read(calls)
    assert [(type(answer), answer.number) for answer in answers] == [
        (CallResult, number) for number in range(1, calls + 1)
    ]
    eventually(lambda: info(watching)["results_waiting_bytes"] == 0)
    reader.close()


def test_calls_beyond_twice_the_window_are_rejected(launch: Any, mark: Path) -> None:
    server = launch(window_bytes=1 << 20)
    rude = RawClient(server.address)
    rude.say([CallMethod(1, 1, "block_until", (str(mark),))])
    for number in range(2, 42):
        rude.say([CallMethod(number, 1, "size", ("x" * 100_000,))])
    rejected = rude.read(19)  # the 2 MiB are used up by 21 of the 40
    assert {type(answer) for answer in rejected} == {CallError}
    assert all(isinstance(decode_error(answer.value), LimitExceeded) for answer in rejected)
    mark.touch()
    answers = rude.read(22)
    assert {type(answer) for answer in answers} == {CallResult}, "earlier calls are executed"
    assert at(server).add(1).result(60) == 2
    rude.close()


def test_a_client_that_respects_the_window_is_slowed_and_not_rejected(launch: Any) -> None:
    agent = at(launch(window_bytes=1 << 20))
    agent.echo(1).result(60)
    results = [agent.size("x" * 50_000) for _ in range(300)]
    assert [result.result(20) for result in results] == [50_000] * 300


def test_kept_results_are_limited(launch: Any, eventually: Any) -> None:
    agent = at(launch(kept_bytes=8 << 20))
    kept = [agent.make(3 << 20) for _ in range(2)]
    refused = agent.make(3 << 20)
    assert isinstance(refused.exception(60), LimitExceeded)
    assert len(kept[0].result(60)) == 3 << 20
    del kept
    gc.collect()
    eventually(lambda: info(agent)["results_kept"] == 0)
    assert len(agent.make(3 << 20).result(60)) == 3 << 20


def test_unacknowledged_frames_are_limited() -> None:
    here, there = ReliableStream(1 << 30), ReliableStream(1 << 30)
    frames = [here.next_frame([Goodbye()], [bytes(16 << 20)]) for _ in range(4)]
    assert here.window_full
    for frame in frames:
        for message in frame:
            there.receive(message)
    (acknowledgement,) = there.next_frame([])
    received = here.receive(acknowledgement)
    assert received is not None
    here.drop_acknowledged(received[0])
    assert not here.window_full


def test_deeply_nested_arguments_are_rejected(worker: Any) -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    for argument in (deep, {"a": deep}):
        with pytest.raises(LimitExceeded, match="nested"):
            worker.echo(argument).result(60)
    assert worker.echo([[[[1]]]]) == [[[[1]]]]


def test_arguments_that_are_not_encoded_are_rejected(launch: Any) -> None:
    server = launch()
    rude = RawClient(server.address)
    for number, argument in enumerate(([[1]], ("m", "a", [[1]], "user", "id", "now")), 1):
        rude.say([CallMethod(number, 1, "echo", (argument,))])
        (answer,) = rude.read(1)
        assert type(answer) is CallError
        assert isinstance(decode_error(answer.value), ProtocolError)
    rude.close()


def test_private_names_cannot_be_called(launch: Any) -> None:
    rude = RawClient(launch().address)
    names = ["__init__", "__del__", "_private", "?log", "?__dict__"]
    rude.say([CallMethod(1 + at, 1, name, ()) for at, name in enumerate(names)])
    rude.say([CallMethod(11 + at, 1, name, (), None, 0, None) for at, name in enumerate(names)])
    rude.say([ReadAttribute(21, 1, "__dict__"), CallMethod(22, 1, "add", (1,))])
    answers = {answer.number: answer for answer in rude.read(12)}
    assert answers.pop(22) == CallResult(22, 2), "the agent still exists"
    assert {type(answer) for answer in answers.values()} == {CallError}
    assert all(isinstance(decode_error(answer.value), AttributeError) for answer in answers.values())
    rude.close()


def test_a_token_bucket_allows_bursts_and_a_rate() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.take(10, 0.0) == 0.0
    assert bucket.take(5, 0.0) == 0.5
    assert not bucket.try_take(0.5)
    assert bucket.try_take(0.7)
    assert bucket.take(10, 100.0) == 0.0, "the bucket holds the tokens of one second at most"
    assert bucket.take(1, 100.0) == 0.1


@pytest.mark.slow
def test_messages_of_a_client_are_rate_limited(launch: Any) -> None:
    agent = at(launch(items_per_second=1_000))
    agent.echo(1).result(60)
    started = time.monotonic()
    results = [agent.add(number) for number in range(3_000)]
    assert [result.result(30) for result in results] == list(range(1, 3_001))
    assert agent.echo(1).result(30) == 1, "all may have arrived in one frame; the next one waits"
    assert time.monotonic() - started > 1.0


def test_handshakes_are_rate_limited_and_real_clients_connect(launch: Any) -> None:
    server = launch(handshakes_per_second=3)

    async def knock() -> int:
        refused = 0
        for _ in range(12):
            hello = {"session": os.urandom(16).hex(), "received": 0, "reconnect": False}
            try:
                stream, _ = await connect(server.address, "agents", load_token(), None, hello, 5.0)
            except (LimitExceeded, ServerLost):  # gRPC does not report the reason if the rejection overtakes a message
                refused += 1
            else:
                await stream.close()
        return refused

    assert run(knock(), 60.0) > 0
    assert at(server).add(1).result(20) == 2


@pytest.mark.slow
def test_a_stream_of_large_items_waits_for_its_reader(launch: Any, eventually: Any) -> None:
    server = launch()
    agent, watching = at(server), at(server)
    before = info(watching)["memory_bytes"]
    stream = agent.chunks(400, 1 << 20)
    assert len(next(stream)) == 1 << 20
    eventually(lambda: agent.seen().result(60) >= RemoteStream.CREDIT // 2)
    time.sleep(0.3)
    assert agent.seen().result(60) <= 2 * RemoteStream.CREDIT
    assert info(watching)["memory_bytes"] - before < 200 << 20
    assert sum(len(chunk) for chunk in stream) == 399 << 20

    async def slowly() -> int:
        taken = 0
        async for chunk in agent.async_chunks(60, 1 << 20):
            taken += len(chunk)
            if taken == 1 << 20:
                await asyncio.sleep(0.2)
                assert (await agent.seen()) <= 2 * RemoteStream.CREDIT
        return taken

    assert asyncio.run(slowly()) == 60 << 20
