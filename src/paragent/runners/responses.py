"""From a settlement to the response a user reads."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent._internal.clock import monotonic
from paragent._internal.ids import new_trace_id
from paragent._internal.tracebacks import message_of, type_name
from paragent.agents import Reply, replies_async
from paragent.agents.invoke import require_agent
from paragent.errors import DuplicateTaskId, UsageError
from paragent.serialization import Parcel, is_plain, unpack
from paragent.serialization.packing import Packer
from paragent.tasks import Ending, ErrorInfo, Task, TaskResponse, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.config import RunConfig
    from paragent.tasks import Outcome

__all__ = ["Owed", "Preparer", "Settlement", "cancelled", "check_ids", "failed_before_start", "require_task", "respond"]


_SUCCEEDED, _CANCELLED = TaskStatus.SUCCEEDED, TaskStatus.CANCELLED
_STATUS = {
    Ending.RAISED: TaskStatus.FAILED,
    Ending.TIMED_OUT: TaskStatus.TIMED_OUT,
    Ending.LOST: TaskStatus.LOST,
    Ending.CANCELLED: TaskStatus.CANCELLED,
}


def respond(settlement: Settlement) -> TaskResponse:
    """Return the response to the task whose work was settled."""
    owed, outcome = settlement.owed, settlement.outcome
    task: Task = owed.source
    if outcome.ending is Ending.RETURNED:
        status, answer, error = _SUCCEEDED, outcome.value, None
        if type(answer) is Parcel:
            status, answer, error = _read(answer)
    else:
        status, answer, error = _STATUS[outcome.ending], None, outcome.error
        if status is TaskStatus.TIMED_OUT:
            error = _limit_reached(outcome.seconds, owed.limit)
    attempts = 0 if status is _CANCELLED and not outcome.seconds else owed.attempt
    return TaskResponse(  # by position, in the order of the fields: by name it takes twice as long
        task.id,
        answer,
        status is _SUCCEEDED,
        status,
        "" if status is _SUCCEEDED else _sentence(status, error, owed.attempt, outcome),
        error,
        outcome.seconds,
        settlement.waited,
        attempts,
        outcome.usage or {},
        [] if outcome.trajectory is None else _steps(outcome.trajectory),
        new_trace_id(),
        outcome.worker if attempts else "",
        task.name,
        task.metadata,
    )


def cancelled(task: Task, reason: str) -> TaskResponse:
    """Return the response to a task that was never started and will not be."""
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


def _read(packed: Parcel) -> tuple[TaskStatus, Any, ErrorInfo | None]:
    """Return the status, the answer and the error of a task that has sent `packed`."""
    try:
        return _SUCCEEDED, unpack(packed), None
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # noqa: BLE001 - whatever keeps an answer from being read is the task's failure
        return TaskStatus.FAILED, None, _unreadable(problem)


def _limit_reached(seconds: float, limit: float | None) -> ErrorInfo:
    return ErrorInfo("TimeoutError", f"stopped after {seconds:.3g} s of work; its limit is {limit:g} s")


def _sentence(status: TaskStatus, error: ErrorInfo | None, attempts: int, outcome: Outcome) -> str:
    if status is TaskStatus.CANCELLED:
        return f"cancelled after {outcome.seconds:.3g} s of work" if outcome.seconds else "cancelled before it started"
    text = str(error) if error else str(status)
    return text if attempts == 1 else f"{text} (attempt {attempts})"


def _steps(packed: Any) -> list[Any]:
    try:
        steps: list[Any] = unpack(packed)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # noqa: BLE001 - the answer counts even if a recorded step cannot be read here
        return [f"not readable here: {type_name(problem)}: {message_of(problem)}"]
    return steps


def _unreadable(problem: BaseException) -> ErrorInfo:
    return ErrorInfo(
        type_name(problem), f"the answer arrived but cannot be read in this process: {message_of(problem)}"
    )


_AGENTS_KEPT = 64
"""Packed agents that are kept; a run whose every task has an agent of its own packs each once and forgets it."""


def check_ids(tasks: Sequence[Task]) -> None:
    """Refuse a list in which an id stands twice.

    Raises:
        UsageError: something in the list is no task.
        DuplicateTaskId: two tasks have the same id.
    """
    seen: set[str] = set()
    for task in tasks:
        require_task(task)
        if task.id in seen:
            raise DuplicateTaskId(task.id)
        seen.add(task.id)


def require_task(task: Any) -> None:
    """Refuse what is no task.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(task, Task):
        raise UsageError(f"expected a Task, got {task!r}; write Task(input=..., agent=...)")


class Preparer:
    """Packs the tasks of one run; an agent that many tasks share is packed once."""

    def __init__(self, config: RunConfig, *, carries_modules: bool = False) -> None:
        self._timeout = config.timeout
        self._max_retries = config.max_retries
        self._packer = Packer(carries_modules=carries_modules)
        self._agents: OrderedDict[int, tuple[Any, Parcel, bool]] = OrderedDict()

    def owed(self, task: Task, given: Any) -> Owed:
        """Return what is owed for `task` when its agent is given `given`.

        Raises:
            UsageError: the task has no agent that can reply.
            Unserialisable: its agent or input cannot be sent to a worker.
        """
        packed = self._agents.get(id(task.agent))
        if packed is None:
            packed = self._pack_agent(task)
        _, target, is_async = packed
        argument = given if is_plain(given) else self._packer.pack(given, f"task {task.id!r}", "input")
        return Owed(
            task.id,
            target,
            argument,
            is_async,
            self._timeout if task.timeout is None else float(task.timeout),
            self._max_retries if task.max_retries is None else task.max_retries,
            task,
        )

    def _pack_agent(self, task: Task) -> tuple[Any, Parcel, bool]:
        agent = task.agent
        require_agent(agent, f"task {task.id!r}")
        target = self._packer.pack(Reply(agent), f"task {task.id!r}", "task")
        packed = (agent, target, replies_async(agent))
        self._agents[id(agent)] = packed
        if len(self._agents) > _AGENTS_KEPT:
            self._agents.popitem(last=False)
        return packed


@dataclass(slots=True, eq=False)
class Owed:
    """A piece of work for which one settlement is owed, and how often it may be tried."""

    label: str
    """The task's id."""
    target: Parcel
    argument: Any
    is_async: bool = False
    limit: float | None = None
    max_retries: int | None = None
    """Further attempts; None: the defaults of `paragent.runners.retry`."""
    source: Any = None
    """Whatever the caller wants to find again on the settlement."""
    accepted: float = field(default_factory=monotonic)
    """When the run took charge of it."""
    attempt: int = 1
    """The attempt under way, counted from 1; attempts that are not charged do not count."""
    company: int = 0


@dataclass(slots=True, eq=False)
class Settlement:
    """The end of a piece of work: the outcome that decided."""

    owed: Owed
    outcome: Outcome
    waited: float
    """Seconds from acceptance to the end that were not this attempt's work."""
