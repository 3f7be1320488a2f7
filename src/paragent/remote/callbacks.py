"""Callbacks of lazy results: one thread of the program runs them, so that they may block and use other results."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from paragent._internal.threads import start_thread, write_traceback
from paragent.remote.placement import limit_of_thread, limit_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.transport.address import Address

__all__ = ["Callback", "start_callbacks"]

_log = logging.getLogger("paragent.remote")

_lock = threading.Lock()
"""Protects `_threads`."""
_threads: list[threading.Thread] = []
"""The thread, once it was started."""


class Callback:
    """A function that is called once with a result: by the thread, or by the thread that adds it.

    Args:
        function: the function.
        result: its argument.
    """

    __slots__ = ("_limit", "_result", "_waiting")

    def __init__(self, function: Callable[[Any], object], result: Any) -> None:
        self._waiting = [function]
        """Empty once a thread has taken the function."""
        self._result = result
        self._limit: frozenset[Address] | None = limit_of_thread()
        """What the code that adds the callback may use: it may belong to an agent of a restricted server."""

    def run_later(self) -> None:
        """Have the thread run it; never blocks."""
        _queue.put(self)

    def run(self) -> None:
        """Call the function, unless another thread has done so; an exception is logged."""
        try:
            function = self._waiting.pop()
        except IndexError:
            return
        before = limit_of_thread()
        limit_thread(self._limit)
        try:
            function(self._result)
        except Exception:  # noqa: BLE001 - an error of the user's function
            _log.exception("a callback of %r failed", self._result)
        finally:
            limit_thread(before)


_queue: SimpleQueue[Callback] = SimpleQueue()


def start_callbacks() -> None:
    """Start the thread, unless it runs."""
    with _lock:
        if not _threads:
            _threads.append(start_thread(_run, name="paragent-callbacks", failed=_failed))


def _run() -> None:
    while True:
        _queue.get().run()


def _failed(name: str, error: BaseException) -> None:
    write_traceback(f"the thread {name!r} ended: a callback of a result raised {type(error).__name__}", error)
    with _lock:
        _threads.clear()
    start_callbacks()
