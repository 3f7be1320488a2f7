"""Threads whose end is never unnoticed, event loops that user code cannot end, and raising in another thread."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from paragent._internal.text import printable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

__all__ = [
    "FATAL_STATUS",
    "Abandoned",
    "fatal",
    "raise_in_thread",
    "run_loop",
    "run_to_the_end",
    "start_thread",
    "wait_in_slices",
    "write_traceback",
]

T = TypeVar("T")

_SLICE = 0.1
"""Longest wait in native code, in seconds: `raise_in_thread` takes effect when it has ended."""

FATAL_STATUS = 70
"""Exit status of a process whose reader, writer or loop thread ended unexpectedly; `EX_SOFTWARE` in <sysexits.h>."""


def start_thread(
    target: Callable[..., object], *args: Any, name: str, failed: Callable[[str, BaseException], object] | None = None
) -> threading.Thread:
    """Start a daemon thread that runs `target(*args)`; an exception is passed to `failed`.

    Args:
        target: the function. Returning is a normal end.
        args: its arguments.
        name: the name of the thread.
        failed: called in the thread with its name and the error, `SystemExit` and `KeyboardInterrupt` included. The default,
            `fatal`, is for processes that have an owner. In a user's own process, pass a function that fails what is pending.

    Raises:
        RuntimeError: the system cannot start another thread.
    """

    def run() -> None:
        try:
            target(*args)
        except BaseException as error:  # noqa: BLE001 - the end of this thread must not be unnoticed
            (failed or fatal)(name, error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def fatal(name: str, error: BaseException) -> NoReturn:
    """Write the traceback of `error` to file descriptor 2 and end this process with `FATAL_STATUS`.

    The owner of the process notices its end and handles everything that was pending in it.
    """
    try:
        write_traceback(f"the thread {name!r} ended unexpectedly, so process {os.getpid()} ends", error)
    finally:
        os._exit(FATAL_STATUS)


def write_traceback(what: str, error: BaseException) -> None:
    """Write a line and the traceback of `error` to file descriptor 2, even if `sys.stderr` was replaced; never raises."""
    try:
        import traceback

        text = "".join(traceback.format_exception(error))
    except BaseException as second:  # noqa: BLE001 - the methods of the error may fail, too
        text = f"{type(error).__name__} (its traceback cannot be shown: {type(second).__name__})\n"
    with contextlib.suppress(OSError):
        os.write(2, printable(f"paragent: {what}:\n{text}").encode(errors="backslashreplace"))


def run_loop(loop: asyncio.AbstractEventLoop, closing: Callable[[], bool] = lambda: False) -> None:
    """Run an event loop in this thread until `closing()` is true and the loop is stopped.

    A task that raises `SystemExit` or `KeyboardInterrupt` ends `loop.run_forever`, and so does user code that calls
    `loop.stop()`. Neither ends the loop here: the task keeps its exception for the code that awaits it, and other tasks go on.

    Raises:
        BaseException: the loop itself failed, for example because its selector was closed.
    """
    while not closing():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue


class Abandoned(SystemExit):
    """Raised in another thread to end what it executes. It is not an `Exception`, so `except Exception` does not catch it."""


class _Noticed(BaseException):
    """Raised in the thread that calls `raise_in_thread`, and nowhere else."""


def raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Raise `error` in another thread, at its next bytecode; native code is interrupted when it returns.

    None: an error that was not raised yet will not be raised. In this thread, only None is possible.
    """
    import ctypes

    raise_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    other, here = ctypes.c_ulong(thread), ctypes.c_ulong(threading.get_ident())
    given, own = None if error is None else ctypes.py_object(error), ctypes.py_object(_Noticed)
    try:
        raise_exception(other, given)
        # The interpreter has one flag for the exceptions of all threads, which only the arrival of one resets. While it is set,
        # CPython 3.11 calls no Python function in a thread with a trace function, such as a debugger's. The other thread sets
        # it again when it continues.
        raise_exception(here, own)
        while True:  # it arrives where the loop goes on
            pass
    except _Noticed:
        return
    except BaseException:  # Ctrl-C
        raise_exception(here, None)
        raise


def wait_in_slices(attempt: Callable[[float], T], timeout: float | None) -> T:
    """Call `attempt(seconds)` until it returns something true or `timeout` has passed; return its last result.

    Args:
        attempt: waits in native code, such as for a lock, for at most the given time.
        timeout: the seconds to wait in all; None: no limit.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = until - time.monotonic()
        if (outcome := attempt(max(0.0, min(left, _SLICE)))) or left <= _SLICE:
            return outcome


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result, also if the caller's thread already runs an event loop (a notebook).

    There is no time limit: the coroutine has its own.
    """
    import asyncio  # imported here because every worker loads this module and few need asyncio
    from concurrent.futures import ThreadPoolExecutor

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="paragent-run") as beside:
        return beside.submit(asyncio.run, work).result()
