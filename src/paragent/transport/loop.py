"""The I/O loop: one event loop per process, in its own thread, that runs all gRPC traffic.

User code never runs on it, so user code cannot keep a connection from answering.

gRPC does not work in a process that was forked after it was used: connections of the child hang, and may block those of the
parent. There `io_loop`, which everything that uses gRPC needs, raises `UsageError`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from paragent._internal.threads import run_loop, start_thread, write_traceback
from paragent.errors import ServerLost, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

__all__ = ["fork_error", "io_loop", "is_forked", "is_running", "off_failure", "on_failure", "run", "submit"]

T = TypeVar("T")

_lock = threading.Lock()
"""Makes the loop start once."""
_loop: asyncio.AbstractEventLoop | None = None
_started = False
"""Whether the loop was ever started, so that gRPC may have been used."""
_forked = False
"""Whether this process was forked from one in which the loop was started."""
_callbacks: list[Callable[[str, BaseException], object]] = []
"""Called if the loop ends unexpectedly."""
_submitted: set[Future[Any]] = set()
"""Futures of `submit` that are not done. Adding and discarding are single operations, so no lock is needed."""


def io_loop() -> asyncio.AbstractEventLoop:
    """Return the I/O loop; the first call starts its thread.

    Raises:
        UsageError: this process was forked from one that had used the loop.
    """
    global _loop, _started
    if _loop is None:
        if _forked:
            raise fork_error()
        with _lock:
            if _loop is None:
                loop = asyncio.new_event_loop()
                _started = True
                start_thread(run_loop, loop, name="paragent-io", failed=_failed)
                _loop = loop
    return _loop


def is_forked() -> bool:
    """Whether this process was forked from one that had used the loop, so that `io_loop` raises."""
    return _forked


def fork_error() -> UsageError:
    """Return the error of using the loop in a process that was forked from one that had used it."""
    return UsageError(
        "this process was forked after remote agents, a pool or another service of paragent were used, and their connections "
        "(gRPC) do not work in forked processes: use the start method 'spawn' or 'forkserver', with "
        "multiprocessing.set_start_method('spawn') or ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn'))"
    )


def is_running() -> bool:
    """Whether the thread of the loop has been started, so that there can be connections."""
    return _loop is not None


def on_failure(callback: Callable[[str, BaseException], object]) -> None:
    """Call `callback` with the thread's name and the error if the loop ends unexpectedly. Registering twice has no effect.

    Clients use it to fail calls that wait for an answer, servers to end their process. The next use of the loop starts a
    new one. Work that was started with `submit` or `run` fails without a callback.
    """
    if callback not in _callbacks:
        _callbacks.append(callback)


def off_failure(callback: Callable[[str, BaseException], object]) -> None:
    """Undo `on_failure(callback)`."""
    if callback in _callbacks:
        _callbacks.remove(callback)


def _failed(name: str, error: BaseException) -> None:
    global _loop
    write_traceback(f"the thread {name!r} ended unexpectedly; calls that wait for a server fail", error)
    _loop = None
    for callback in _callbacks:
        callback(name, error)
    for future in list(_submitted):
        if not future.done():
            reason = f"the connection broke: the thread {name!r} ended with {type(error).__name__}"
            future.set_exception(ServerLost(reason))


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run `work` on the loop; may be called from any thread.

    The future raises `ServerLost` if the loop ends before the work does.

    Raises:
        UsageError: as `io_loop`.
    """
    try:
        loop = io_loop()
    except UsageError:
        work.close()
        raise
    future = asyncio.run_coroutine_threadsafe(work, loop)
    _submitted.add(future)
    future.add_done_callback(_submitted.discard)
    return future


def run(work: Coroutine[Any, Any, T], timeout: float) -> T:
    """Run `work` on the loop and wait for it from another thread.

    Raises:
        TimeoutError: it took longer than `timeout` seconds and was cancelled.
        ServerLost: the loop ended unexpectedly.
        UsageError: as `io_loop`.
    """
    future = submit(work)
    try:
        return future.result(timeout)
    except TimeoutError:
        future.cancel()
        raise


def _reset_after_fork() -> None:
    global _loop, _lock, _forked
    if _started:
        gc.freeze()  # the collector must not free what gRPC has created in the parent: that may wait forever for gRPC's threads
    _forked = _forked or _started
    _loop = None
    _lock = threading.Lock()
    _submitted.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
