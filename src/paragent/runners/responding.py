"""From a settlement to the response a user reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._faults import message_of, type_name
from paragent._ids import new_trace_id
from paragent.parcels import Parcel, unpack
from paragent.tasks import Ending, ErrorInfo, TaskResponse, TaskStatus

if TYPE_CHECKING:
    from paragent.driver import Settlement
    from paragent.tasks import Outcome, Task

__all__ = ["cancelled", "failed_before_start", "respond"]

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
