"""Generators, iterated remotely."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from manyhands import CallTimedOut, RemoteStream

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


def test_an_item_may_be_late(worker: Any) -> None:
    stream = worker.options(timeout=0.2).late_numbers()
    assert next(stream) == 0
    with pytest.raises((TimeoutError, CallTimedOut)):
        next(stream)
