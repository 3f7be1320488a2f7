"""Limits: sizes and counts that a server accepts, a token bucket, and a budget of waiting time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from paragent._internal.validation import at_least, check_fields

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["CALL_BYTES", "MESSAGE_BYTES", "Limits", "TimeBudget", "TokenBucket"]


MESSAGE_BYTES = 1 << 20
"""Largest gRPC message in bytes. Larger data is split, so that a connection does not buffer a large object several times. At
1 MiB the fixed cost of a message (about 0.1 ms) is small compared with copying its bytes."""

CALL_BYTES = 256
"""Bytes that a call counts in the window besides its arguments: about the memory that both sides need for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one server. Each can be changed; none can be disabled.

    Raises:
        ConfigError: a limit is not an integer of at least 1.
    """

    frame_bytes: int = 4 << 30
    """Largest single argument or result."""
    window_bytes: int = 512 << 20
    """Size of all pending calls of one client: 256 bytes for each call plus its arguments, so two million small calls. Callers
    wait beyond this limit. If a client does not make them wait, the server rejects its calls beyond twice the limit."""
    results_bytes: int = 256 << 20
    """Results that are waiting to be sent to one client. While a slow client exceeds this limit, none of its calls start."""
    kept_bytes: int = 8 << 30
    """Results of one client that stay on the server until they are read. A call whose result exceeds the limit fails."""
    nesting: int = 100
    """Nested containers in an argument."""
    items_per_second: int = 1_000_000
    """Calls and other requests of one client; the server reads a faster client more slowly. Normal clients do not reach it
    (150,000 trivial calls per second keep a core busy); it limits the cost of meaningless messages."""
    sessions: int = 1_000
    """Concurrent clients."""
    agents: int = 20_000_000
    """Agents on the server."""
    handshakes: int = 64
    """Concurrent unauthenticated peers; one more replaces the oldest."""
    handshakes_per_second: int = 500
    """New handshakes; peers beyond this rate must try again. A port scanner makes thousands. A thousand clients that
    reconnect after a failure all succeed within two seconds."""
    threads: int = 2_000
    """Sync methods that run concurrently: each occupies a thread."""

    def __post_init__(self) -> None:
        check_fields(self, dict.fromkeys(self.__slots__, at_least(1)), "the limit {}".format)


class TokenBucket:
    """Allows `rate` events per second, and bursts of up to `rate` events."""

    __slots__ = ("_rate", "_tokens", "_updated")

    def __init__(self, rate: int, now: float) -> None:
        self._rate, self._tokens, self._updated = rate, float(rate), now

    def take(self, count: int, now: float) -> float:
        """Take tokens for `count` events that have happened; return the seconds to wait before the next event."""
        self._refill(now)
        self._tokens -= count
        return max(0.0, -self._tokens / self._rate)

    def try_take(self, now: float) -> bool:
        """Take the token for one event; return False if there is none."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self, now: float) -> None:
        self._tokens = min(float(self._rate), self._tokens + (now - self._updated) * self._rate)
        self._updated = now


T = TypeVar("T")

_TICK = 0.05
"""Seconds between two checks. A check that comes more than twice as late was delayed by this process, and counts as two."""


class TimeBudget:
    """Seconds that may be spent on waiting. Belongs to one event loop.

    Time in which this process could not run (for example because native code held the interpreter) is not charged, since an
    answer may have arrived meanwhile.
    """

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`.

        Raises:
            TimeoutError: the budget is used up; `work` was cancelled.
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
                task.exception()  # retrieved, so that asyncio does not log it
            raise
        return task.result()
