"""An event loop for crowds: timers that are due in the same millisecond share one entry in the loop's heap.

With a hundred thousand agents that all wait for a model, most of what an event loop does is ordering timers. Here a timer
is an element of a list, and one entry per millisecond is ordered. A timer fires up to a millisecond later than asked,
which is what the system's clock allows anyway.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CrowdLoop"]

_TICKS = 1000
"""Per second."""


class _Timer:
    """What `call_later` returns: as asyncio's, without what only its heap needs."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when")

    def __init__(self, when: float, callback: Any, args: Any, context: Context) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        """Let it not fire; what it would have called is let go of."""
        if not self._cancelled:
            self._cancelled = True
            self._callback = None
            self._args = ()

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self._cancelled

    def when(self) -> float:
        """Return the time, by the loop's clock, at which it is due."""
        return self._when


class CrowdLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop with shared timers."""

    def __init__(self) -> None:
        super().__init__()
        self._ticks: dict[int, list[_Timer]] = {}

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self._enter(monotonic() + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self._enter(when, callback, args, context)

    def _enter(self, when: float, callback: Any, args: Any, context: Context | None) -> _Timer:
        timer = _Timer(when, callback, args, copy_context() if context is None else context)
        tick = int(when * _TICKS) + 1
        timers = self._ticks.get(tick)
        if timers is None:
            self._ticks[tick] = [timer]
            super().call_at(tick / _TICKS, self._fire, tick)
        else:
            timers.append(timer)
        return timer

    def _fire(self, tick: int) -> None:
        for timer in self._ticks.pop(tick):
            if timer._cancelled:
                continue
            try:
                timer._context.run(timer._callback, *timer._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio does: a callback's error is the handler's
                self.call_exception_handler({"message": "Exception in a timer", "exception": error, "handle": timer})
