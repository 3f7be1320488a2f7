"""Waiting for somebody else, without charging them for the time in which this process did not run.

A library that holds the interpreter for seconds (Ray does so when it starts), or a machine that is overloaded, keeps the I/O
loop from looking at what has arrived. By the wall clock the other side is then late although its answer lies here.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["Patience"]

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
