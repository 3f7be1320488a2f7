"""The inline engine: calls run in this process, for debugging and for async agents that need no isolation."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from paragent._internal.threads import start_thread
from paragent.engines.base import (
    RuntimeEngine,
    WorkerChange,
    require_no_cluster_settings,
    slots_used,
    thread_failure,
)
from paragent.errors import EngineFailed
from paragent.execution import Ending, Outcome
from paragent.tasks import ErrorInfo
from paragent.worker.call_times import CallTimes
from paragent.worker.executor import CallExecutor
from paragent.worker.output import LabelledOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.config import RunConfig
    from paragent.engines.base import Call

__all__ = ["InlineRuntime"]

_CHECK_INTERVAL = 1.0
"""Seconds between two checks of calls that enforce their own limit."""
_ASYNC_GRACE = 1.0
"""Seconds that async code has after its limit to end when it is cancelled."""


class InlineRuntime(RuntimeEngine):
    """Uses this process as the only worker: async calls run on one event loop, sync calls in threads.

    Agents and inputs are serialised as on every engine, so calls share no state, and objects that cannot be serialised are
    reported here too. Native code that hangs is abandoned, not stopped; a call that kills its process kills this process.

    Raises:
        ConfigError: there are engine options, or `in_local` is False. A subclass may use both.
    """

    def __init__(self, config: RunConfig) -> None:
        if type(self) is InlineRuntime:
            require_no_cluster_settings("inline", config)
        super().__init__(config)
        self._calls: dict[int, Call] = {}
        self._times = CallTimes.by_number()
        self._outcomes: list[Outcome] = []
        self._open = True
        self._failure: EngineFailed | None = None
        self._executor: CallExecutor | None = None
        self._output: LabelledOutput | None = None
        self._changes: list[WorkerChange] = []
        self._changed = threading.Condition()
        """Protects all attributes above; notified when there is an outcome, a new call, a failure, or the engine closes."""

    @property
    def window(self) -> int:
        """Twice the number of calls that run at a time."""
        return 2 * max(self.config.sync_limit, self.config.async_limit)

    def running(self, sync_calls: int, async_calls: int) -> int:
        """Return how many of this many calls run at a time in this process."""
        return slots_used(self.config, 1, sync_calls, async_calls)

    def submit(self, calls: Sequence[Call]) -> None:
        """Start the threads with the first calls."""
        with self._changed:
            if not self._open:
                raise EngineFailed("the engine is closed; open a new one")
            if self._failure:
                raise self._failure
            self._calls.update((call.number, call) for call in calls)
            if self._executor is None:
                self._executor = self._start()
            executor = self._executor
            self._changed.notify_all()
        executor.submit(calls)

    def wait(self, timeout: float) -> list[Outcome]:
        """Return outcomes as they arrive."""
        outcomes: list[Outcome] = []
        try:
            with self._changed:
                if not self._outcomes:
                    self._changed.wait_for(lambda: self._outcomes or self._failure or not self._open, timeout)
                if not self._outcomes and self._failure:
                    raise self._failure
                outcomes, self._outcomes = self._outcomes, []
        except KeyboardInterrupt:
            with self._changed:
                self._outcomes[:0] = outcomes
            raise
        return outcomes

    def cancel(self, grace: float) -> None:
        """Cancel async calls; abandon sync calls."""
        if self._executor is None:
            return
        self._executor.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not any(call.is_async for call in self._calls.values()), grace)
            left = list(self._calls.values())
        for call in left:
            self._abandon(call.number, Ending.CANCELLED, stop=not call.is_async)

    def worker_changes(self) -> list[WorkerChange]:
        """Return when this process began and ended to work, if that was since the last call."""
        with self._changed:
            changes, self._changes = self._changes, []
        return changes

    def close(self) -> None:
        """Stop all calls that can be stopped; threads stuck in native code end with the process."""
        if not self._open:
            return
        self.cancel(0.0)
        with self._changed:
            self._open = False
            if self._executor is not None:
                self._changes.append(WorkerChange(self._executor.worker, "stopped", time.time()))
            self._changed.notify_all()
        if self._executor is not None:
            self._executor.close()
        if self._output is not None:
            self._output.close()

    def _start(self) -> CallExecutor:
        output = LabelledOutput()
        executor = CallExecutor(
            self._add_outcome,
            sync_limit=self.config.sync_limit,
            async_limit=self.config.async_limit,
            shared=self.config.concurrency is not None,
            times=self._times,
            finished=output.finish,
            failed=self._fail,
        )
        for target, name in ((executor.run_sync_calls, "paragent-calls"), (self._watch, "paragent-limits")):
            try:
                start_thread(target, name=name, failed=self._fail)
            except RuntimeError as error:
                executor.close()
                output.close()
                raise thread_failure(name, error) from error
        self._output = output
        self._changes += [WorkerChange(executor.worker, event, time.time()) for event in ("started", "ready")]
        return executor

    def _fail(self, name: str, error: BaseException) -> None:
        """Let `wait` and `submit` raise: without this thread some calls would never have an outcome."""
        with self._changed:
            self._failure = self._failure or thread_failure(name, error)
            self._changed.notify_all()

    def _add_outcome(self, outcome: Outcome) -> None:
        with self._changed:
            if self._calls.pop(outcome.number, None) is not None:
                self._times.starts[outcome.number] = 0.0
                self._outcomes.append(outcome)
                self._changed.notify_all()

    def _watch(self) -> None:
        """Enforce the limits of sync calls, and of async calls that ignore their cancellation or their own limit."""
        while self._open:
            now = time.monotonic()
            earliest = now + 60.0
            expired: dict[int, str] = {}
            with self._changed:
                limited = {number for number, call in self._calls.items() if call.limit is not None}
                held_up = self._times.held_up(limited, now) if limited else 0.0
                for number, call in self._calls.items():
                    if call.limit is not None:
                        due = (self._times.starts[number] or now) + call.limit
                        if call.is_async:
                            due += _ASYNC_GRACE + (held_up if number != self._times.blocking else 0.0)
                        if due <= now:
                            expired[number] = ""
                        earliest = min(earliest, due)
                    elif self._times.deadlines[number]:
                        earliest = min(earliest, now + _CHECK_INTERVAL)
                overdue = self._times.overdue(list(self._calls), now)
            if overdue is not None:
                timed_out = (number for number, ending in overdue.endings.items() if ending is Ending.TIMED_OUT)
                expired |= dict.fromkeys(timed_out, overdue.reason)
            for number, reason in expired.items():
                self._abandon(number, Ending.TIMED_OUT, stop=True, reason=reason)
            with self._changed:
                if not expired and self._open:
                    self._changed.wait(max(0.0, earliest - time.monotonic()))

    def _abandon(self, number: int, ending: Ending, *, stop: bool, reason: str = "") -> None:
        """Report a call that has not ended; with `stop`, let another call start in its place."""
        assert self._executor is not None
        started = self._times.starts[number]
        seconds = time.monotonic() - started if started else 0.0
        if stop:
            self._executor.abandon(number)
        error = ErrorInfo("TimeoutError", reason) if reason else None
        self._add_outcome(Outcome(number, ending, error=error, seconds=seconds, worker=self._executor.worker))
