"""What a remote generator yields, item by item, no further ahead of its reader than agreed."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from manyhands.remote.client.result import FAILED, PENDING, RAISED, READY, Result
from manyhands.remote.faults import decode_error
from manyhands.remote.values import decode
from manyhands.remote.wire import CANCEL, GRANT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from manyhands.remote.client.link import Link

__all__ = ["RemoteStream"]


class RemoteStream:
    """The stream of a remote generator: iterate it with `for` or `async for`, once.

    The generator runs at most `CREDIT` items ahead of its reader. Leaving the loop early and dropping the stream, or
    `close()`, ends it there. An item later than the agent's `timeout` raises `TimeoutError`.
    """

    CREDIT = 16
    """Items ahead: enough to hide a round trip, few enough that large ones do not fill memory."""

    __slots__ = ("__weakref__", "_items", "_link", "_number", "_size", "_tail", "_taken", "_ticket", "_timeout")

    def __init__(self, link: Link, number: int, timeout: float | None) -> None:
        self._link, self._number, self._timeout = link, number, timeout
        self._size = 0
        self._items: deque[Any] = deque()
        self._tail: tuple[int, Any] | None = None
        """How it ended: the state of a result and what came with it."""
        self._ticket = Result(None, 0)
        """Stands for the next arrival; replaced each time."""
        self._taken = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            ticket = self._ticket
            if self._items:
                return self._pop()
            if self._tail is not None:
                self._finish(StopIteration)
            ticket._wait(None if deadline is None else deadline - time.monotonic())

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        import asyncio

        async with asyncio.timeout(self._timeout):
            while True:
                ticket = self._ticket
                if self._items:
                    return self._pop()
                if self._tail is not None:
                    self._finish(StopAsyncIteration)
                await ticket

    def close(self) -> None:
        """End the generator; what it has yielded already is dropped."""
        if self._tail is None:
            self._tail = (READY, None)
            self._link.forget(self._number)
            self._link.post((CANCEL, self._number))

    def __del__(self) -> None:
        self.close()

    def _pop(self) -> Any:
        value = decode(self._items.popleft())
        self._taken += 1
        if self._taken * 2 >= self.CREDIT and self._tail is None:
            self._link.post((GRANT, self._number, self._taken))
            self._taken = 0
        return value

    def _finish(self, end: type[Exception]) -> None:
        assert self._tail is not None
        state, value = self._tail
        if state == FAILED:
            self._tail = (RAISED, decode_error(value))
            raise self._tail[1]
        if state == RAISED:
            raise value
        raise end

    # --- what the link does -------------------------------------------------------------------------------------------

    def _take(self, values: list[Any], wakes: Any) -> None:
        self._items.extend(values)
        self._turn(wakes)

    def _settle(self, state: int, value: Any, wakes: Any) -> None:
        self._tail = (state, value)
        self._turn(wakes)

    def _turn(self, wakes: Any) -> None:
        ticket, self._ticket = self._ticket, Result(None, 0)
        assert ticket._state == PENDING
        ticket._settle(READY, None, wakes)
