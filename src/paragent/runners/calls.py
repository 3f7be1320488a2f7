"""From tasks to calls, and from outcomes to the responses that users read."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from paragent._internal.clock import monotonic
from paragent._internal.ids import new_trace_id
from paragent._internal.tracebacks import message_of, type_name
from paragent.agents import Reply, replies_async
from paragent.agents.base import require_agent
from paragent.errors import DuplicateTaskId, UsageError
from paragent.execution import Ending
from paragent.serialization import Payload, is_plain, unpack
from paragent.serialization.packing import Packer
from paragent.tasks import ErrorInfo, Task, TaskResponse, TaskStatus
from paragent.worker.protocol import Call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paragent.config import RunConfig
    from paragent.execution import Outcome

__all__ = ["IdSet", "Preparer", "TaskSequence", "cancelled", "failed_before_start", "require_task", "respond"]


_SUCCEEDED, _CANCELLED = TaskStatus.SUCCEEDED, TaskStatus.CANCELLED
_STATUS = {
    Ending.RAISED: TaskStatus.FAILED,
    Ending.TIMED_OUT: TaskStatus.TIMED_OUT,
    Ending.LOST: TaskStatus.LOST,
    Ending.CANCELLED: TaskStatus.CANCELLED,
}


def respond(call: Call, outcome: Outcome, now: float) -> TaskResponse:
    """Return the response to the task of `call`, which ended with `outcome` at the time `now`."""
    task: Task = call.task
    if outcome.ending is Ending.RETURNED:
        status, answer, error = _SUCCEEDED, outcome.value, None
        if type(answer) is Payload:
            status, answer, error = _read_answer(answer)
    else:
        status, answer, error = _STATUS[outcome.ending], None, outcome.error
        if status is TaskStatus.TIMED_OUT and error is None:
            error = _limit_reached(outcome.seconds, call.limit)
    seconds = outcome.seconds
    executions = 0 if status is _CANCELLED and not seconds else call.executions
    return TaskResponse(  # positional arguments, in the order of the fields: keywords take twice as long
        task.id,
        answer,
        status is _SUCCEEDED,
        status,
        "" if status is _SUCCEEDED else _describe(status, error, call.executions, outcome),
        error,
        seconds,
        max(0.0, now - call.accepted - seconds),
        executions,
        outcome.usage or {},
        [] if outcome.trajectory is None else _read_trajectory(outcome.trajectory),
        new_trace_id(),
        outcome.worker if executions else "",
        task.name,
        task.metadata,
        call.earlier_errors,
    )


def cancelled(task: Task, reason: str) -> TaskResponse:
    """Return the response to a task that was not started and will not be."""
    return TaskResponse(
        id=task.id,
        status=TaskStatus.CANCELLED,
        msg=reason,
        trace_id=new_trace_id(),
        name=task.name,
        metadata=task.metadata,
    )


def failed_before_start(task: Task, problem: Exception) -> TaskResponse:
    """Return the response to a task that could not be sent to a worker."""
    error = ErrorInfo(type_name(problem), str(problem))
    return TaskResponse(
        id=task.id, msg=str(error), error=error, trace_id=new_trace_id(), name=task.name, metadata=task.metadata
    )


def _read_answer(packed: Payload) -> tuple[TaskStatus, Any, ErrorInfo | None]:
    """Unpack an answer; return the status, the answer and the error of its task."""
    try:
        return _SUCCEEDED, unpack(packed), None
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # noqa: BLE001 - an answer that cannot be unpacked is a failure of its task
        text = f"the answer arrived but cannot be read in this process: {message_of(problem)}"
        return TaskStatus.FAILED, None, ErrorInfo(type_name(problem), text)


def _read_trajectory(packed: Any) -> list[Any]:
    try:
        steps: list[Any] = unpack(packed)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # noqa: BLE001 - the answer counts even if a recorded step cannot be unpacked
        return [f"not readable here: {type_name(problem)}: {message_of(problem)}"]
    return steps


def _limit_reached(seconds: float, limit: float | None) -> ErrorInfo:
    limit = seconds if limit is None else limit
    shown = max(limit, float(f"{seconds:.3g}"))  # rounded, but not below the limit
    return ErrorInfo("TimeoutError", f"stopped after {shown:g} s of work; its limit is {limit:g} s")


def _describe(status: TaskStatus, error: ErrorInfo | None, executions: int, outcome: Outcome) -> str:
    """Return `TaskResponse.msg` of a task without success."""
    if status is TaskStatus.CANCELLED:
        return f"cancelled after {outcome.seconds:.3g} s of work" if outcome.seconds else "cancelled before it started"
    text = str(error) if error else str(status)
    retries = executions - 1
    return f"{text} (after {retries} {'retry' if retries == 1 else 'retries'})" if retries else text


_AGENTS_KEPT = 64
"""Packed agents that are kept. A run in which every task has an agent of its own packs each agent once and drops it."""


class Preparer:
    """Makes the calls of one run. An agent that many tasks share is packed once."""

    def __init__(self, config: RunConfig, numbers: Iterator[int], *, sends_modules: bool = False) -> None:
        self._timeout = config.timeout
        self._numbers = numbers
        self._packer = Packer(sends_modules=sends_modules)
        self._agents: OrderedDict[int, tuple[Any, Payload, bool]] = OrderedDict()

    def calls(self, tasks: Iterable[Any]) -> list[Call]:
        """Return the calls of tasks that are all known.

        Raises:
            UsageError: an element is not a task, or its agent cannot be called.
            DuplicateTaskId: two tasks have the same id.
            Unserialisable: an agent or an input cannot be sent to a worker.
        """
        ids: set[str] = set()
        calls: list[Call] = []
        now = monotonic()
        for task in tasks:
            require_task(task)
            if task.id in ids:
                raise DuplicateTaskId(task.id)
            ids.add(task.id)
            calls.append(self._call(task, task.input, now))
        return calls

    def call(self, task: Task, given: Any) -> Call:
        """Return the call that gives `given` to the agent of `task`.

        Raises:
            UsageError: the agent cannot be called.
            Unserialisable: the agent or the input cannot be sent to a worker.
        """
        return self._call(task, given, monotonic())

    def _call(self, task: Task, given: Any, now: float) -> Call:
        _, target, is_async = self._agents.get(id(task.agent)) or self._pack_agent(task)
        return Call(
            next(self._numbers),
            target,
            given if is_plain(given) else self._packer.pack(given, f"task {task.id!r}", "input"),
            task.id,
            self._timeout if task.timeout is None else float(task.timeout),
            is_async,
            0,
            task,
            now,
        )

    def _pack_agent(self, task: Task) -> tuple[Any, Payload, bool]:
        agent = task.agent
        require_agent(agent, f"task {task.id!r}")
        target = self._packer.pack(Reply(agent), f"task {task.id!r}", "task")
        packed = (agent, target, replies_async(agent))
        self._agents[id(agent)] = packed
        if len(self._agents) > _AGENTS_KEPT:
            self._agents.popitem(last=False)
        return packed


def require_task(task: Any) -> None:
    """Check that an object is a task.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(task, Task):
        raise UsageError(f"expected a Task, got {task!r}; write Task(input=..., agent=...)")


class TaskSequence:
    """The state of a sequence of dependent tasks: each answer is the input of the next task."""

    def __init__(self) -> None:
        self._last: TaskResponse | None = None

    @property
    def broken(self) -> str | None:
        """Why no further task can run, or None."""
        last = self._last
        if last is None or last.success:
            return None
        return f"not run: task {last.id!r}, before it in the sequence, {last.status}"

    def next_input(self, task: Task) -> Any:
        """Return the input of the next task: the last answer, or the task's own input if it is the first."""
        return task.input if self._last is None else self._last.answer

    def note(self, response: TaskResponse) -> None:
        """Record the response to the task that was next. After a failure the state does not change any more."""
        if self.broken is None:
            self._last = response


_FIRST_SIZE = 1 << 10


class IdSet:
    """A set of strings that stores a hash of 64 bits of each, in an open-addressing table at most half full.

    Among a million ids, the probability that two different ones are taken for the same is 3e-8.
    """

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * _FIRST_SIZE))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, task_id: str) -> bool:
        """Add an id; return False if the set had it already."""
        if 2 * self._count >= len(self._table):
            self._grow()
        added = self._insert(hash(task_id) & 0xFFFF_FFFF_FFFF_FFFF or 1)
        self._count += added
        return added

    def _insert(self, value: int) -> bool:
        table, mask = self._table, len(self._table) - 1
        index = (value ^ (value >> 32)) & mask
        while table[index]:
            if table[index] == value:
                return False
            index = (index + 1) & mask
        table[index] = value
        return True

    def _grow(self) -> None:
        old = self._table
        self._table = array("Q", bytes(16 * len(old)))
        for value in old:
            if value:
                self._insert(value)
