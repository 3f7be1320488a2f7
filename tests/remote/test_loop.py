"""The event loop of a server: what asyncio promises holds although steps and timers share entries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from paragent.remote.server.loop import CrowdLoop

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def loop() -> Iterator[CrowdLoop]:
    made = CrowdLoop()
    yield made
    made.close()


def test_callbacks_are_called_in_the_order_in_which_they_were_asked_for(loop: CrowdLoop) -> None:
    called: list[int] = []
    loop.call_soon(called.append, 1)
    loop.call_soon(called.append, 2)
    loop.call_soon_threadsafe(called.append, 3)
    loop.call_soon(called.append, 4)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert called == [1, 2, 3, 4]


def test_what_a_callback_asks_for_waits_for_the_next_turn(loop: CrowdLoop) -> None:
    called: list[str] = []

    def first() -> None:
        called.append("first")
        loop.call_soon(called.append, "asked for by the first")

    loop.call_soon(first)
    loop.call_soon(called.append, "second")
    loop.call_soon(loop.call_soon, loop.stop)
    loop.run_forever()
    assert called == ["first", "second", "asked for by the first"]


def test_a_cancelled_callback_is_not_called_and_its_neighbours_are(loop: CrowdLoop) -> None:
    called: list[int] = []
    loop.call_soon(called.append, 1)
    handle = loop.call_soon(called.append, 2)
    loop.call_soon(called.append, 3)
    handle.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert called == [1, 3]
    assert handle.cancelled()


@pytest.mark.parametrize("when", ["soon", "later"])
def test_an_error_of_a_callback_is_told_and_the_next_is_called(loop: CrowdLoop, when: str) -> None:
    told: list[dict[str, Any]] = []
    called: list[int] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    at = loop.time() + 0.01
    ask: Any = loop.call_soon if when == "soon" else lambda *call: loop.call_at(at, *call)
    ask(int, "no number")
    ask(called.append, 1)
    ask(loop.stop)
    loop.run_forever()
    assert called == [1]
    assert isinstance(told[0]["exception"], ValueError)


def test_tasks_wait_time_out_and_are_cancelled_as_ever(loop: CrowdLoop) -> None:
    async def late() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    async def everything() -> list[Any]:
        return await asyncio.gather(*(asyncio.sleep(0.001 * n, n) for n in range(5)), late(), return_exceptions=True)

    *numbers, error = loop.run_until_complete(everything())
    assert numbers == list(range(5))
    assert isinstance(error, TimeoutError)
