"""What a server accepts before it says no."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["CALL_BYTES", "MESSAGE_BYTES", "Limits", "Pace", "Patience"]


MESSAGE_BYTES = 1 << 20
"""The largest piece sent at a time. Larger things travel in pieces, so that one of them does not hold a connection's
memory many times over; at 1 MiB the cost of a message (about 0.1 ms) is small against copying its bytes."""

CALL_BYTES = 256
"""What a call weighs in the window besides its arguments: about what both sides keep of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one server. Every one can be changed; none can be switched off.

    Raises:
        ConfigError: a bound is not a whole number of at least 1.
    """

    frame_bytes: int = 4 << 30
    """The largest single argument or result."""
    window_bytes: int = 512 << 20
    """What the calls of one client under way may weigh together, 256 bytes each and their arguments, so two million small
    calls. Callers beyond that wait; a client that does not make them wait has calls beyond twice that refused."""
    results_bytes: int = 256 << 20
    """Results on their way to one client. While a client that reads slowly has so many, no further call of it begins."""
    kept_bytes: int = 8 << 30
    """Results of one client that stay on the server until they are looked at; a call whose result would be too much fails."""
    nesting: int = 100
    """Levels of containers within containers in an argument."""
    items_per_second: int = 1_000_000
    """Calls and other things that one client may ask for; a faster one is read more slowly. Nobody gets near it (150,000
    trivial calls a second keep a core busy), so it only bounds what nonsense can cost."""
    sessions: int = 1_000
    """Clients at a time."""
    agents: int = 20_000_000
    """Agents at a time."""
    handshakes: int = 64
    """Peers at a time that have not yet proved who they are; one more takes the place of the oldest."""
    handshakes_per_second: int = 500
    """Peers that begin to prove who they are; those beyond it are asked to try again. A scanner of ports makes thousands, a
    thousand clients that all come back after a failure are through in two seconds."""
    threads: int = 2_000
    """Sync methods at a time: each occupies a thread while it runs."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"the limit {name} must be a whole number of at least 1, not {value!r}")


class Pace:
    """Allows `rate` things a second, and a second's worth at once after a rest."""

    __slots__ = ("_left", "_rate", "_then")

    def __init__(self, rate: int, now: float) -> None:
        self._rate, self._left, self._then = rate, float(rate), now

    def take(self, count: int, now: float) -> float:
        """Count things that have happened; return the seconds to wait until more may."""
        self._fill(now)
        self._left -= count
        return max(0.0, -self._left / self._rate)

    def allows(self, now: float) -> bool:
        """Return whether one more may happen now; it is counted if so."""
        self._fill(now)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _fill(self, now: float) -> None:
        self._left = min(float(self._rate), self._left + (now - self._then) * self._rate)
        self._then = now


T = TypeVar("T")

_TICK = 0.05
"""Seconds between two looks. A look that comes later than twice that was kept from coming, and counts as twice that."""


class Patience:
    """Seconds that may be spent on waiting; belongs to one event loop."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    async def spend(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns.

        Raises:
            TimeoutError: nothing is left and the work has not ended; it is cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                if self.left <= 0:
                    raise TimeoutError
                before = time.monotonic()
                await asyncio.wait([task], timeout=min(_TICK, self.left))
                self.left -= min(time.monotonic() - before, 2 * _TICK)
        except BaseException:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # looked at, so that nobody is told that it was not
            raise
        return task.result()
