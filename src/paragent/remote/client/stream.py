"""What a remote generator yields, item by item, no further ahead of its reader than agreed."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from paragent.remote.client.result import FAILED, RAISED, READY, Result
from paragent.remote.protocol import GrantCredit
from paragent.remote.values import decode, decode_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from paragent.remote.client.link import Link

__all__ = ["Inbox", "RemoteStream"]


class Inbox:
    """Where a link puts what a generator has yielded. The link keeps it, so that the stream itself can be dropped."""

    __slots__ = ("_size", "items", "tail", "ticket")

    def __init__(self) -> None:
        self._size = 0
        self.items: deque[Any] = deque()
        self.tail: tuple[int, Any] | None = None
        """How it ended: the state of a result and what came with it."""
        self.ticket = Result(None, 0)
        """Stands for the next arrival; replaced each time."""

    def _take(self, values: list[Any], wakes: Any) -> None:
        self.items.extend(values)
        self._turn(wakes)

    def _settle(self, state: int, value: Any, wakes: Any) -> None:
        self.tail = (state, value)
        self._turn(wakes)

    def _turn(self, wakes: Any) -> None:
        ticket, self.ticket = self.ticket, Result(None, 0)
        ticket._settle(READY, None, wakes)


class RemoteStream:
    """The stream of a remote generator: iterate it with `for` or `async for`, once.

    The generator runs at most `CREDIT` items ahead of its reader. Leaving the loop early and dropping the stream, or
    `close()`, ends it there. An item later than the agent's `timeout` raises `TimeoutError`; one that takes longer than
    that to make ends the stream on its server too, whether or not somebody reads it.
    """

    CREDIT = 16
    """Items ahead: enough to hide a round trip, few enough that large ones do not fill memory."""

    __slots__ = ("__weakref__", "_inbox", "_link", "_number", "_taken", "_timeout")

    def __init__(self, link: Link, number: int, inbox: Inbox, timeout: float | None) -> None:
        self._link, self._number, self._inbox, self._timeout = link, number, inbox, timeout
        self._taken = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        inbox = self._inbox
        while True:
            ticket = inbox.ticket
            if inbox.items:
                return self._pop()
            if inbox.tail is not None:
                self._finish(StopIteration)
            ticket._wait(None if deadline is None else deadline - time.monotonic())

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        import asyncio

        inbox = self._inbox
        async with asyncio.timeout(self._timeout):
            while True:
                ticket = inbox.ticket
                if inbox.items:
                    return self._pop()
                if inbox.tail is not None:
                    self._finish(StopAsyncIteration)
                await ticket

    def close(self) -> None:
        """End the generator; what it has yielded already is dropped."""
        if self._inbox.tail is None:
            self._inbox.tail = (READY, None)
            self._inbox.items.clear()
            self._link.end_stream(self._number)

    def __del__(self) -> None:
        self.close()

    def _pop(self) -> Any:
        value = decode(self._inbox.items.popleft())
        self._taken += 1
        if self._taken * 2 >= self.CREDIT and self._inbox.tail is None:
            self._link.post(GrantCredit(self._number, self._taken))
            self._taken = 0
        return value

    def _finish(self, end: type[Exception]) -> None:
        assert self._inbox.tail is not None
        state, value = self._inbox.tail
        if state == FAILED:
            state, value = self._inbox.tail = (RAISED, decode_error(value))
        if state == RAISED:
            raise value
        raise end
