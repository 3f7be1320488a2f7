"""Finds out which call blocks the event loop of a worker, and for how long; interrupts its step."""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from paragent._internal.threads import Abandoned, raise_in_thread, start_thread
from paragent.worker.call_times import BLOCKED_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.execution import ExecutionRecord
    from paragent.worker.call_times import CallTimes

__all__ = ["LoopSteps", "LoopWatch", "Steps"]

_PERIOD = 0.2
"""Seconds between two checks."""


class LoopSteps:
    """Shows in the times of a worker which call's step its event loop executes, and interrupts a step.

    The event loop's own code must not be interrupted: it would lose the next step of any task, which then waits for ever. So an
    exception is raised only while a step is shown, and one that has not arrived when the step ends is taken back.

    Args:
        times: the times of the worker.
        thread: the thread of the event loop, which alone begins and ends steps.
    """

    __slots__ = ("_interrupting", "_lock", "_thread", "times")

    def __init__(self, times: CallTimes, thread: int) -> None:
        self.times, self._thread = times, thread
        self._interrupting = False
        """Whether an exception may have been raised since the last step ended."""
        self._lock = threading.Lock()
        """Held while an exception is raised or taken back."""

    def end(self, number: float, since: float) -> None:
        """Show what the event loop executes after a step; this must also be done if an exception arrives meanwhile."""
        loop = self.times.loop
        loop[0], loop[1] = number, since
        if self._interrupting:
            with self._lock:
                raise_in_thread(self._thread, None)
                self._interrupting = False

    def interrupt(self, number: int) -> None:
        """Raise `Abandoned` in the step of this call, from another thread; do nothing if it is not executed now."""
        with self._lock:
            self._interrupting = True  # before the next line: a step that ends after it takes the exception back
            if self.times.blocking == number:
                raise_in_thread(self._thread, Abandoned)


class Steps(Coroutine[Any, Any, Any]):
    """A coroutine of a call, or of a task that the call created. The times of the worker show each of its steps.

    Args:
        coroutine: what to run.
        record: the record of the call.
        steps: shows the steps.
        charge: called on the event loop after each step that blocked it, before anything else that waited, with the number of the
            call and the seconds.
    """

    __slots__ = ("_charge", "_coroutine", "_record", "_steps")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        record: ExecutionRecord,
        steps: LoopSteps,
        charge: Callable[[int, float], None],
    ) -> None:
        self._coroutine, self._record, self._steps, self._charge = coroutine, record, steps, charge

    def send(self, value: Any) -> Any:
        """Execute the next step."""
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Execute the next step, which begins with an exception."""
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(
            self._coroutine, name
        )  # `cr_frame`, `__qualname__` and others, which libraries and debuggers read

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        number = self._record.number
        if number is None:
            return step(*arguments)  # the call has ended; its number may belong to another one
        loop, began = self._steps.times.loop, time.monotonic()
        before, since = loop[0], loop[1]
        try:
            loop[0], loop[1] = number + 1, began
            return step(*arguments)
        finally:
            while True:
                try:
                    ended = time.monotonic()
                    self._steps.end(before, since if before else ended)
                    break
                except Abandoned:
                    continue
            seconds = ended - began
            if seconds > BLOCKED_AFTER:
                self._charge(number, seconds)


class LoopWatch:
    """A thread that ends calls which enforce their own limit and cannot, because they block the event loop.

    Code that holds the interpreter lock stops this thread, too; then the owner of the worker ends the call.

    Args:
        times: the times of the worker.
        end: called with the number of a call that blocks the event loop beyond its limit.
        failed: called with the name of the thread and its error if it ends unexpectedly; None: end this process.
    """

    def __init__(
        self,
        times: CallTimes,
        end: Callable[[int], None],
        failed: Callable[[str, BaseException], object] | None,
    ) -> None:
        self._times, self._end = times, end
        self._wanted = threading.Event()
        self._closed = False
        start_thread(self._watch, name="paragent-loop-watch", failed=failed)

    def wake(self) -> None:
        """Watch: a call that enforces its own limit begins."""
        self._wanted.set()

    def rest(self) -> None:
        """Stop watching until `wake`."""
        self._wanted.clear()

    def close(self) -> None:
        """End the thread, within a fraction of a second."""
        self._closed = True
        self._wanted.set()

    def _watch(self) -> None:
        last, seen = (-1, 0.0), 0
        while self._wanted.wait() and not self._closed:
            time.sleep(_PERIOD)
            step = self._times.blocking, self._times.blocking_since
            # Seen several times: a process that was stopped and continues now gets the time to finish a step.
            last, seen = step, seen + 1 if step == last and step[0] >= 0 else 0
            if seen * _PERIOD >= BLOCKED_AFTER and time.monotonic() > self._times.end_of_step() + _PERIOD:
                self._end(step[0])
                seen = 0
