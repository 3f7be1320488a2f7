"""Flow control: credit of streams, results that wait to be sent, and results that stay on the server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from paragent._internal.clock import monotonic
from paragent.errors import LimitExceeded, ProtocolError
from paragent.remote.protocol import CallError, CallResult
from paragent.remote.values import encode_error, size_of
from paragent.transport.limits import MESSAGE_BYTES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from paragent.remote.protocol import OutcomeKind
    from paragent.remote.server.actors import ActorCall

__all__ = ["ResultBacklog", "ResultCache", "StreamCredit"]


class StreamCredit:
    """Number of items that a generator may send. The reader grants more; the generator waits while there is none."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._closed = False
        self._changed = threading.Condition()
        """Protects all attributes."""
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self.since: float | None = None
        """When the generator started to produce the current item; None while it waits for credit."""

    def grant(self, count: int) -> None:
        """Allow more items."""
        with self._changed:
            self._count += count
            self._wake()

    def close(self) -> None:
        """End the stream: a waiting generator continues and `take` returns False."""
        with self._changed:
            self._closed = True
            self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._waiting is not None:
            loop, event = self._waiting
            loop.call_soon_threadsafe(event.set)

    def take(self) -> bool:
        """Wait until an item may be sent; return False if the stream was closed."""
        with self._changed:
            self.since = None
            self._changed.wait_for(lambda: self._count > 0 or self._closed)
            return self._take_one()

    async def take_async(self) -> bool:
        """As `take`, on an event loop."""
        import asyncio

        while True:
            with self._changed:
                self.since = None
                if self._count > 0 or self._closed:
                    return self._take_one()
                event = asyncio.Event()
                self._waiting = (asyncio.get_running_loop(), event)
            await event.wait()

    def _take_one(self) -> bool:
        self._count -= 1
        self.since = monotonic()
        return not self._closed


_COUNTED = 512
"""Minimum bytes of a result that is counted. Smaller ones are bounded by the number of pending calls."""


class ResultBacklog:
    """Bytes of results that a client has not read. Any thread may use it.

    Args:
        limit: bytes from which on no call of the client may start, until half of them have been sent.
        unpark: starts the calls that waited.
    """

    def __init__(self, limit: int, unpark: Callable[[list[ActorCall]], None]) -> None:
        self.full = False
        """Whether the limit is exceeded, so that no call may start."""
        self.size = 0
        """Bytes of counted results."""
        self._limit = limit
        self._unpark = unpark
        self._lock = threading.Lock()
        """Protects all other attributes."""
        self._parked: list[ActorCall] = []
        """Calls that could not start because it was full."""

    def add(self, size: int) -> None:
        """Count a result that waits to be sent."""
        if size >= _COUNTED:
            with self._lock:
                self.size += size
                self.full = self.full or self.size > self._limit

    def remove(self, size: int) -> None:
        """Count a result as sent; start parked calls if enough have been sent."""
        if size < _COUNTED:
            return
        parked: list[ActorCall] = []
        with self._lock:
            self.size -= size
            if self.full and self.size <= self._limit // 2:
                self.full = False
                parked, self._parked = self._parked, []
        if parked:
            self._unpark(parked)

    def park(self, call: ActorCall) -> bool:
        """Park a call until results have been sent; return False if it may start now."""
        with self._lock:
            if self.full:
                self._parked.append(call)
            return self.full

    def end(self) -> list[ActorCall]:
        """Stop limiting; return the parked calls."""
        with self._lock:
            self.full = False
            parked, self._parked = self._parked, []
        return parked


_HOLD_BYTES = MESSAGE_BYTES
"""Minimum bytes of a result that stays on the server until the client asks for it."""

_MAX_RESULTS = 4_000_000
"""Results of one client: twice the number of calls that may be pending."""


class ResultCache(dict[int, list[Any]]):
    """Results of one client that stay on the server: by call number, `[holders, kind, value]`; kind is None while the call runs.

    Args:
        limit: bytes of all results together; a result beyond that becomes an error.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self.total_bytes = 0
        """Bytes of all results in the cache."""

    def hold(self, number: int, kind: OutcomeKind | None, value: Any) -> None:
        """Add a result with one holder.

        Raises:
            ProtocolError: the client has too many results.
        """
        if len(self) >= _MAX_RESULTS:
            raise ProtocolError(f"a client keeps more than {_MAX_RESULTS} results on the server")
        self[number] = [1, kind, value]
        self.total_bytes += size_of(value)

    def release(self, number: int) -> None:
        """Remove one holder of a result; without holders the result is dropped."""
        kept = self.get(number)
        if kept is not None:
            kept[0] -= 1
            if kept[0] <= 0:
                del self[number]
                self.total_bytes -= size_of(kept[2])

    def settle(self, number: int, kind: OutcomeKind, value: Any) -> tuple[OutcomeKind, Any, bool]:
        """Store an outcome if needed; return it (an error if there is no room), and whether it stays on the server."""
        packed = size_of(value)
        large = packed >= _HOLD_BYTES and kind is CallResult
        kept = self.get(number)
        if (large or kept is not None) and self.total_bytes + packed > self._limit:
            kind, value, large = CallError, encode_error(_too_much(self.total_bytes)), False
            packed = size_of(value)
        if kept is not None:
            kept[1:] = kind, value
            self.total_bytes += packed
        elif large:
            kept = self[number] = [0, kind, value]
            self.total_bytes += packed
        if large:
            assert kept is not None
            kept[0] += 1
        return kind, value, large


def _too_much(kept: int) -> LimitExceeded:
    return LimitExceeded(
        f"this server keeps {kept >> 20} MiB of results for this client, nearly its limit; read some of them or drop them"
    )
