"""Notices calls that block the event loop of a worker, so that the other calls are not charged for that time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from paragent._internal.threads import start_thread

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["BlockedLoop", "LoopWatch"]

_PERIOD = 0.2
"""Seconds between two requests to the event loop."""
_BLOCKED_AFTER = 0.5
"""Seconds without an answer after which the loop counts as blocked. With `_PERIOD`, less than the time that the engine waits
after a time limit before it kills the worker."""


class BlockedLoop:
    """Receives which call blocks the event loop; `since` is a `time.monotonic()`."""

    def begin(self, number: int, since: float) -> None:
        """The call `number` has blocked the loop since then."""

    def end(self) -> None:
        """The loop runs again."""


class LoopWatch:
    """A thread that asks the event loop for an answer a few times a second while calls run on it.

    Code that holds the interpreter lock is not noticed, because it stops this thread, too.

    Args:
        loop: the event loop.
        blocked: receives which call blocks it.
        current: returns the number of the call whose step the loop executes; None: unknown.
        charge: called on the loop, before anything else that waited, with the number of the call that blocked it and the seconds.
        failed: called with the name of the thread and its error if it ends unexpectedly; None: end this process.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        blocked: BlockedLoop,
        current: Callable[[], int | None],
        charge: Callable[[int, float], None],
        failed: Callable[[str, BaseException], object] | None,
    ) -> None:
        self._loop = loop
        self._blocked = blocked
        self._current = current
        self._charge = charge
        self._wanted = threading.Event()
        self._blocking: int | None = None
        """Written by the watching thread while the loop is blocked, and by the loop afterwards."""
        start_thread(self._watch, name="paragent-loop-watch", failed=failed)

    def wake(self) -> None:
        """Watch: a call begins. Must be cheap."""
        if not self._wanted.is_set():
            self._wanted.set()

    def rest(self) -> None:
        """Stop watching until `wake`: no call runs."""
        self._wanted.clear()

    def _watch(self) -> None:
        while self._wanted.wait():
            answered = threading.Event()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer, asked, answered)
            except RuntimeError:  # the loop is closed
                return
            if not answered.wait(_BLOCKED_AFTER):
                self._blocking = self._current()
                if self._blocking is not None:
                    self._blocked.begin(self._blocking, asked)
                while not answered.wait(_PERIOD):
                    if self._loop.is_closed():
                        return
            time.sleep(_PERIOD)

    def _answer(self, asked: float, answered: threading.Event) -> None:
        blocking, self._blocking = self._blocking, None
        if blocking is not None:
            self._charge(blocking, time.monotonic() - asked)
            self._blocked.end()
        answered.set()
