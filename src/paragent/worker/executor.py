"""Runs the calls of a worker: threads for sync calls, one event loop for all async calls."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from paragent._internal.processes import here
from paragent._internal.threads import Abandoned, raise_in_thread, run_loop, start_thread
from paragent._internal.tracebacks import message_of, stack_of, traceback_of, type_name
from paragent.errors import InfrastructureError, Unserialisable
from paragent.execution import Ending, ExecutionRecord, Outcome, current_record
from paragent.serialization import is_plain, pack, unpack
from paragent.worker.call_times import BLOCKED_AFTER, CallTimes
from paragent.worker.output import as_str

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    from paragent.execution import SelfLimited
    from paragent.serialization import Payload
    from paragent.tasks import ErrorInfo
    from paragent.worker.loop_watch import LoopSteps, LoopWatch
    from paragent.worker.protocol import Call

__all__ = ["Admission", "CallExecutor"]


class Admission:
    """Starts up to `limit` calls at a time and queues the others. Thread-safe."""

    def __init__(self, limit: int, start: Callable[[list[Call]], None]) -> None:
        self._limit = limit
        self._start = start
        self._running = 0
        self._waiting: deque[Call] = deque()
        self._lock = threading.Lock()
        """Protects `_running` and `_waiting`; never held while calling `start`."""

    def offer(self, calls: Sequence[Call]) -> None:
        """Start `calls`, now or when others have ended."""
        with self._lock:
            self._waiting.extend(calls)
            admitted = self._admit()
        if admitted:
            self._start(admitted)

    def leave(self) -> None:
        """Record that one admitted call has ended."""
        with self._lock:
            self._running -= 1
            admitted = self._admit() if self._waiting else None
        if admitted:
            self._start(admitted)

    def exchange(self, before_release: Callable[[], None] | None = None) -> Call | None:
        """Record that one admitted call has ended; return the next call, if one is queued, for the caller to start.

        If none is queued, `before_release` is called before another call can be admitted.
        """
        with self._lock:
            if self._waiting and self._running <= self._limit:
                return self._waiting.popleft()
            if before_release is not None:
                before_release()
            self._running -= 1
            return None

    def recall(self) -> list[Call]:
        """Remove and return the calls that have not been admitted."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def _admit(self) -> list[Call]:
        admitted = []
        while self._waiting and self._running < self._limit:
            admitted.append(self._waiting.popleft())
            self._running += 1
        return admitted


_RETURNED = Ending.RETURNED
_STATELESS_KEPT = 128
"""Stateless targets that are kept unpacked: as many as the sender lets a worker keep packed."""
_CLEANUP_TIMEOUT = 1.0
"""Seconds that async calls have to clean up when the worker ends."""


class CallExecutor:
    """Runs calls and emits one outcome for each, from the thread in which the call ended.

    Args:
        emit: receives each outcome; called from several threads.
        sync_limit: how many sync calls run at a time.
        async_limit: how many async calls run at a time.
        shared: the two limits are one limit for both kinds together.
        times: receives when each call starts and must end, and what the event loop executes.
        finished: called with the label of each call that ended, before its outcome is emitted; must not raise.
        failed: called with the name of a thread that ended unexpectedly and its error; None: end this process.
        replace: called from another thread when a call that blocks the event loop has got its outcome: ends this process, and
            the other calls are executed elsewhere. None: interrupt the call's step instead.
    """

    def __init__(
        self,
        emit: Callable[[Outcome], None],
        *,
        sync_limit: int,
        async_limit: int,
        shared: bool,
        times: CallTimes,
        finished: Callable[[str], None],
        failed: Callable[[str, BaseException], object] | None = None,
        replace: Callable[[], None] | None = None,
    ) -> None:
        self._emit = emit
        self._times, self._starts = times, times.starts
        self._finished = finished
        self._thread_failed = failed
        self._replace = replace
        self._watch: LoopWatch | None = None
        self._limited: dict[int, tuple[SelfLimited, Call, ExecutionRecord, float]] = {}
        """The calls that enforce their own limit, and when they started. The thread that removes a call emits its outcome."""
        self._self_limited: set[int] = set()
        """The numbers of these calls until they end; used only by the event loop's thread."""
        self.worker = here()
        self._sync_admission = Admission(sync_limit, self._start)
        self._async_admission = self._sync_admission if shared else Admission(async_limit, self._start)
        self._sync: SimpleQueue[Call | None] = SimpleQueue()
        self._threads = 1
        """Threads that run sync calls; the first is the one that calls `run_sync_calls`."""
        self._busy = 0
        self._thread_of: dict[int, int] = {}
        """The thread of each running sync call; the one that removes the entry, its thread or `abandon`, ends the call."""
        self._thread_lock = threading.Lock()
        """Protects `_threads` and `_busy`."""
        self._stateless: dict[bytes, Any] = {}
        """Unpacked stateless targets by their packed form."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._steps: LoopSteps | None = None
        """Shows which call's step the event loop executes; None until the loop starts."""
        self._closing = False
        self._loop_lock = threading.Lock()
        """Protects starting the event loop."""
        self._running: dict[int, tuple[asyncio.Task[None], asyncio.TimerHandle | None]] = {}
        """Running async calls and the timers of their limits; changed only by the event loop's thread."""
        self._stopped: dict[int, Ending] = {}
        """Why this executor cancelled an async call; used only by the event loop's thread."""
        self._beat_due: float | None = None
        """When the event loop is to call `_beat`; None while no call has a limit. Used only by the event loop's thread."""
        self._given_back = 0.0
        """Seconds given back to calls since the last beat."""

    def submit(self, calls: Sequence[Call]) -> None:
        """Run `calls` as soon as the limits allow."""
        for is_async, admission in ((False, self._sync_admission), (True, self._async_admission)):
            chosen = [call for call in calls if call.is_async is is_async]
            if chosen:
                admission.offer(chosen)

    def clear_targets(self) -> None:
        """Drop all unpacked targets: some of their code was forgotten and will be loaded again as new objects."""
        self._stateless.clear()

    def recall(self) -> list[int]:
        """Remove the calls that have not started and return their numbers; they get no outcome."""
        waiting = self._sync_admission.recall()
        if self._async_admission is not self._sync_admission:
            waiting += self._async_admission.recall()
        return [call.number for call in waiting]

    def cancel(self) -> None:
        """Cancel async calls and calls that have not started; sync calls continue, since only a signal could stop them."""
        for number in self.recall():
            self._emit(Outcome(number, Ending.CANCELLED, worker=self.worker))
        self._call_in_loop(self._cancel_running)

    def run_sync_calls(self) -> None:
        """Run sync calls in the calling thread until `close`. The main thread of a worker calls this."""
        with contextlib.suppress(Abandoned):
            try:
                while (call := self._sync.get()) is not None:
                    next_call: Call | None = call
                    while next_call is not None:
                        next_call = self._run_sync(next_call)
            except Abandoned:
                # `abandon` may still use the id of this thread, which a new thread may get after its end.
                with self._thread_lock:
                    raise

    def abandon(self, number: int) -> None:
        """Stop counting a call that does not end, so that another can start; its result is dropped.

        `Abandoned` is raised in its thread: Python code stops at the next instruction, native code when it returns.
        """
        with self._thread_lock:
            thread = self._thread_of.pop(number, None)
            if thread is not None:
                self._threads -= 1
                self._busy -= 1
                raise_in_thread(thread, Abandoned)
        if thread is not None:
            self._sync_admission.leave()
        elif self._steps is not None:
            self._steps.interrupt(number)

    def close(self) -> None:
        """End the event loop, then every thread after its current call; calls that hang in native code are not waited for.

        The threads end last: a worker process ends with its main thread, and tasks on the event loop clean up before that.
        """
        self._closing = True
        if self._loop:
            self._call_in_loop(self._loop.stop)
        if self._loop_thread:
            self._loop_thread.join(2 * _CLEANUP_TIMEOUT)
        if self._watch:
            self._watch.close()
        for _ in range(self._threads):
            self._sync.put(None)

    def _call_in_loop(self, action: Callable[[], None]) -> None:
        if self._loop:
            with contextlib.suppress(RuntimeError):  # its thread failed and closed it
                self._loop.call_soon_threadsafe(action)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start(self, calls: list[Call]) -> None:
        """Start admitted calls. A call for which no thread can be started fails, and the next queued call is tried."""
        while calls:
            calls = [queued for failure in self._assign(calls) if (queued := self._fail(*failure)) is not None]

    def _assign(self, calls: list[Call]) -> list[tuple[Call, BaseException]]:
        """Pass calls to their threads; return the calls that cannot run, each with the reason."""
        failed: list[tuple[Call, BaseException]] = []
        to_loop = [call for call in calls if call.is_async]
        if to_loop:
            try:
                loop, thread = self._event_loop(), self._loop_thread
                if thread is not None and thread.ident == threading.get_ident():
                    loop.call_soon(self._start_async, to_loop)  # no wake-up needed, which saves two system calls
                else:
                    loop.call_soon_threadsafe(self._start_async, to_loop)
            except (RuntimeError, OSError) as problem:
                failed += [(call, problem) for call in to_loop]
        for call in calls:
            if not call.is_async:
                try:
                    self._ensure_thread()
                except RuntimeError as problem:
                    failed.append((call, problem))
                else:
                    self._sync.put(call)
        return failed

    def _fail(self, call: Call, problem: BaseException) -> Call | None:
        """Emit the failure of a call that could not be started; return the next queued call."""
        outcome = Outcome(call.number, Ending.RAISED, worker=self.worker, error=_error_info(problem))
        self._finished(call.label)
        self._emit(outcome)
        return (self._async_admission if call.is_async else self._sync_admission).exchange()

    def _ensure_thread(self) -> None:
        """Count one more busy thread, and start one if all are busy.

        If the system cannot start another thread, the call waits for one of the existing threads.

        Raises:
            RuntimeError: no thread can be started, and there is none.
        """
        with self._thread_lock:
            self._busy += 1
            missing = self._busy > self._threads
            self._threads += missing
        if not missing:
            return
        try:
            start_thread(self.run_sync_calls, name="paragent-calls", failed=self._thread_failed)
        except RuntimeError:
            with self._thread_lock:
                self._threads -= 1
                if self._threads > 0:
                    return
                self._busy -= 1
            raise

    # --- sync calls ---------------------------------------------------------------------------------------------------

    def _run_sync(self, call: Call) -> Call | None:
        """Run one call; return the next queued call, if it is to run in this thread.

        Raises:
            Abandoned: the call, and this thread with it, was abandoned meanwhile.
        """
        started = time.monotonic()
        self._thread_of[call.number] = threading.get_ident()
        self._starts[call.number] = started
        recording = ExecutionRecord(call.label)
        ending, result = copy_context().run(self._call, call, recording)
        if ending is _RETURNED and not is_plain(result) and _is_awaitable(result):
            try:
                loop = self._event_loop()
            except (RuntimeError, OSError) as problem:
                ending, result = Ending.RAISED, problem
            else:
                if self._thread_of.pop(call.number, None) is None:
                    raise Abandoned
                self._thread_idle()
                loop.call_soon_threadsafe(self._start_awaiting, call, result, recording, started)
                return None
        outcome = self._outcome(call, ending, result, recording, started)
        if self._thread_of.pop(call.number, None) is None:
            raise Abandoned
        self._finished(call.label)
        self._emit(outcome)
        # Not busy before the next call can be admitted: else the reader may start a second thread for it.
        next_call = self._sync_admission.exchange(self._thread_idle)
        if next_call is not None and next_call.is_async:
            self._thread_idle()
            self._start([next_call])
            return None
        return next_call

    def _thread_idle(self) -> None:
        with self._thread_lock:
            self._busy -= 1

    # --- async calls --------------------------------------------------------------------------------------------------

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            import asyncio

            from paragent.worker.loop_watch import LoopSteps

            with self._loop_lock:
                if self._loop is None:
                    loop = asyncio.new_event_loop()
                    try:
                        thread = start_thread(self._run_loop, loop, name="paragent-loop", failed=self._thread_failed)
                    except RuntimeError:
                        loop.close()
                        raise
                    loop.set_task_factory(self._new_task)
                    assert thread.ident is not None
                    self._steps = LoopSteps(self._times, thread.ident)
                    self._loop, self._loop_thread = loop, thread
        return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            run_loop(loop, lambda: self._closing)
            left = _tasks_of(loop)  # tasks that calls left behind, such as shared clients, clean up too
            for task in left:
                task.cancel()
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                if left:
                    loop.run_until_complete(_wait_for(left))
        finally:
            loop.close()

    def _start_async(self, calls: list[Call]) -> None:
        for call in calls:
            recording = ExecutionRecord(call.label)
            self._spawn(call, self._run_async(call, recording), recording)

    def _start_awaiting(self, call: Call, result: Awaitable[Any], recording: ExecutionRecord, started: float) -> None:
        self._spawn(call, self._await(call, result, recording, started), recording)
        self._start_timer(call, started)

    def _spawn(self, call: Call, coroutine: Coroutine[Any, Any, None], recording: ExecutionRecord) -> None:
        assert self._loop is not None
        recording.number = call.number
        task = self._task_of(recording, self._loop, coroutine)
        self._running[call.number] = (task, None)
        task.add_done_callback(partial(self._ensure_outcome, call))

    def _start_timer(self, call: Call, started: float) -> None:
        """Stop a call when its limit has passed since the start of its code, not since it was spawned: others may run first."""
        if call.limit is not None:
            assert self._loop is not None
            task, _ = self._running[call.number]
            timer = self._loop.call_at(started + call.limit, self._expire, call.number)
            self._running[call.number] = (task, timer)
            self._start_beating()

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Any, /, **settings: Any
    ) -> asyncio.Task[Any]:
        """Create a task: the event loop's task factory. Steps of tasks that calls create are theirs."""
        recording = current_record.get()
        if recording is not None and recording.number is not None:
            return self._task_of(recording, loop, coroutine, **settings)
        import asyncio

        return asyncio.Task(coroutine, loop=loop, **settings)

    def _task_of(
        self,
        recording: ExecutionRecord,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        **settings: Any,
    ) -> asyncio.Task[Any]:
        import asyncio

        from paragent.worker.loop_watch import Steps

        assert self._steps is not None
        return asyncio.Task(Steps(coroutine, recording, self._steps, self._charge), loop=loop, **settings)

    async def _run_async(self, call: Call, recording: ExecutionRecord) -> None:
        started = time.monotonic()
        self._starts[call.number] = started
        self._start_timer(call, started)
        ending, result = self._call(call, recording)
        await self._await(call, result, recording, started, ending)

    async def _await(
        self, call: Call, result: Any, recording: ExecutionRecord, started: float, ending: Ending = _RETURNED
    ) -> None:
        current_record.set(recording)
        recording.limit_itself = partial(self._limit_itself, call, recording, started)
        try:
            if ending is _RETURNED and isinstance(result, Awaitable):
                result = await result
        except BaseException as error:  # noqa: BLE001 - anything that user code raises is an outcome
            ending, result = Ending.RAISED, error
        recording.number = None
        self._leave_loop(call.number)
        ending = self._stopped.pop(call.number, ending)
        self._finish(call, self._outcome(call, ending, result, recording, started))

    def _ensure_outcome(self, call: Call, task: asyncio.Task[None]) -> None:
        """Emit an outcome for a call whose task ended without one: cancelled before its first step, or an internal error."""
        running, _ = self._running.get(call.number, (None, None))
        if running is not task:
            return  # it has its outcome; the number may already belong to another call
        self._leave_loop(call.number)
        outcome = Outcome(call.number, self._stopped.pop(call.number, Ending.RAISED), worker=self.worker)
        if outcome.ending is Ending.RAISED:
            error = None if task.cancelled() else task.exception()
            outcome.error = _error_info(error or RuntimeError("the task was cancelled before it started"))
        self._finish(call, outcome)

    def _leave_loop(self, number: int) -> None:
        _, timer = self._running.pop(number)
        if timer:
            timer.cancel()
        if self._times.deadlines[number]:
            self._times.deadlines[number] = 0.0

    def _limit_itself(
        self, call: Call, recording: ExecutionRecord, started: float, limited: SelfLimited
    ) -> Callable[[float], None]:
        """Watch the event loop for a call that enforces its own limit; return the function that sets its deadline.

        Raises:
            InfrastructureError: the thread that watches the event loop cannot be started.
        """
        from paragent.worker.loop_watch import LoopWatch

        if self._watch is None:
            try:
                self._watch = LoopWatch(self._times, self._end_blocking, self._thread_failed)
            except RuntimeError as error:
                raise InfrastructureError(f"this worker cannot start another thread: {error}") from error
        idle = not self._limited
        self._self_limited.add(call.number)
        self._limited[call.number] = (limited, call, recording, started)
        if idle:
            self._watch.wake()
        self._start_beating()
        return partial(self._set_deadline, recording)

    def _set_deadline(self, recording: ExecutionRecord, deadline: float) -> None:
        if recording.number is not None:
            self._times.deadlines[recording.number] = deadline

    def _start_beating(self) -> None:
        if self._beat_due is None:
            self._given_back = 0.0
            self._plan_beat()

    def _plan_beat(self) -> None:
        """Give the owner a sign of life, and plan the next one."""
        assert self._loop is not None
        if not self._times.replaced:
            self._times.loop[2] = time.monotonic()
        self._beat_due = self._loop.time() + BLOCKED_AFTER
        self._loop.call_at(self._beat_due, self._beat)

    def _beat(self) -> None:
        """Give all calls the time back in which the event loop did not run: many steps, or a host without a free core."""
        assert self._loop is not None
        assert self._beat_due is not None
        late = self._loop.time() - self._beat_due - self._given_back
        if late > BLOCKED_AFTER:
            self._charge(-1, late)
        self._beat_due, self._given_back = None, 0.0
        if self._watch and not self._limited:
            self._watch.rest()
        if self._limited or any(timer for _, timer in self._running.values()):
            self._plan_beat()

    def _end_blocking(self, number: int) -> None:
        """Emit the outcome of a call that blocks the event loop, from another thread."""
        assert self._loop_thread is not None
        frame = sys._current_frames().get(self._loop_thread.ident or 0)
        found = self._limited.pop(number, None)
        if found is None:
            return  # it has just ended
        limited, call, recording, started = found
        try:
            ending, result = _RETURNED, limited.stop(stack_of(frame))
        except BaseException as error:  # noqa: BLE001 - every call must have an outcome
            ending, result = Ending.RAISED, error
        self._emit(self._outcome(call, ending, result, recording, started))
        if self._replace is not None:
            self._times.replace_worker()
            self._replace()
        elif self._steps is not None:
            self._steps.interrupt(number)

    def _charge(self, blocking: int, seconds: float) -> None:
        """Give the other calls the time back in which one call, or none of them, blocked the event loop."""
        assert self._loop is not None
        self._given_back += seconds
        for number, (limited, *_) in self._limited.copy().items():
            if number != blocking:
                limited.excuse(seconds)
        for number, (task, timer) in self._running.items():
            if number != blocking and timer is not None:
                since_start = min(seconds, time.monotonic() - self._starts[number])
                self._starts[number] += since_start
                timer.cancel()
                timer = self._loop.call_at(timer.when() + since_start, self._expire, number)
                self._running[number] = (task, timer)

    def _expire(self, number: int) -> None:
        self._stopped[number] = Ending.TIMED_OUT
        self._running[number][0].cancel()

    def _cancel_running(self) -> None:
        for number, (task, _) in self._running.items():
            self._stopped.setdefault(number, Ending.CANCELLED)
            task.cancel()

    # --- both ---------------------------------------------------------------------------------------------------------

    def _call(self, call: Call, recording: ExecutionRecord) -> tuple[Ending, Any]:
        """Call the target; the second value is what it returned or raised."""
        current_record.set(recording)
        try:
            target = self._stateless.get(call.target.body) or self._unpacked(call.target)
            return _RETURNED, target(unpack(call.argument))
        except BaseException as error:  # noqa: BLE001 - anything that user code raises is an outcome
            return Ending.RAISED, error

    def _unpacked(self, packed: Payload) -> Any:
        """Return the target of a call; a stateless target is unpacked once for many calls."""
        target = unpack(packed)
        if getattr(target, "is_stateless", False):
            if len(self._stateless) >= _STATELESS_KEPT:
                self._stateless.clear()
            self._stateless[packed.body] = target
        return target

    # --- ending -------------------------------------------------------------------------------------------------------

    def _outcome(self, call: Call, ending: Ending, result: Any, recording: ExecutionRecord, started: float) -> Outcome:
        """Return the outcome of a call. Packing an answer and describing an error run user code, which may raise."""
        outcome = Outcome(call.number, ending, None, None, time.monotonic() - started, self.worker)
        try:
            if ending is _RETURNED:
                if is_plain(result):
                    outcome.value = result
                else:
                    _set_answer(outcome, result, call.label)
            elif ending is Ending.RAISED:
                outcome.error = _error_info(result)
            if recording.usage:
                outcome.usage = recording.usage
            if recording.trajectory:
                _set_trajectory(outcome, recording.trajectory, call.label)
        except BaseException as error:  # noqa: BLE001 - every call must have an outcome
            outcome.ending, outcome.value, outcome.error = Ending.RAISED, None, _error_info(error)
        return outcome

    def _finish(self, call: Call, outcome: Outcome) -> None:
        self._finished(call.label)
        number = call.number
        if number not in self._self_limited:
            self._emit(outcome)
        else:
            self._self_limited.discard(number)
            if self._limited.pop(number, None) is not None:
                self._emit(outcome)
        (self._async_admission if call.is_async else self._sync_admission).leave()


def _is_awaitable(result: Any) -> bool:
    try:
        return isinstance(result, Awaitable)
    except BaseException:  # noqa: BLE001 - an answer may define `__class__` in any way
        return False


def _set_answer(outcome: Outcome, answer: Any, label: str) -> None:
    try:
        outcome.value = pack(answer, f"the answer of task {label!r}", "answer")
    except Unserialisable as error:
        outcome.ending = Ending.RAISED
        outcome.error = _error_info(error)


def _error_info(error: BaseException) -> ErrorInfo:
    """Return the record of an error, even if its own methods raise."""
    from paragent.tasks import ErrorInfo  # not at the top: see `paragent.execution`

    try:
        trace = traceback_of(error, of_ours=True)
        info = ErrorInfo(type_name(error), message_of(error), trace, bool(getattr(error, "retryable", True)))
    except BaseException:  # noqa: BLE001 - as in `_outcome`
        kind, message = _described(type_name, error), _described(message_of, error)
        trace = _described(partial(traceback_of, of_ours=True), error)
        info = ErrorInfo(kind, message, trace, retryable=True)
    info.message = as_str(info.message)
    return info


def _described(part: Callable[[BaseException], str], error: BaseException) -> str:
    try:
        return part(error)
    except BaseException as second:  # noqa: BLE001 - as in `_outcome`
        return f"(cannot be shown: its own code raised {type(second)!r})"


def _set_trajectory(outcome: Outcome, steps: list[Any], label: str) -> None:
    try:
        outcome.trajectory = pack(steps, f"the trajectory of task {label!r}", "trajectory")
    except Unserialisable as error:
        outcome.trajectory = pack([f"not kept: {error}"], "a note")


def _tasks_of(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    import asyncio

    return list(asyncio.all_tasks(loop))


async def _wait_for(tasks: list[asyncio.Task[Any]]) -> None:
    """Wait a moment for cancelled tasks to end."""
    import asyncio

    await asyncio.wait(tasks, timeout=_CLEANUP_TIMEOUT)
