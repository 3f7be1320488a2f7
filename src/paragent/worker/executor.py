"""The hands of a worker: threads for sync calls, one event loop for all async ones."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Awaitable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from paragent._internal.processes import here
from paragent._internal.threads import raise_in_thread, run_loop, start_thread
from paragent._internal.tracebacks import message_of, traceback_of, type_name
from paragent.serialization import is_plain, pack, unpack
from paragent.tasks import Ending, ErrorInfo, Outcome, Recording, current_recording
from paragent.worker.output import plain_text

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    from paragent.serialization import Parcel
    from paragent.worker.protocol import Call

__all__ = ["Gate", "Hands", "StartTimes", "fault"]


class Gate:
    """Holds back what is over the limit. Thread-safe."""

    def __init__(self, limit: int, start: Callable[[list[Call]], None]) -> None:
        self._limit = limit
        self._start = start
        self._running = 0
        self._waiting: deque[Call] = deque()
        self._lock = threading.Lock()
        """Protects `_running` and `_waiting`; never held while calling `start`."""

    def offer(self, calls: Sequence[Call]) -> None:
        """Let `calls` in, now or when others have left."""
        with self._lock:
            self._waiting.extend(calls)
            admitted = self._admit()
        if admitted:
            self._start(admitted)

    def leave(self) -> None:
        """Say that one admitted call has ended."""
        with self._lock:
            self._running -= 1
            admitted = self._admit() if self._waiting else None
        if admitted:
            self._start(admitted)

    def exchange(self) -> Call | None:
        """Say that one admitted call has ended; return the one that takes its place, if one waits, for the caller to start."""
        with self._lock:
            if self._waiting and self._running <= self._limit:
                return self._waiting.popleft()
            self._running -= 1
            return None

    def recall(self) -> list[Call]:
        """Take back, and return, every call that has not been admitted."""
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
_REUSABLE_KEPT = 128
"""Targets without state that are kept unpacked: as many as a worker is trusted to keep packed."""
_END_PATIENCE = 1.0
"""Seconds that async calls have to clean up when the worker ends."""


class Abandoned(SystemExit):
    """Raised inside code that worked longer than its limit and cannot be stopped in any other way."""


class StartTimes(Protocol):
    """Where the start of each call is noted, by its number, for whoever enforces time limits from outside."""

    def __setitem__(self, number: int, started: float) -> None: ...


class Hands:
    """Performs calls and emits one outcome for each, from whichever thread it ended in.

    Args:
        emit: receives each outcome; called from several threads.
        sync_limit: sync calls at a time.
        async_limit: async calls at a time.
        shared: the limits are one limit for both kinds together.
        starts: gets the `time.monotonic()` of each call's start.
        finished: called with the label of each call that ended, before its outcome is emitted; must not raise.
        failed: called with the name of a thread that ended unexpectedly and its error; None: this process ends.
    """

    def __init__(
        self,
        emit: Callable[[Outcome], None],
        *,
        sync_limit: int,
        async_limit: int,
        shared: bool,
        starts: StartTimes,
        finished: Callable[[str], None],
        failed: Callable[[str, BaseException], object] | None = None,
    ) -> None:
        self._emit = emit
        self._starts = starts
        self._finished = finished
        self._failed = failed
        self.place = here()
        self._sync_gate = Gate(sync_limit, self._start)
        self._async_gate = self._sync_gate if shared else Gate(async_limit, self._start)
        self._sync: SimpleQueue[Call | None] = SimpleQueue()
        self._lanes = 1
        """Threads that perform sync calls; the first is the one that calls `lane`."""
        self._busy = 0
        self._lane_of: dict[int, int] = {}
        """The thread that performs each sync call under way."""
        self._lane_lock = threading.Lock()
        """Protects `_lanes`, `_busy` and `_lane_of`."""
        self._reusable: dict[bytes, Any] = {}
        """Unpacked targets that have no state, by their packed form."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._closing = False
        self._loop_lock = threading.Lock()
        """Makes the event loop start once."""
        self._playing: dict[int, tuple[asyncio.Task[None], asyncio.TimerHandle | None]] = {}
        """Async calls under way and the alarms of their limits; changed by the event loop's thread only."""
        self._stopped: dict[int, Ending] = {}
        """Why an async call was cancelled by us; used by the event loop's thread only."""

    def take(self, calls: Sequence[Call]) -> None:
        """Perform `calls` as soon as the limits allow."""
        for is_async, gate in ((False, self._sync_gate), (True, self._async_gate)):
            chosen = [call for call in calls if call.is_async is is_async]
            if chosen:
                gate.offer(chosen)

    def forget_targets(self) -> None:
        """Unpack every target anew when it is next used: the code of some was forgotten, and what comes again is another."""
        self._reusable.clear()

    def recall(self) -> list[int]:
        """Give up every call that has not started, and return their numbers; they get no outcome from here."""
        waiting = self._sync_gate.recall()
        if self._async_gate is not self._sync_gate:
            waiting += self._async_gate.recall()
        return [call.number for call in waiting]

    def cancel(self) -> None:
        """Cancel what is async and give up what has not started; sync calls go on, for only a signal could stop them."""
        for number in self.recall():
            self._emit(Outcome(number, Ending.CANCELLED, worker=self.place))
        self._tell_loop(self._cancel_playing)

    def lane(self) -> None:
        """Perform sync calls in the calling thread until `close`. The main thread of a worker comes here to work."""
        with contextlib.suppress(Abandoned):
            while (call := self._sync.get()) is not None:
                following: Call | None = call
                while following is not None:
                    following = self._perform(following)

    def abandon(self, number: int) -> None:
        """Let another call take the place of one that does not end; what it still returns is dropped.

        Its thread is asked to stop, which Python code obeys at its next step and native code when it returns.
        """
        with self._lane_lock:
            thread = self._lane_of.pop(number, None)
            if thread is not None:
                self._lanes -= 1
                self._busy -= 1
        if thread is not None:
            raise_in_thread(thread, Abandoned)
            self._sync_gate.leave()
        elif number in self._playing and not self._plays_another(number):
            assert self._loop_thread is not None
            assert self._loop_thread.ident is not None
            raise_in_thread(self._loop_thread.ident, Abandoned)

    def _plays_another(self, number: int) -> bool:
        """Return whether the event loop is in the middle of another call's step."""
        import asyncio

        current = asyncio.current_task(self._loop)
        return any(task is current for other, (task, _) in self._playing.copy().items() if other != number)

    def close(self) -> None:
        """Let every lane end after what it is doing, and end the event loop; native code that hangs is not waited for."""
        self._closing = True
        for _ in range(self._lanes):
            self._sync.put(None)
        if self._loop:
            self._tell_loop(self._loop.stop)
        if self._loop_thread:
            self._loop_thread.join(2 * _END_PATIENCE)

    def _tell_loop(self, action: Callable[[], None]) -> None:
        if self._loop:
            with contextlib.suppress(RuntimeError):  # its thread has failed, and it is closed
                self._loop.call_soon_threadsafe(action)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start(self, calls: list[Call]) -> None:
        """Start admitted calls. One for which there is no thread fails, and the call that waits behind it is tried next."""
        while calls:
            calls = [next_call for failure in self._place(calls) if (next_call := self._refuse(*failure)) is not None]

    def _place(self, calls: list[Call]) -> list[tuple[Call, BaseException]]:
        """Give calls to the threads that perform them; return those that cannot be performed, each with the reason."""
        refused: list[tuple[Call, BaseException]] = []
        to_loop = [call for call in calls if call.is_async]
        if to_loop:
            try:
                loop, thread = self._event_loop(), self._loop_thread
                if thread is not None and thread.ident == threading.get_ident():
                    loop.call_soon(self._play_all, to_loop)  # it need not be woken, which takes two system calls
                else:
                    loop.call_soon_threadsafe(self._play_all, to_loop)
            except (RuntimeError, OSError) as problem:
                refused += [(call, problem) for call in to_loop]
        for call in calls:
            if not call.is_async:
                try:
                    self._ensure_lane()
                except RuntimeError as problem:
                    refused.append((call, problem))
                else:
                    self._sync.put(call)
        return refused

    def _refuse(self, call: Call, problem: BaseException) -> Call | None:
        """Emit the failure of a call that could not be started; return the call that takes its place."""
        outcome = Outcome(call.number, Ending.RAISED, worker=self.place, error=_error_info(problem))
        self._finished(call.label)
        self._emit(outcome)
        return (self._async_gate if call.is_async else self._sync_gate).exchange()

    def _ensure_lane(self) -> None:
        """Count one more busy lane, and start a thread for it if all are busy.

        Where the system has no room for another thread, the call waits for one of the lanes there are.

        Raises:
            RuntimeError: there is no room, and there is no lane.
        """
        with self._lane_lock:
            self._busy += 1
            missing = self._busy > self._lanes
            self._lanes += missing
        if not missing:
            return
        try:
            start_thread(self.lane, name="paragent-lane", failed=self._failed)
        except RuntimeError:
            with self._lane_lock:
                self._lanes -= 1
                if self._lanes > 0:
                    return
                self._busy -= 1
            raise

    # --- sync calls ---------------------------------------------------------------------------------------------------

    def _perform(self, call: Call) -> Call | None:
        """Perform one call; return the one to perform next in this thread, if one was waiting for this.

        Raises:
            Abandoned: the call was abandoned meanwhile, and this thread with it.
        """
        started = time.monotonic()
        self._lane_of[call.number] = threading.get_ident()
        self._starts[call.number] = started
        recording = Recording(call.label)
        ending, result = copy_context().run(self._attempt, call, recording)
        if ending is _RETURNED and not is_plain(result) and _is_awaitable(result):
            try:
                loop = self._event_loop()
            except (RuntimeError, OSError) as problem:
                ending, result = Ending.RAISED, problem
            else:
                self._leave_lane(call)
                loop.call_soon_threadsafe(self._play_rest, call, result, recording, started)
                return None
        outcome = self._outcome(call, ending, result, recording, started)
        self._leave_lane(call)
        self._finished(call.label)
        self._emit(outcome)
        following = self._sync_gate.exchange()
        if following is None:
            return None
        if following.is_async:
            self._start([following])
            return None
        self._ensure_lane()
        return following

    def _leave_lane(self, call: Call) -> None:
        with self._lane_lock:
            if self._lane_of.pop(call.number, None) is None:
                raise Abandoned
            self._busy -= 1

    # --- async calls --------------------------------------------------------------------------------------------------

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            import asyncio

            with self._loop_lock:
                if self._loop is None:
                    loop = asyncio.new_event_loop()
                    try:
                        thread = start_thread(self._run_loop, loop, name="paragent-loop", failed=self._failed)
                    except RuntimeError:
                        loop.close()
                        raise
                    self._loop, self._loop_thread = loop, thread
        return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            run_loop(loop, lambda: self._closing)
            left = _tasks_of(loop)  # what calls left behind for each other (clients, helpers) cleans up too
            for task in left:
                task.cancel()
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                if left:
                    loop.run_until_complete(_wait_for(left))
        finally:
            loop.close()

    def _play_all(self, calls: list[Call]) -> None:
        for call in calls:
            self._spawn(call, self._play(call, Recording(call.label)), call.limit)

    def _play_rest(self, call: Call, rest: Awaitable[Any], recording: Recording, started: float) -> None:
        left = None if call.limit is None else call.limit - (time.monotonic() - started)
        self._spawn(call, self._play_on(call, rest, recording, started), left)

    def _spawn(self, call: Call, play: Coroutine[Any, Any, None], limit: float | None) -> None:
        assert self._loop is not None
        alarm = None if limit is None else self._loop.call_later(limit, self._expire, call.number)
        task = self._loop.create_task(play)
        self._playing[call.number] = (task, alarm)
        task.add_done_callback(partial(self._account_for, call))

    async def _play(self, call: Call, recording: Recording) -> None:
        started = time.monotonic()
        self._starts[call.number] = started
        ending, result = self._attempt(call, recording)
        await self._play_on(call, result, recording, started, ending)

    async def _play_on(
        self, call: Call, result: Any, recording: Recording, started: float, ending: Ending = _RETURNED
    ) -> None:
        current_recording.set(recording)
        try:
            if ending is _RETURNED and isinstance(result, Awaitable):
                result = await result
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is its outcome
            ending, result = Ending.RAISED, error
        _, alarm = self._playing.pop(call.number)
        if alarm:
            alarm.cancel()
        ending = self._stopped.pop(call.number, ending)
        self._settle(call, self._outcome(call, ending, result, recording, started))

    def _account_for(self, call: Call, task: asyncio.Task[None]) -> None:
        """Emit an outcome for a call whose task ended without one: it was cancelled before its first step, or we failed."""
        playing, alarm = self._playing.get(call.number, (None, None))
        if playing is not task:
            return  # it has its outcome; the number may be another call's by now
        del self._playing[call.number]
        if alarm:
            alarm.cancel()
        outcome = Outcome(call.number, self._stopped.pop(call.number, Ending.RAISED), worker=self.place)
        if outcome.ending is Ending.RAISED:
            error = None if task.cancelled() else task.exception()
            outcome.error = _error_info(error or RuntimeError("the task was cancelled before it started"))
        self._settle(call, outcome)

    def _expire(self, number: int) -> None:
        self._stopped[number] = Ending.TIMED_OUT
        self._playing[number][0].cancel()

    def _cancel_playing(self) -> None:
        for number, (task, _) in self._playing.items():
            self._stopped.setdefault(number, Ending.CANCELLED)
            task.cancel()

    # --- both ---------------------------------------------------------------------------------------------------------

    def _attempt(self, call: Call, recording: Recording) -> tuple[Ending, Any]:
        """Make the call in the context of its own; the second value is what it returned or raised."""
        current_recording.set(recording)
        try:
            target = self._reusable.get(call.target.body) or self._unpacked(call.target)
            return _RETURNED, target(unpack(call.argument))
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is its outcome
            return Ending.RAISED, error

    def _unpacked(self, packed: Parcel) -> Any:
        """Return the target of a call; one that has no state is unpacked once for many calls."""
        target = unpack(packed)
        if getattr(target, "is_stateless", False):
            if len(self._reusable) >= _REUSABLE_KEPT:
                self._reusable.clear()
            self._reusable[packed.body] = target
        return target

    # --- ending -------------------------------------------------------------------------------------------------------

    def _outcome(self, call: Call, ending: Ending, result: Any, recording: Recording, started: float) -> Outcome:
        """Return the outcome of a call. User code runs in here, to pack an answer or to describe an error, and may raise."""
        outcome = Outcome(call.number, ending, seconds=time.monotonic() - started, worker=self.place)
        try:
            if ending is _RETURNED:
                if is_plain(result):
                    outcome.value = result
                else:
                    _put_answer(outcome, result, call.label)
            elif ending is Ending.RAISED:
                outcome.error = _error_info(result)
            if recording.usage:
                outcome.usage = recording.usage
            if recording.trajectory:
                _put_trajectory(outcome, recording.trajectory, call.label)
        except BaseException as error:  # noqa: BLE001 - a call without an outcome would be waited for without end
            outcome.ending, outcome.value, outcome.error = Ending.RAISED, None, _error_info(error)
        return outcome

    def _settle(self, call: Call, outcome: Outcome) -> None:
        self._finished(call.label)
        self._emit(outcome)
        (self._async_gate if call.is_async else self._sync_gate).leave()


def _is_awaitable(result: Any) -> bool:
    try:
        return isinstance(result, Awaitable)
    except BaseException:  # noqa: BLE001 - an answer may define `__class__` as it likes
        return False


def _put_answer(outcome: Outcome, answer: Any, label: str) -> None:
    from paragent.errors import Unserialisable

    try:
        outcome.value = pack(answer, f"the answer of task {label!r}", "answer")
    except Unserialisable as error:
        outcome.ending = Ending.RAISED
        outcome.error = _error_info(error)


def _error_info(error: BaseException) -> ErrorInfo:
    """Return the record of an error, whatever its own methods do."""

    try:
        info = fault(error)
    except BaseException:  # noqa: BLE001 - as in `_outcome`
        from paragent._internal.tracebacks import message_of, traceback_of, type_name
        from paragent.tasks import ErrorInfo

        kind, message = _described(type_name, error), _described(message_of, error)
        trace = _described(partial(traceback_of, of_ours=True), error)
        info = ErrorInfo(kind, message, trace, retryable=True)
    info.message = plain_text(info.message)
    return info


def _described(part: Callable[[BaseException], str], error: BaseException) -> str:
    try:
        return part(error)
    except BaseException as second:  # noqa: BLE001 - as in `_outcome`
        return f"(cannot be shown: its own code raised {type(second)!r})"


def _put_trajectory(outcome: Outcome, steps: list[Any], label: str) -> None:
    from paragent.errors import Unserialisable

    try:
        outcome.trajectory = pack(steps, f"the trajectory of task {label!r}", "trajectory")
    except Unserialisable as error:
        outcome.trajectory = pack([f"not kept: {error}"], "a note")


def _tasks_of(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    import asyncio

    return list(asyncio.all_tasks(loop))


async def _wait_for(tasks: list[asyncio.Task[Any]]) -> None:
    """Give cancelled tasks a moment to end."""
    import asyncio

    await asyncio.wait(tasks, timeout=_END_PATIENCE)


def fault(error: BaseException) -> ErrorInfo:
    """Return the record of an exception; frames of paragent above the user's code are left out of its traceback."""
    retryable = getattr(error, "retryable", True)
    return ErrorInfo(type_name(error), message_of(error), traceback_of(error, of_ours=True), bool(retryable))
