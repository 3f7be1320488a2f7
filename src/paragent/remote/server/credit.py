"""How many items a stream may still send: the back-pressure of generators."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from paragent._clock import monotonic

if TYPE_CHECKING:
    import asyncio

__all__ = ["Credit"]


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
