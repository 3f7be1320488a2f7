"""Event loops for many agents: timers and task steps are batched.

If a hundred thousand agents wait for a model, an event loop spends most of its time on ordering timers and on creating and
running handles. `TimerBatchingLoop` keeps one heap entry for all timers of one millisecond. `BatchingLoop` also keeps one entry
of asyncio's queue for consecutive task steps. A timer fires up to a millisecond late; the order of steps is asyncio's.

`BatchingLoop` uses asyncio's private queue `_ready`. On a Python without that name, `new_event_loop` returns a
`TimerBatchingLoop`, which uses only the public interface.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextvars import Context, copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BatchingLoop", "TimerBatchingLoop", "new_event_loop"]

_TICKS = 1000
"""Ticks per second. Timers of one tick share an entry."""
_FAR = 1e9
"""Time on the loop's clock (about thirty years) from which on a timer is a separate entry. Most of these timers are at
`math.inf` and are cancelled in the end; a shared entry would keep them forever."""


class _Handle:
    """Returned by `call_soon` and `call_later`: asyncio's handle without the attributes that only asyncio's queue needs."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "time")

    def __init__(self, callback: Any, args: Any, context: Context, time: float) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.time = time
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not run the callback; release it and its arguments."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self.callback = None
            self.args = ()

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self.is_cancelled

    def when(self) -> float:
        """Return the time on the loop's clock at which it is due."""
        return self.time


class TimerBatchingLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop with one heap entry for all timers of a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self._ticks: dict[int, list[_Handle]] = {}

    @property
    def batched_timers(self) -> int:
        """How many timers are in shared entries, cancelled ones included."""
        return sum(map(len, self._ticks.values()))

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self._add_timer(monotonic() + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self._add_timer(when, callback, args, context)

    def _add_timer(self, when: float, callback: Any, args: Any, context: Context | None) -> Any:
        if not when < _FAR:
            if math.isnan(when):  # a heap cannot order it
                raise ValueError("a delay must be a number of seconds, not NaN")
            return super().call_at(when, callback, *args, context=context)
        if when < 0:
            when = 0.0  # due now, also if it is -math.inf
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
        self._run_all(self._ticks.pop(tick))

    def _run_all(self, handles: list[_Handle]) -> None:
        handles.reverse()
        while handles:  # each handle is released before the next one runs
            handle = handles.pop()
            if handle.is_cancelled:
                continue
            try:
                handle.context.run(handle.callback, *handle.args)
            except BaseException as error:  # noqa: BLE001 - as in asyncio, the exception handler gets a callback's error
                # This includes SystemExit and KeyboardInterrupt, which asyncio raises: they would end the loop of all agents and
                # drop the rest of `handles`. A task that raised one keeps it for its awaiter.
                self.call_exception_handler(
                    {"message": f"{type(error).__name__} in a callback", "exception": error, "handle": handle}
                )


class _Steps(asyncio.Handle):
    """An entry of asyncio's queue that contains consecutive steps."""

    __slots__ = ("steps",)
    steps: list[_Handle]


class BatchingLoop(TimerBatchingLoop):
    """asyncio's event loop with batched timers and batched steps."""

    _ready: deque[asyncio.Handle]
    """asyncio's queue of the handles that run next, which is private."""

    @property
    def has_queue(self) -> bool:
        """Whether asyncio's queue has the expected name and type; the loop can be used only then."""
        return isinstance(getattr(self, "_ready", None), deque)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        step = _Handle(callback, args, copy_context() if context is None else context, 0.0)
        # Only the last entry may take the step: handles behind an earlier entry must run before it.
        last = self._ready[-1] if self._ready else None
        if type(last) is _Steps:
            last.steps.append(step)
        else:
            entry = _Steps(self._run_all, (steps := [step],), self)
            entry.steps = steps
            self._ready.append(entry)
        return step


def new_event_loop() -> TimerBatchingLoop:
    """Return a `BatchingLoop`, or a `TimerBatchingLoop` on a Python whose asyncio has another queue.

    Raises:
        OSError: there is no file descriptor left.
    """
    loop = BatchingLoop()
    if loop.has_queue:
        return loop
    loop.close()
    return TimerBatchingLoop()
