"""Stream of a remote generator: items arrive ahead of their reader, up to a credit."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from paragent.errors import CallTimedOut, UsageError
from paragent.remote.protocol import GrantCredit
from paragent.remote.result import FAILED, RAISED, READY, RemoteCall
from paragent.remote.values import decode, decode_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

    from paragent.remote.link import Link
    from paragent.remote.result import Wakeups

__all__ = ["RemoteStream", "StreamBuffer"]

T = TypeVar("T")
V = TypeVar("V")


class StreamBuffer:
    """Items of one stream that have arrived and are not read yet.

    The link keeps the buffer, so that the stream itself can be dropped. The I/O loop fills it, the reader's thread empties it.
    """

    __slots__ = ("arrival", "end", "items", "keeps", "number", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.size = 0
        """Bytes that the call counts for in the window of its link."""
        self.keeps: list[Any] | None = None
        """Results and proxies among the arguments, which must live until the stream has ended."""
        self.items: deque[Any] = deque()
        self.end: tuple[int, Any] | None = None
        """How the stream ended: the state and the value of its call."""
        self.arrival = RemoteCall()
        """Settled by the next arrival, and then replaced."""

    def add(self, values: list[Any], wakeups: Wakeups) -> None:
        """Add items that have arrived."""
        self.items.extend(values)
        self._notify(wakeups)

    def settle(self, state: int, value: Any, wakeups: Wakeups) -> None:
        """Record how the stream ended."""
        self.keeps = None
        self.end = (state, value)
        self._notify(wakeups)

    def _notify(self, wakeups: Wakeups) -> None:
        arrival, self.arrival = self.arrival, RemoteCall()
        arrival.settle(READY, None, wakeups)


class RemoteStream(Generic[T]):
    """Stream of a remote generator: iterate it once, with `for` or `async for`.

    The generator runs at most 16 items (`CREDIT`) ahead of its reader. Dropping the stream, or `close()`, ends the generator.
    If an item does not arrive within the agent's `timeout`, `CallTimedOut` is raised and the generator ends. The server ends a
    stream whose generator takes longer than that for one item.
    """

    CREDIT = 16
    """Items ahead: enough to hide a round trip, few enough that large items do not fill memory."""

    __slots__ = ("__weakref__", "_buffer", "_label", "_link", "_taken", "_timeout")

    def __init__(self, link: Link, buffer: StreamBuffer, timeout: float | None, label: str) -> None:
        self._link, self._buffer, self._timeout = link, buffer, timeout
        self._label = label
        """The class and the method, for errors."""
        self._taken = 0
        """Items taken since the last `GrantCredit`."""

    @staticmethod
    def of(stream: Iterable[V] | AsyncIterable[V]) -> RemoteStream[V]:
        """Return what a generator method of a remote agent returned, as it is. Type checkers then know its type.

        Raises:
            UsageError: it is not a stream of a remote agent.
        """
        if not isinstance(stream, RemoteStream):
            raise UsageError(f"RemoteStream.of takes what a generator of a remote agent returns, not {stream!r}")
        return stream

    def __reduce__(self) -> NoReturn:
        """Reject pickling.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"the stream of {self._label} is read in the process that made the call. A method that passes items on is a "
            "generator: `yield from stream`, or `async for item in stream: yield item`; to return all items, use list(stream)"
        )

    def __repr__(self) -> str:
        ended = self._buffer.end is not None and not self._buffer.items
        return f"<RemoteStream of {self._label}: {'ended' if ended else 'open'}>"

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        self._link.fail_if_lost()  # in a forked process nothing else ends the stream
        buffer = self._buffer
        while True:
            arrival = buffer.arrival
            if buffer.items:
                return self._pop()
            if buffer.end is not None:
                self._finish(StopIteration)
            try:
                arrival.wait(None if deadline is None else deadline - time.monotonic())
            except TimeoutError:
                self._expire()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        import asyncio

        deadline = None if self._timeout is None else asyncio.get_running_loop().time() + self._timeout
        self._link.fail_if_lost()
        buffer = self._buffer
        while True:
            arrival = buffer.arrival
            if buffer.items:
                return self._pop()
            if buffer.end is not None:
                self._finish(StopAsyncIteration)
            try:
                async with asyncio.timeout_at(deadline):
                    await arrival
            except TimeoutError:
                self._expire()

    def close(self) -> None:
        """End the generator and drop the items that have arrived."""
        if self._buffer.end is None:
            self._buffer.end = (READY, None)
            self._buffer.items.clear()
            self._link.end_stream(self._buffer.number)

    def _expire(self) -> None:
        """Handle an item that is late: end the generator, and have the next `_finish` raise `CallTimedOut`."""
        if self._buffer.end is None and not self._buffer.items:
            self.close()
            self._buffer.end = (RAISED, CallTimedOut(f"{self._label}: no item within {self._timeout} s"))

    def __del__(self) -> None:
        self.close()

    def _pop(self) -> T:
        value: T = decode(self._buffer.items.popleft())
        self._taken += 1
        if self._taken * 2 >= self.CREDIT and self._buffer.end is None:
            self._link.post(GrantCredit(self._buffer.number, self._taken))
            self._taken = 0
        return value

    def _finish(self, end: type[Exception]) -> None:
        assert self._buffer.end is not None
        state, value = self._buffer.end
        if state == FAILED:
            state, value = self._buffer.end = (RAISED, decode_error(value))
        if state == RAISED:
            raise value
        raise end
