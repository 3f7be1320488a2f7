"""Signals: defer them while something must not be interrupted."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["signals_deferred"]


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
