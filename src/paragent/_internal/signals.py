"""Signals: handle them for a while, or defer them while something must not be interrupted."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["interrupt", "signals_deferred", "signals_end", "signals_handled"]


@contextlib.contextmanager
def signals_handled(handler: Callable[[], object], *numbers: signal.Signals) -> Iterator[None]:
    """Call `handler` at these signals, and restore the earlier handlers at the end of the block.

    Only the main thread may use it.

    Args:
        handler: called in the main thread.
        numbers: the signals; SIGINT and SIGTERM if there are none.
    """
    before = {
        number: signal.signal(number, lambda *_: handler()) for number in numbers or (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def signals_end(started: threading.Event, ended: threading.Event) -> contextlib.AbstractContextManager[None]:
    """Let SIGINT and SIGTERM end a service: set `ended`, and interrupt what runs unless the service has `started`."""

    def end() -> None:
        ended.set()
        if not started.is_set():
            interrupt()

    return signals_handled(end)


def interrupt() -> NoReturn:
    """Raise `KeyboardInterrupt`: a handler that lets another signal act as Ctrl-C does."""
    raise KeyboardInterrupt


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM, if the program handles them, to the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}  # not SIG_DFL or SIG_IGN
    received: list[signal.Signals] = []
    deferring = True

    def defer(number: int, frame: FrameType | None) -> None:
        if deferring:
            received.append(signal.Signals(number))
        else:
            handlers[signal.Signals(number)](number, frame)

    try:
        for number in handlers:
            signal.signal(number, defer)
        yield
    finally:
        deferring = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in dict.fromkeys(received):
        signal.raise_signal(number)
