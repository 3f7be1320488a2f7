"""The one event loop of a process on which all gRPC traffic runs, in a thread of its own.

User code never runs here, so nothing that a user's code does can keep a connection from answering.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from paragent._internal.threads import run_loop, start_thread, write_traceback

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["io_loop", "on_failure", "run"]

T = TypeVar("T")

_lock = threading.Lock()
"""Makes the loop start once."""
_loop: asyncio.AbstractEventLoop | None = None
_told: list[Callable[[str, BaseException], object]] = []
"""Who is told if the loop ends unexpectedly."""


def io_loop() -> asyncio.AbstractEventLoop:
    """Return the loop; the first call starts its thread."""
    global _loop
    if _loop is None:
        with _lock:
            if _loop is None:
                loop = asyncio.new_event_loop()
                start_thread(run_loop, loop, name="paragent-io", failed=_failed)
                _loop = loop
    return _loop


def on_failure(tell: Callable[[str, BaseException], object]) -> None:
    """Have `tell` called with the thread's name and the error if the loop ever ends; telling it twice does nothing.

    A client fails what waits for an answer, a server ends its process. The next use of the loop starts another one.
    """
    if tell not in _told:
        _told.append(tell)


def _failed(name: str, error: BaseException) -> None:
    global _loop
    write_traceback(f"the thread {name!r} ended unexpectedly; what waits for a server fails", error)
    _loop = None
    for tell in _told:
        tell(name, error)


def run(work: Coroutine[Any, Any, T], timeout: float) -> T:
    """Run `work` on the loop and wait for it from another thread.

    Raises:
        TimeoutError: it took longer than `timeout` seconds; it is cancelled.
    """
    future = asyncio.run_coroutine_threadsafe(work, io_loop())
    try:
        return future.result(timeout)
    except TimeoutError:
        future.cancel()
        raise


def _forget() -> None:
    global _loop, _lock
    _loop = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)
