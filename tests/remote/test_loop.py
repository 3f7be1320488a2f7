"""The event loop of a server: what asyncio promises holds although steps and timers share entries."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from paragent.remote.server.event_loop import CrowdLoop

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


@pytest.mark.parametrize("delay", [math.inf, 1e300, 1.7e308, 1e10])
def test_a_delay_may_be_endless(loop: CrowdLoop, delay: float) -> None:
    async def program() -> str:
        endless = loop.create_task(asyncio.sleep(delay))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(endless), 0.01)
        endless.cancel()
        return await asyncio.wait_for(asyncio.sleep(0.01, "slept"), delay)

    assert loop.run_until_complete(program()) == "slept"
    assert not loop._ticks, "a timer that was cancelled does not stay"


def test_a_delay_in_the_past_is_due_now_and_nan_is_refused(loop: CrowdLoop) -> None:
    called: list[float] = []
    for delay in (-math.inf, -1e300, -1.0):
        loop.call_later(delay, called.append, delay)
    loop.call_later(0.02, loop.stop)
    loop.run_forever()
    assert called == [-math.inf, -1e300, -1.0]
    for call in (loop.call_later, loop.call_at):
        with pytest.raises(ValueError, match="NaN"):
            call(math.nan, called.append, 0.0)


def test_what_ends_a_program_does_not_drop_the_rest_of_an_entry(loop: CrowdLoop) -> None:
    called: list[int] = []
    told: list[Any] = []

    def end(kind: type[BaseException]) -> None:
        raise kind

    loop.set_exception_handler(lambda _, context: told.append(type(context["exception"])))
    for number, kind in enumerate((SystemExit, KeyboardInterrupt)):
        loop.call_soon(end, kind)
        loop.call_soon(called.append, number)
        loop.call_later(0.01, end, kind)
        loop.call_later(0.01, called.append, number + 2)
    loop.call_later(0.05, loop.stop)
    loop.run_forever()
    assert called == [0, 1, 2, 3]
    assert told == [SystemExit, KeyboardInterrupt] * 2
