"""An event loop for crowds: timers that are due in the same millisecond share one entry in the loop's heap, and steps of tasks
that follow each other share one in its queue.

With a hundred thousand agents that all wait for a model, most of what an event loop does is ordering timers and making and
opening handles. Here a timer or a step is an element of a list, and one entry per millisecond, or per turn, is ordered. A timer
fires up to a millisecond later than asked, which is what the system's clock allows anyway; the order of steps is asyncio's.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import Context, copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

__all__ = ["CrowdLoop"]

_TICKS = 1000
"""Per second."""
_FAR = 1e9
"""Seconds on the loop's clock, some thirty years, from which on a timer is asyncio's own. Most of these are `math.inf`, are
cancelled in the end and must not stay in a shared entry that never comes up."""


class _Handle:
    """What `call_soon` and `call_later` return: as asyncio's, without what only its queue and its heap need."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when")

    def __init__(self, callback: Any, args: Any, context: Context, when: float) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._when = when
        self._cancelled = False

    def cancel(self) -> None:
        """Let it not be called; what it would have called is let go of."""
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


class _Steps(asyncio.Handle):
    """An entry of the loop's queue that stands for all steps which came one after the other."""

    __slots__ = ("steps",)
    steps: list[_Handle]


class CrowdLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop with shared timers and shared steps."""

    _ready: deque[asyncio.Handle]
    """asyncio's queue of what is called next."""

    def __init__(self) -> None:
        super().__init__()
        self._ticks: dict[int, list[_Handle]] = {}

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        step = _Handle(callback, args, copy_context() if context is None else context, 0.0)
        # Only the last entry may take it: what stands behind an earlier one came before this.
        last = self._ready[-1] if self._ready else None
        if type(last) is _Steps:
            last.steps.append(step)
        else:
            entry = _Steps(self._call_all, (steps := [step],), self)
            entry.steps = steps
            self._ready.append(entry)
        return step

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self._enter(monotonic() + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self._enter(when, callback, args, context)

    def _enter(self, when: float, callback: Any, args: Any, context: Context | None) -> Any:
        if not when < _FAR:
            if math.isnan(when):  # it has no place in an ordered heap
                raise ValueError("a delay must be a number of seconds, not NaN")
            return super().call_at(when, callback, *args, context=context)
        if when < 0:
            when = 0.0  # due now, also where it is -math.inf
        timer = _Handle(callback, args, copy_context() if context is None else context, when)
        tick = int(when * _TICKS) + 1
        timers = self._ticks.get(tick)
        if timers is None:
            self._ticks[tick] = [timer]
            super().call_at(tick / _TICKS, self._fire, tick)
        else:
            timers.append(timer)
        return timer

    def _fire(self, tick: int) -> None:
        self._call_all(self._ticks.pop(tick))

    def _call_all(self, handles: list[_Handle]) -> None:
        handles.reverse()
        while handles:  # what one held is gone before the next is called
            handle = handles.pop()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except BaseException as error:  # noqa: BLE001 - as asyncio does: a callback's error is the handler's
                # Also SystemExit and KeyboardInterrupt, which asyncio raises: they would end the loop of everybody's agents
                # and drop the rest of `handles`. A task that raised one keeps it for whoever awaits the task.
                self.call_exception_handler(
                    {"message": f"{type(error).__name__} in a callback", "exception": error, "handle": handle}
                )
