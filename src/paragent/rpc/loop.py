"""The one event loop of a process on which all gRPC traffic runs, in a thread of its own.

User code never runs here, so nothing that a user's code does can keep a connection from answering.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["io_loop", "run"]

T = TypeVar("T")

_lock = threading.Lock()
"""Makes the loop start once."""
_loop: asyncio.AbstractEventLoop | None = None


def io_loop() -> asyncio.AbstractEventLoop:
    """Return the loop; the first call starts its thread."""
    global _loop
    if _loop is None:
        with _lock:
            if _loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="paragent-io", daemon=True).start()
                _loop = loop
    return _loop


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
