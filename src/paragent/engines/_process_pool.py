"""Base of the engines with worker processes: one thread selects on all workers and distributes the calls."""

from __future__ import annotations

import abc
import contextlib
import os
import selectors
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from paragent._internal.threads import start_thread
from paragent.engines._scheduler import AnswerSize, CallScheduler, ConcurrencyLimits, WorkerLoad
from paragent.engines.base import CHANGES_KEPT, RuntimeEngine, WorkerChange, describe_loss, thread_failure
from paragent.errors import EngineFailed
from paragent.execution import Ending, Outcome
from paragent.worker.output import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.config import RunConfig
    from paragent.engines._worker_handle import WorkerHandle, WorkerReport
    from paragent.engines.base import Call

__all__ = ["ProcessPoolRuntime"]

_THREAD = "paragent-engine"
_MAX_FAILED_STARTS = 3
"""Workers in a row that end before they are ready; then the engine fails. A broken connection does not count: the calls of that
worker are lost, and their number of executions is limited."""
_STUCK_AFTER = 0.02
"""Seconds without an outcome after which a worker must return the calls that it has not started, if another worker is idle."""
_STOP_TIMEOUT = 1.0
"""Seconds that an idle worker has to end by itself when the engine is closed."""
_START_WAIT = 0.1
"""Seconds to let the engine's thread start workers before the caller continues and competes for the interpreter; starting takes
a few milliseconds."""


class ProcessPoolRuntime(RuntimeEngine):
    """An engine with worker processes; a subclass decides where they start, in `start_workers`."""

    error_hint = "Its error output is above"
    """The sentence that says where to look when workers cannot start."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        single_use = not config.reuse_process
        self.limits = ConcurrencyLimits(
            sync=1 if single_use else config.sync_limit,
            asynchronous=1 if single_use else config.async_limit,
            shared=single_use or config.concurrency is not None,
            single_use=single_use,
        )
        self._scheduler = CallScheduler(self.limits)
        self._window = self._scheduler.window(config.workers)
        self._answer_size = AnswerSize()
        self._workers: dict[WorkerLoad, WorkerHandle] = {}
        self._reported: dict[WorkerLoad, tuple[str, bool]] = {}
        """The location of each worker, and whether it is ready, as `_changes` say."""
        self._changes: deque[WorkerChange] = deque(maxlen=CHANGES_KEPT)
        self._failed_starts = 0
        self._kill_at: float | None = None
        """When the workers that still run something are killed, after `cancel`."""
        self._submitted: deque[Sequence[Call]] = deque()
        self._has_room = (True, True)
        """Whether a worker may have room for a sync call, and for an async call: then a new one wakes the engine's thread."""
        self._new_workers: deque[WorkerHandle] = deque()
        self._expected_calls = 0
        """Calls that were announced by `expect`, until workers were started for them."""
        self._expected_started = threading.Event()
        """Set when workers were started for the announced calls."""
        self._cancel_grace: float | None = None
        """Set by `cancel` for the engine's thread."""
        self._closing = False
        self._thread: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_write, self._wake_read = -1, -1
        self._wake_lock = threading.Lock()
        """Keeps the engine's thread from closing `_wake_write` while another thread writes to it."""
        self._outcomes: list[Outcome] = []
        self._failure: EngineFailed | None = None
        self._changed = threading.Condition()
        """Protects `_outcomes`, `_failure`, `_closing` and starting the thread; notified when any of them changes."""

    @abc.abstractmethod
    def start_workers(self, count: int) -> list[WorkerHandle]:
        """Start `count` workers and return the handles of those that are ready to use.

        Called by the engine's thread whenever there are too few. Workers that connect later are passed to `add_worker`.
        """

    def add_worker(self, worker: WorkerHandle) -> None:
        """Add a worker that has connected; from any thread."""
        self._new_workers.append(worker)
        self._wake()

    # --- the contract, called from any thread -------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """How many calls the engine should hold; grows when calls turn out to be short."""
        return self._window

    def expect(self, calls: int) -> None:
        """Start the first workers, so that they load their modules while the caller prepares its calls."""
        with self._changed:
            if calls < 1 or self._closing or self._thread is not None:
                return
            self._expected_calls = calls
            self._start_thread()
        if not self._failure:
            self._expected_started.wait(_START_WAIT)

    def submit(self, calls: Sequence[Call]) -> None:
        """Queue calls for the engine's thread, which starts with the first calls."""
        with self._changed:
            if self._closing:
                raise EngineFailed("the engine is closed; open a new one")
            if self._thread is None and not self._failure:
                self._start_thread()
            if self._failure:
                raise self._failure
        self._submitted.append(calls)
        sync_room, async_room = self._has_room
        if (sync_room and async_room) or any(async_room if call.is_async else sync_room for call in calls):
            self._wake()

    def _start_thread(self) -> None:
        """Start the engine's thread, or record why that is impossible."""
        try:
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_write, False)
            os.set_blocking(self._wake_read, False)
            self._selector.register(self._wake_read, selectors.EVENT_READ, None)
            self._thread = start_thread(self._run, name=_THREAD, failed=self._thread_failed)
        except (RuntimeError, OSError) as error:
            self._thread_failed(_THREAD, error)
            self._close_wake_pipe()

    def wait(self, timeout: float) -> list[Outcome]:
        """Return outcomes as they arrive, in groups."""
        outcomes: list[Outcome] = []
        try:
            with self._changed:
                if not self._outcomes and not self._failure:
                    self._changed.wait(timeout)
                if not self._outcomes and self._failure:
                    raise self._failure
                outcomes, self._outcomes = self._outcomes, []
        except KeyboardInterrupt:
            with self._changed:
                self._outcomes[:0] = outcomes
            raise
        return outcomes

    def cancel(self, grace: float) -> None:
        """Let the engine's thread stop all calls; their outcomes follow."""
        self._cancel_grace = grace
        self._wake()

    def worker_changes(self) -> list[WorkerChange]:
        """Return what happened to workers since the last call."""
        changes = []
        with contextlib.suppress(IndexError):  # the engine's thread may add one at any time
            while True:
                changes.append(self._changes.popleft())
        return changes

    def close(self) -> None:
        """End all workers: idle ones by a message, busy ones by a signal."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._wake()
            self._thread.join()

    def _wake(self) -> None:
        with self._wake_lock:
            if self._wake_write >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._wake_write, b"!")

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self.step()
        except BaseException as error:  # noqa: BLE001 - without this thread no call would ever have an outcome
            self._thread_failed(_THREAD, error)
        finally:
            self._shut_down()

    def step(self) -> None:
        """Run one iteration of the engine's thread: distribute calls, wait for events, handle them."""
        self._take_submitted()
        self._handle_cancel()
        self._start_missing_workers()
        for load, calls in self._scheduler.assign(list(self._workers)):
            self._workers[load].send(calls)
        self._recall_from_stuck_workers()
        workers = self.config.workers
        # Set before `_submitted` is looked at for the last time.
        self._has_room = (True, True) if len(self._workers) < workers else self._scheduler.has_room()
        self._window = self._answer_size.limited(self._scheduler.window(workers), self._scheduler.capacity(workers))
        if any(self._has_room) and self._submitted:
            ready = self._selector.select(0.0)
        else:
            self._select_for_writing()
            ready = self._selector.select(self._select_timeout())
        loads = {key.data for key, _ in ready if key.data is not None}
        if any(key.data is None for key, _ in ready):
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 65536)
        now = time.monotonic()
        loads |= {
            load for load, worker in self._workers.items() if worker.deadline is not None and worker.deadline <= now
        }
        for load in loads:
            self._handle(load, self._workers[load].poll())

    def _take_submitted(self) -> None:
        while self._submitted:
            self._scheduler.add(self._submitted.popleft())
        while self._new_workers:
            self._register(self._new_workers.popleft())

    def _start_missing_workers(self) -> None:
        """Start as many workers as there is work for, up to the configured number."""
        busy = sum(1 for load in self._workers if load.calls)
        wanted = min(self.config.workers, max(self._expected_calls, len(self._scheduler) + busy))
        self._expected_calls = 0
        missing = wanted - len(self._workers)
        if missing <= 0 or self._failure:
            return
        try:
            started = self.start_workers(missing)
        except OSError as error:
            limits = "lower worker_num, or raise the limits of processes and open files (ulimit -u, ulimit -n)"
            self._fail(EngineFailed(f"cannot start a worker: {error}; {limits}"))
            return
        for worker in started:
            self._register(worker)
        self._expected_started.set()

    def _register(self, worker: WorkerHandle) -> None:
        load = WorkerLoad()
        self._workers[load] = worker
        load.last_outcome = time.monotonic()
        for fileno in worker.filenos():
            self._selector.register(fileno, selectors.EVENT_READ, load)
        self._note_changes(load)

    def _note_changes(self, load: WorkerLoad, report: WorkerReport | None = None) -> None:
        """Record that a worker started, became ready, or was replaced by its node agent."""
        worker = self._workers[load]
        location, ready = reported = self._reported.get(load, ("", False))
        if reported == (worker.location, worker.answered):
            return
        if worker.location != location:
            event, detail = _end_of(report)
            self._add_change(location, event, detail or "its node agent replaced it")
            self._add_change(worker.location, "started")
            ready = False
        if worker.answered and not ready:
            self._add_change(worker.location, "ready")
        self._reported[load] = (worker.location, worker.answered)

    def _add_change(self, location: str, event: str, detail: str = "") -> None:
        if ":" in location:  # `host:pid`; a node agent whose worker has not started has only a name
            self._changes.append(WorkerChange(location, event, time.time(), detail))

    def _select_timeout(self) -> float:
        """Return how long to wait for events."""
        now = time.monotonic()
        until = [worker.deadline - now for worker in self._workers.values() if worker.deadline is not None]
        if self._kill_at is not None:
            until.append(self._kill_at - now)
        if self._scheduler.overfull(list(self._workers)):
            until.append(_STUCK_AFTER)
        return max(0.0, min(until, default=60.0))

    def _select_for_writing(self) -> None:
        """Select for writing, too, on the workers that have unsent frames."""
        for worker in self._workers.values():
            fileno = worker.filenos()[0]
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.wants_to_write else 0)
            if self._selector.get_key(fileno).events != events:
                self._selector.modify(fileno, events, self._selector.get_key(fileno).data)

    def _handle(self, load: WorkerLoad, report: WorkerReport) -> None:
        show(report.lines)
        self._note_changes(load, report)
        if report.ended is not None:
            self._handle_end(load, report)
        elif report.outcomes or report.lines:
            self._failed_starts = 0
        if report.outcomes:
            load.last_outcome = time.monotonic()
            self._scheduler.observe(load.remove(report.outcomes))
            self._answer_size.observe(report.outcomes[0])
            self._publish(report.outcomes)
        if self.limits.single_use and load.used and not load.calls and load in self._workers:
            if self._workers[load].restart():
                load.used = False
            else:
                self._remove(load, "stopped").close(0.0)

    def _handle_end(self, load: WorkerLoad, report: WorkerReport) -> None:
        event, detail = _end_of(report) if self._kill_at is None else ("stopped", report.ended or "")
        worker = self._remove(load, event, detail)
        if report.never_ready:
            self._failed_starts += 1
        elif worker.answered:
            self._failed_starts = 0
        if self._failed_starts >= _MAX_FAILED_STARTS:
            reason = f"workers end before they are ready, the last one: {report.ended}. {self.error_hint}"
            self._fail(EngineFailed(reason))

    def _remove(self, load: WorkerLoad, event: str, detail: str = "") -> WorkerHandle:
        worker = self._workers.pop(load)
        location, _ = self._reported.pop(load, ("", False))
        self._add_change(location, event, detail)
        for key in [key for key in self._selector.get_map().values() if key.data is load]:
            self._selector.unregister(key.fileobj)
        return worker

    def _recall_from_stuck_workers(self) -> None:
        now = time.monotonic()
        for load in self._scheduler.overfull(list(self._workers)):
            if not self._workers[load].recalling and now - load.last_outcome > _STUCK_AFTER:
                self._workers[load].recall()

    def _handle_cancel(self) -> None:
        now = time.monotonic()
        if self._cancel_grace is not None:
            self._kill_at, self._cancel_grace = now + self._cancel_grace, None
            self._publish([Outcome(call.number, Ending.CANCELLED) for call in self._scheduler.clear()])
            for worker in self._workers.values():
                worker.cancel()
        if self._kill_at is None:
            return
        for load, worker in list(self._workers.items()):
            only_sync = load.calls and not load.counts[True]
            if only_sync or (load.calls and now >= self._kill_at):
                self._handle(load, worker.kill("the run was cancelled", cancelled=True))
        if now >= self._kill_at or not any(load.calls for load in self._workers):
            self._kill_at = None

    def _publish(self, outcomes: list[Outcome]) -> None:
        with self._changed:
            self._outcomes += outcomes
            self._changed.notify_all()

    def _thread_failed(self, name: str, error: BaseException) -> None:
        """Fail the engine because one of its threads could not start or ended unexpectedly; from any thread."""
        self._fail(thread_failure(name, error))

    def _fail(self, failure: EngineFailed) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _shut_down(self) -> None:
        for worker in self._workers.values():
            if not worker.in_flight:
                worker.stop()
        while self._new_workers:
            self._new_workers.popleft().close(0.0)
        for load, worker in list(self._workers.items()):
            self._remove(load, "stopped")
            worker.close(_STOP_TIMEOUT if not worker.in_flight else 0.0)
        self._selector.close()
        self._close_wake_pipe()

    def _close_wake_pipe(self) -> None:
        with self._wake_lock:
            for fileno in (self._wake_read, self._wake_write):
                if fileno >= 0:
                    os.close(fileno)
            self._wake_read = self._wake_write = -1


def _end_of(report: WorkerReport | None) -> tuple[str, str]:
    """Return the event and the detail for a worker that ended."""
    if report is None:
        return "stopped", ""
    lost = [outcome for outcome in report.outcomes if outcome.ending is Ending.LOST]
    if not lost and not report.crashed:
        return "stopped", report.ended or ""
    reason = report.crashed or next((outcome.error.message for outcome in lost if outcome.error), report.ended or "")
    return "lost", describe_loss(reason, len(lost))
