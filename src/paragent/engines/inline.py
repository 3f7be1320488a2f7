"""Attempts in this very process: for debugging, and for async agents that need no isolation."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from paragent._internal.threads import start_thread
from paragent.engines.base import RuntimeEngine, thread_failure
from paragent.errors import EngineFailed
from paragent.tasks import Ending, Outcome
from paragent.worker.executor import Hands
from paragent.worker.output import Output, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.config import RunConfig
    from paragent.engines.base import Call

__all__ = ["InlineRuntime"]

_ASYNC_GRACE = 1.0
"""Seconds that async code has after its limit to let itself be cancelled."""


class InlineRuntime(RuntimeEngine):
    """One worker, which is this process: async calls on one event loop, sync calls in threads.

    Agents and inputs are packed and unpacked as on every engine, so state is not shared and what cannot travel is found
    here too. What threads cannot do, this engine cannot: native code that hangs is given up, not stopped, and a call that
    kills its process kills this one.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._held: dict[int, Call] = {}
        self._starts: dict[int, float] = {}
        self._done: list[Outcome] = []
        self._open = True
        self._failure: EngineFailed | None = None
        self._hands: Hands | None = None
        self._output: Output | None = None
        self._changed = threading.Condition()
        """Protects everything above; notified when there is an outcome, a new limit, or the end."""

    @property
    def window(self) -> int:
        """Twice what runs at a time."""
        return 2 * max(self.config.sync_limit, self.config.async_limit)

    def submit(self, calls: Sequence[Call]) -> None:
        """Start the threads with the first calls."""
        with self._changed:
            if not self._open:
                raise EngineFailed("the engine is closed; open a new one")
            if self._failure:
                raise self._failure
            self._held.update((call.number, call) for call in calls)
            if self._hands is None:
                self._hands = self._start()
            hands = self._hands
            self._changed.notify_all()
        hands.take(calls)

    def wait(self, timeout: float) -> list[Outcome]:
        """Return outcomes as they come."""
        done: list[Outcome] = []
        try:
            with self._changed:
                if not self._done:
                    self._changed.wait_for(lambda: self._done or self._failure or not self._open, timeout)
                if not self._done and self._failure:
                    raise self._failure
                done, self._done = self._done, []
        except KeyboardInterrupt:
            with self._changed:
                self._done[:0] = done
            raise
        return done

    def cancel(self, grace: float) -> None:
        """Cancel async calls; sync ones are given up."""
        if self._hands is None:
            return
        self._hands.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not any(call.is_async for call in self._held.values()), grace)
            left = list(self._held.values())
        for call in left:
            self._give_up(call.number, Ending.CANCELLED, stop=not call.is_async)

    def close(self) -> None:
        """Stop what can be stopped; threads stuck in native code end with the process."""
        if not self._open:
            return
        self.cancel(0.0)
        with self._changed:
            self._open = False
            self._changed.notify_all()
        if self._hands is not None:
            self._hands.close()
        if self._output is not None:
            self._output.restore()

    def _start(self) -> Hands:
        streams = (sys.stdout, sys.stderr)
        self._output = Output(lambda line: show([line], streams), keep_unmarked=True)
        hands = Hands(
            self._settle,
            sync_limit=self.config.sync_limit,
            async_limit=self.config.async_limit,
            shared=self.config.concurrency is not None,
            starts=self._starts,
            finished=self._output.finish,
            failed=self._fail,
        )
        try:
            start_thread(hands.lane, name="paragent-lane", failed=self._fail)
            start_thread(self._watch, name="paragent-limits", failed=self._fail)
        except RuntimeError as error:
            raise thread_failure("paragent-lane", error) from error
        return hands

    def _fail(self, name: str, error: BaseException) -> None:
        """Have `wait` and `submit` tell that a thread ended without which calls would be waited for without end."""
        with self._changed:
            self._failure = self._failure or thread_failure(name, error)
            self._changed.notify_all()

    def _settle(self, outcome: Outcome) -> None:
        with self._changed:
            if self._held.pop(outcome.number, None) is not None:
                self._starts.pop(outcome.number, None)
                self._done.append(outcome)
                self._changed.notify_all()

    def _watch(self) -> None:
        """Enforce the limits of sync calls, and of async ones that do not let themselves be cancelled."""
        while self._open:
            now = time.monotonic()
            soonest = now + 60.0
            expired = []
            with self._changed:
                for number, call in self._held.items():
                    if call.limit is None:
                        continue
                    limit = call.limit + (_ASYNC_GRACE if call.is_async else 0.0)
                    due = self._starts.get(number, now) + limit
                    if due <= now:
                        expired.append(number)
                    soonest = min(soonest, due)
            for number in expired:
                self._give_up(number, Ending.TIMED_OUT, stop=True)
            with self._changed:
                if not expired and self._open:
                    self._changed.wait(max(0.0, soonest - time.monotonic()))

    def _give_up(self, number: int, ending: Ending, *, stop: bool) -> None:
        """Report a call that goes on, and with `stop` let another take its place."""
        assert self._hands is not None
        started = self._starts.get(number)
        seconds = time.monotonic() - started if started else 0.0
        if stop:
            self._hands.abandon(number)
        self._settle(Outcome(number, ending, seconds=seconds, worker=self._hands.place))
