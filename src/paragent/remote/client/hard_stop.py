"""Hard stop: ends the process of an agent that has one of its own if a call that was cancelled there does not end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from paragent.errors import AgentStopped, ParagentError
from paragent.transport.limits import TimeBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.client.link import Link

__all__ = ["HardStop"]

_ANSWER = 5.0
"""Seconds in which a server says what it is doing. One that does not is held by native code that does not let go of the
interpreter; nothing inside it can stop that."""


class HardStop:
    """Watches the cancelled calls of one agent's own process. Belongs to the I/O loop.

    Args:
        link: the link to the process.
        kill: ends the process and whatever it started.
        grace: seconds that a call has to end after it was cancelled.
    """

    def __init__(self, link: Link, kill: Callable[[], None], grace: float) -> None:
        self._link, self._kill, self._grace = link, kill, grace
        self._watched: dict[int, str] = {}
        """Calls that were cancelled since the last look, and how."""
        self._task: asyncio.Task[None] | None = None

    def watch(self, number: int, how: str) -> None:
        """End the process if this call, which was cancelled just now, still runs when the grace is over."""
        self._watched[number] = how
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._enforce())

    async def _enforce(self) -> None:
        try:
            while self._watched:
                watched, self._watched = self._watched, {}
                await asyncio.sleep(self._grace)
                if (running := await self._running(list(watched))) is not None:
                    self._end(watched[running])
        finally:
            self._task = None

    async def _running(self, numbers: list[int]) -> int | None:
        """Return the number of a call that still runs, or None; the first one if the process does not say."""
        if self._link.lost is not None or self._link.connection.stream is None:
            return None  # nothing runs in a process that is gone, or that has not started yet
        try:
            running = await TimeBudget(_ANSWER).run(_value(self._link.control("running", numbers)))
        except TimeoutError:
            return numbers[0] if self._link.lost is None else None
        except ParagentError:
            return None  # the process is gone by itself
        return running[0] if running else None

    def _end(self, how: str) -> None:
        self._link.ledger.lose(
            AgentStopped(f"the process of the agent was ended: a call {how} and did not end within {self._grace:g} s")
        )
        self._kill()


async def _value(result: Any) -> Any:
    return await result
