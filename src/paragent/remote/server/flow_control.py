"""How many items a stream may still send: the back-pressure of generators."""

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
    from paragent.remote.server.actors import Call

__all__ = ["Backlog", "Credit", "Kept"]


class Credit:
    """A count that the reader raises and the generator takes from, waiting while there is none."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._closed = False
        self._changed = threading.Condition()
        """Protects everything here."""
        self._sleeper: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self.since: float | None = None
        """When the item was begun that is being made; None while the generator waits here."""

    def grant(self, count: int) -> None:
        """Allow more items."""
        with self._changed:
            self._count += count
            self._wake()

    def close(self) -> None:
        """Let whoever waits go on: the stream is over."""
        with self._changed:
            self._closed = True
            self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._sleeper is not None:
            loop, event = self._sleeper
            loop.call_soon_threadsafe(event.set)

    def take(self) -> bool:
        """Wait until an item may be sent; return False if the stream is over."""
        with self._changed:
            self.since = None
            self._changed.wait_for(lambda: self._count > 0 or self._closed)
            return self._taken()

    async def take_async(self) -> bool:
        """As `take`, on an event loop."""
        import asyncio

        while True:
            with self._changed:
                self.since = None
                if self._count > 0 or self._closed:
                    return self._taken()
                event = asyncio.Event()
                self._sleeper = (asyncio.get_running_loop(), event)
            await event.wait()

    def _taken(self) -> bool:
        self._count -= 1
        self.since = monotonic()
        return not self._closed


_COUNTED = 512
"""Bytes from which on a result counts as on its way. Smaller ones are bounded by the number of calls under way."""


class Backlog:
    """The bytes of results that a client has not read. Any thread may use it.

    Args:
        most: bytes from which on no further call of the client may begin, until half of them are read.
        unpark: begins the calls that waited for that.
    """

    def __init__(self, most: int, unpark: Callable[[list[Call]], None]) -> None:
        self.full = False
        """Whether so many results are on their way that no further call may begin."""
        self.size = 0
        """Bytes of results on their way, without the small ones."""
        self._most = most
        self._unpark = unpark
        self._filling = threading.Lock()
        """Protects everything that changes here."""
        self._parked: list[Call] = []
        """Calls whose turn came while it was full."""

    def add(self, size: int) -> None:
        """Count a result that is to be sent."""
        if size >= _COUNTED:
            with self._filling:
                self.size += size
                self.full = self.full or self.size > self._most

    def remove(self, size: int) -> None:
        """Count a result as sent, and begin calls if that makes room for them."""
        if size < _COUNTED:
            return
        parked: list[Call] = []
        with self._filling:
            self.size -= size
            if self.full and self.size <= self._most // 2:
                self.full = False
                parked, self._parked = self._parked, []
        if parked:
            self._unpark(parked)

    def park(self, call: Call) -> bool:
        """Keep a call until the client has read some of what it was sent; return False if it has, by now."""
        with self._filling:
            if self.full:
                self._parked.append(call)
            return self.full

    def end(self) -> list[Call]:
        """Wait for the client no more; return the calls that did."""
        with self._filling:
            self.full = False
            parked, self._parked = self._parked, []
        return parked


_HOLD_BYTES = MESSAGE_BYTES
"""Results from this size on stay here until they are asked for."""

_MOST_KEPT = 4_000_000
"""Results of one client, twice as many as it may have calls under way."""


class Kept(dict[int, list[Any]]):
    """By the number of a call: `[holders, kind, value]`; kind is None while the call is under way.

    Args:
        most: bytes of all of them together; a result beyond that becomes an error.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._bytes = 0

    def hold(self, number: int, kind: OutcomeKind | None, value: Any) -> None:
        """Keep what nobody has held yet.

        Raises:
            ProtocolError: there are too many.
        """
        if len(self) >= _MOST_KEPT:
            raise ProtocolError(f"a client that has more than {_MOST_KEPT} results kept")
        self[number] = [1, kind, value]
        self._bytes += size_of(value)

    def release(self, number: int) -> None:
        """Note that a holder less needs a result; without any it is forgotten."""
        kept = self.get(number)
        if kept is not None:
            kept[0] -= 1
            if kept[0] <= 0:
                del self[number]
                self._bytes -= size_of(kept[2])

    def settle(self, number: int, kind: OutcomeKind, value: Any) -> tuple[OutcomeKind, Any, bool]:
        """Take the outcome of a call; return what it is now, and whether it stays here until the client asks for it."""
        packed = size_of(value)
        large = packed >= _HOLD_BYTES and kind is CallResult
        kept = self.get(number)
        if (large or kept is not None) and self._bytes + packed > self._most:
            kind, value, large = CallError, encode_error(_too_much(self._bytes)), False
            packed = size_of(value)
        if kept is not None:
            kept[1:] = kind, value
            self._bytes += packed
        elif large:
            kept = self[number] = [0, kind, value]
            self._bytes += packed
        if large:
            assert kept is not None
            kept[0] += 1
        return kind, value, large


def _too_much(kept: int) -> LimitExceeded:
    return LimitExceeded(
        f"this server keeps {kept >> 20} MiB of results for this client, nearly its limit; look at some or drop them"
    )
