"""Dispatch loop: sends calls to an engine and turns each outcome into a response or a retry.

All work passes through it, whatever the engine: the tasks of `Runners` and the rollouts of `paragent rollout`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from paragent._internal.clock import Clock, monotonic
from paragent.engines.base import CHANGES_KEPT, Call, WorkerChange
from paragent.errors import EngineFailed
from paragent.execution import Ending, Outcome
from paragent.runners.calls import respond
from paragent.runners.lost_workers import LostWorkers
from paragent.runners.retry import Failure, RetryPolicy, smaller_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paragent.engines.base import RuntimeEngine
    from paragent.tasks import ErrorInfo, TaskResponse

__all__ = ["DispatchLoop"]


class _Repeat(NamedTuple):
    """A call whose outcome is followed by another execution of its task."""

    call: Call
    outcome: Outcome
    executions: int
    max_group: int


class DispatchLoop:
    """Keeps an engine supplied within its window and collects the responses.

    It has no thread of its own: the caller submits calls while there is `room`, and calls `collect`. It belongs to one thread
    at a time. Ctrl-C may interrupt any method at any point: outcomes of the engine are kept until their responses are in
    `ready`, and each step can be repeated, so no response is lost and no task gets two.
    """

    def __init__(self, engine: RuntimeEngine, max_retries: int | None = None, clock: Clock = monotonic) -> None:
        self._engine = engine
        self._max_retries = max_retries
        """Of tasks that set none themselves."""
        self._clock = clock
        self._under_way: dict[int, Call] = {}
        self._arrived: list[Outcome] = []
        """Outcomes that were taken from the engine and may not have been processed."""
        self._repeats: dict[int, _Repeat] = {}
        """Calls that are to be executed again; they are also in `_under_way`."""
        self.ready: dict[int, TaskResponse] = {}
        """Responses, by the number of their call. The caller removes each response when it has stored it elsewhere."""
        self.changes: deque[WorkerChange] = deque(maxlen=CHANGES_KEPT)
        """What happened to workers. The caller may remove what it has used."""
        self._lost_workers = LostWorkers(clock)
        self._cancelled = False
        self._failure: EngineFailed | None = None

    @property
    def outstanding(self) -> int:
        """How many calls were submitted and have no response."""
        return len(self._under_way)

    @property
    def room(self) -> int:
        """How many more calls may be submitted now."""
        return max(0, self._engine.window - len(self._under_way))

    @property
    def running(self) -> int:
        """How many of the outstanding calls occupy a slot of a worker."""
        is_async = sum([call.is_async for call in self._under_way.values()])
        return self._engine.running(len(self._under_way) - is_async, is_async)

    def has(self, call: Call) -> bool:
        """Return whether a call was submitted and its response was not removed from `ready`."""
        return call.number in self._under_way or call.number in self.ready

    def tasks(self) -> Iterable[object]:
        """Return the tasks that were submitted and have no response."""
        return [call.task for call in self._under_way.values()]

    def submit(self, calls: Sequence[Call]) -> None:
        """Send calls to the engine; each task gets exactly one response."""
        self._under_way.update({call.number: call for call in calls})
        self._engine.submit(calls)

    def collect(self, timeout: float) -> None:
        """Add responses to `ready`, waiting up to `timeout` seconds for an outcome.

        Raises:
            EngineFailed: the engine cannot go on; `abandon` responds to the calls that are left.
        """
        if self._failure:
            raise self._failure
        if not self._arrived:
            self._arrived.extend(self._engine.wait(timeout))
        self.take_changes()
        self._process_arrived()
        if self._repeats:
            try:
                self._repeat()
            except EngineFailed as failure:
                if not self.ready:
                    raise
                self._failure = failure  # raised by the next call, because this one has responses

    def take_changes(self, *, last: bool = False) -> None:
        """Take what happened to workers from the engine, and log lost ones; `last`: log all that were not logged."""
        for change in self._engine.worker_changes():
            self.changes.append(change)
            if change.event == "lost":
                self._lost_workers.note(change.worker, change.detail)
            elif change.event == "started":
                self._lost_workers.note_start(change.worker)
        self._lost_workers.log(now=last)

    def _process_arrived(self) -> None:
        now = self._clock()
        under_way, ready, repeats = self._under_way, self.ready, self._repeats
        returned = Ending.RETURNED
        for outcome in self._arrived:
            number = outcome.number
            call = under_way.get(number)
            if call is None or number in repeats:
                continue  # it was processed before an interruption, or belongs to a run that was abandoned
            if outcome.ending is not returned:
                if outcome.ending is Ending.LOST:  # an engine need not report its workers
                    worker = outcome.worker or f"call {number}"
                    self._lost_workers.note(worker, outcome.error.message if outcome.error else worker)
                if (repeat := self._repeat_of(call, outcome)) is not None:
                    repeats[number] = repeat
                    continue
            ready[number] = respond(call, outcome, now)
            del under_way[number]
        self._arrived.clear()

    def _repeat_of(self, call: Call, outcome: Outcome) -> _Repeat | None:
        """Return how the task of a call that did not return is executed again, or None if the outcome is final."""
        ending, executions, max_group = outcome.ending, call.executions, call.max_group
        suspected = ending is Ending.LOST and not outcome.alone
        counts = not suspected and ending is not Ending.DISPLACED
        if counts and not self._policy(call).allows(_failure(outcome), executions):
            return None
        if self._cancelled:
            outcome.ending = Ending.CANCELLED
            return None
        if suspected:
            suspects = sum(1 for other in self._arrived if other.ending is Ending.LOST and not other.alone)
            max_group = smaller_group(suspects, max_group, self._engine.config.workers)
        elif counts:
            executions += 1
            if ending is Ending.LOST:
                max_group = 1  # it may kill the next worker too, so no other call may share that worker
        return _Repeat(call, outcome, executions, max_group)

    def _policy(self, call: Call) -> RetryPolicy:
        own: int | None = call.task.max_retries
        return RetryPolicy.for_task(self._max_retries if own is None else own)

    def _repeat(self) -> None:
        """Submit calls again, or respond to them if the run was cancelled meanwhile."""
        repeats, under_way = self._repeats, self._under_way
        if self._cancelled:
            for number, (call, outcome, _, _) in repeats.items():
                if number in under_way:
                    outcome.ending = Ending.CANCELLED
                    self.ready[number] = respond(call, outcome, self._clock())
                    del under_way[number]
            repeats.clear()
            return
        calls = {}
        for call, outcome, executions, max_group in repeats.values():
            number = next(self._engine.numbers)
            calls[number] = _again(call, number, executions, max_group, outcome.error)
        others = {number: call for number, call in under_way.items() if number not in repeats}
        self._under_way, self._repeats = others | calls, {}  # in one step, so that each task is under way once
        self._engine.submit(list(calls.values()))

    def cancel(self, grace: float) -> None:
        """Have the engine stop everything. The responses follow from `collect`; nothing is retried any more."""
        self._cancelled = True
        self._engine.cancel(grace)

    def abandon(self, reason: Ending) -> None:
        """Respond to every outstanding call without waiting for its outcome."""
        self._process_arrived()
        now = self._clock()
        for number, call in list(self._under_way.items()):
            self.ready[number] = respond(call, Outcome(number, reason), now)
            del self._under_way[number]


def _again(call: Call, number: int, executions: int, max_group: int, error: ErrorInfo | None) -> Call:
    """Return the call that executes the same task again, after `error`."""
    return Call(
        number,
        call.target,
        call.argument,
        call.label,
        call.limit,
        call.is_async,
        max_group,
        call.task,
        call.accepted,
        executions,
        call.earlier_errors if error is None else (*call.earlier_errors, error),
    )


def _failure(outcome: Outcome) -> Failure:
    """Return how an execution failed, for the retry policy."""
    if outcome.ending is Ending.LOST:
        return Failure.INFRASTRUCTURE
    if outcome.ending is Ending.RAISED and outcome.error and outcome.error.retryable:
        return Failure.TASK
    return Failure.FINAL
