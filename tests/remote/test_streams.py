"""Streams of remote generators."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from paragent import CallTimedOut, RemoteStream, Unserialisable
from tests.remote.agents import Worker

if TYPE_CHECKING:
    from pathlib import Path


def test_generators_can_be_iterated_sync_and_async(worker: Any) -> None:
    assert type(worker.numbers(3)) is RemoteStream
    assert list(worker.numbers(100)) == list(range(100))
    assert list(worker.async_numbers(100)) == list(range(100))
    assert list(worker.numbers(0)) == []

    async def program() -> list[int]:
        return [n async for n in worker.numbers(50)] + [n async for n in worker.async_numbers(50)]

    assert asyncio.run(program()) == [*range(50), *range(50)]


def test_a_generator_runs_at_most_its_credit_ahead(worker: Any) -> None:
    stream = worker.numbers(10_000)
    assert next(stream) == 0
    time.sleep(0.2)
    assert worker.seen().result(5) <= 2 * RemoteStream.CREDIT
    stream.close()
    assert worker.add(1).result(5) == 2


def test_a_stream_cannot_be_sent_to_another_process(worker: Any) -> None:
    with pytest.raises(
        Unserialisable, match=r"`it\['numbers'\]\[0\]`, a \S+RemoteStream: .*Worker.numbers.*`yield from"
    ):
        worker.pass_numbers(Worker("other", to_dist=True), 3).result(60)
    with pytest.raises(Unserialisable, match="`yield from"):
        worker.echo(worker.numbers(3))


def test_leaving_early_ends_the_generator(worker: Any, mark: Path, eventually: Any) -> None:
    for number in worker.numbers(10_000, str(mark)):
        if number == 3:
            break
    del number
    eventually(mark.exists)
    assert worker.add(1).result(5) == 2


def test_an_error_is_raised_after_the_items_before_it(worker: Any) -> None:
    stream = worker.broken_numbers()
    assert next(stream) == 1
    with pytest.raises(ValueError, match="no second"):
        next(stream)


@pytest.mark.parametrize("method", ["late_numbers", "async_late_numbers"])
def test_a_late_item_raises_an_error_and_ends_the_generator(method: str, worker: Any, mark: Path) -> None:
    def stream() -> Any:
        return getattr(worker.options(timeout=0.3), method)(str(mark))

    async def read_async() -> None:
        async for _ in stream():
            pass

    assert worker.add(1).result(30) == 2
    late = stream()
    with pytest.raises(CallTimedOut, match=rf"^Worker\.{method}: no item within 0\.3 s$"):
        list(late)
    with pytest.raises(CallTimedOut):
        next(late)
    assert worker.add(1).result(30) == 2  # the agent is busy until the generator has ended
    with pytest.raises(CallTimedOut, match=rf"^Worker\.{method}: no item within 0\.3 s$"):
        asyncio.run(read_async())
    assert worker.add(1).result(30) == 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["late_numbers", "async_late_numbers"])
def test_the_server_ends_a_stream_whose_item_is_late(method: str, worker: Any, mark: Path, eventually: Any) -> None:
    assert worker.add(1).result(30) == 2
    stream = getattr(worker.options(timeout=1.0), method)(str(mark))
    eventually(mark.exists)
    assert next(stream) == 0
    with pytest.raises(TimeoutError):
        next(stream)
    assert worker.add(1).result(30) == 2


@pytest.mark.slow
def test_the_timeout_of_a_stream_applies_to_each_item(worker: Any) -> None:
    stream = worker.options(timeout=1.0).numbers(3 * RemoteStream.CREDIT)
    ahead = [next(stream)]
    time.sleep(1.3)  # the generator waits for its reader longer than it may take for an item
    assert [*ahead, *stream] == list(range(3 * RemoteStream.CREDIT))
