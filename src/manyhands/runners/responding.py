"""From a settlement to the response a user reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyhands._ids import new_trace_id
from manyhands.parcels import unpack
from manyhands.tasks import Ending, ErrorInfo, TaskResponse, TaskStatus

if TYPE_CHECKING:
    from manyhands.driver import Settlement
    from manyhands.tasks import Outcome, Task

__all__ = ["cancelled", "failed_before_start", "respond"]

_STATUS = {
    Ending.RETURNED: TaskStatus.SUCCEEDED,
    Ending.RAISED: TaskStatus.FAILED,
    Ending.TIMED_OUT: TaskStatus.TIMED_OUT,
    Ending.LOST: TaskStatus.LOST,
    Ending.CANCELLED: TaskStatus.CANCELLED,
}


def respond(settlement: Settlement) -> TaskResponse:
    """Return the response to the task whose work was settled."""
    owed, outcome = settlement.owed, settlement.outcome
    task: Task = owed.source
    status = _STATUS[outcome.ending]
    answer, error = None, outcome.error
    if status is TaskStatus.SUCCEEDED:
        try:
            answer = unpack(outcome.value)
        except Exception as problem:  # noqa: BLE001 - whatever keeps an answer from being read is the task's failure
            status, error = TaskStatus.FAILED, _unreadable(problem)
    elif status is TaskStatus.TIMED_OUT:
        error = ErrorInfo(
            "TimeoutError", f"stopped after {outcome.seconds:.3g} s of work; its limit is {owed.limit:g} s"
        )
    return TaskResponse(
        id=task.id,
        answer=answer,
        success=status is TaskStatus.SUCCEEDED,
        status=status,
        msg=_sentence(status, error, owed.attempt, outcome),
        error=error,
        time_cost=outcome.seconds,
        queue_time=settlement.waited,
        attempts=0 if status is TaskStatus.CANCELLED and not outcome.seconds else owed.attempt,
        usage=outcome.usage or {},
        trajectory=_steps(outcome),
        trace_id=new_trace_id(),
        worker=outcome.worker,
        name=task.name,
        metadata=task.metadata,
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
    error = ErrorInfo(type(problem).__name__, str(problem))
    return TaskResponse(
        id=task.id, msg=str(error), error=error, trace_id=new_trace_id(), name=task.name, metadata=task.metadata
    )


def _sentence(status: TaskStatus, error: ErrorInfo | None, attempts: int, outcome: Outcome) -> str:
    if status is TaskStatus.SUCCEEDED:
        return ""
    if status is TaskStatus.CANCELLED:
        return f"cancelled after {outcome.seconds:.3g} s of work" if outcome.seconds else "cancelled before it started"
    text = str(error) if error else str(status)
    return text if attempts == 1 else f"{text} (attempt {attempts})"


def _steps(outcome: Outcome) -> list[Any]:
    if outcome.trajectory is None:
        return []
    try:
        steps: list[Any] = unpack(outcome.trajectory)
    except Exception as problem:  # noqa: BLE001 - the answer counts even if a recorded step cannot be read here
        return [f"not readable here: {type(problem).__name__}: {problem}"]
    return steps


def _unreadable(problem: Exception) -> ErrorInfo:
    kind = type(problem)
    return ErrorInfo(
        f"{kind.__module__}.{kind.__qualname__}", f"the answer arrived but cannot be read in this process: {problem}"
    )
