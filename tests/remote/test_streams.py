"""Generators, iterated remotely."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from paragent import RemoteStream

if TYPE_CHECKING:
    from pathlib import Path


def test_generators_are_iterated_both_ways(worker: Any) -> None:
    assert type(worker.numbers(3)) is RemoteStream
    assert list(worker.numbers(100)) == list(range(100))
    assert list(worker.async_numbers(100)) == list(range(100))
    assert list(worker.numbers(0)) == []

    async def program() -> list[int]:
        return [n async for n in worker.numbers(50)] + [n async for n in worker.async_numbers(50)]

    assert asyncio.run(program()) == [*range(50), *range(50)]


def test_a_generator_does_not_run_far_ahead(worker: Any) -> None:
    stream = worker.numbers(10_000)
    assert next(stream) == 0
    time.sleep(0.2)
    assert worker.seen().result(5) <= 2 * RemoteStream.CREDIT
    stream.close()
    assert worker.add(1).result(5) == 2


def test_leaving_early_ends_the_generator(worker: Any, mark: Path, eventually: Any) -> None:
    for number in worker.numbers(10_000, str(mark)):
        if number == 3:
            break
    del number
    eventually(mark.exists)
    assert worker.add(1).result(5) == 2


def test_an_error_in_the_middle_comes_after_what_was_yielded(worker: Any) -> None:
    stream = worker.broken_numbers()
    assert next(stream) == 1
    with pytest.raises(ValueError, match="no second"):
        next(stream)


@pytest.mark.parametrize("method", ["late_numbers", "async_late_numbers"])
def test_a_late_item_ends_the_stream_even_if_nobody_reads_it(
    method: str, worker: Any, mark: Path, eventually: Any
) -> None:
    assert worker.add(1).result(30) == 2
    stream = getattr(worker.options(timeout=1.0), method)(str(mark))
    eventually(mark.exists)
    assert next(stream) == 0
    with pytest.raises(TimeoutError):
        next(stream)
    assert worker.add(1).result(30) == 2


def test_the_time_of_a_stream_is_that_of_its_items(worker: Any) -> None:
    stream = worker.options(timeout=1.0).numbers(3 * RemoteStream.CREDIT)
    ahead = [next(stream)]
    time.sleep(1.3)  # the generator waits for its reader longer than it may take for an item
    assert [*ahead, *stream] == list(range(3 * RemoteStream.CREDIT))
