"""From outcomes to the responses that users read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._internal.ids import new_trace_id
from paragent._internal.tracebacks import message_of, type_name
from paragent.serialization import Payload, unpack
from paragent.tasks import Ending, ErrorInfo, Task, TaskResponse, TaskStatus

if TYPE_CHECKING:
    from paragent.tasks import Outcome
    from paragent.worker.protocol import Call

__all__ = ["cancelled", "failed_before_start", "respond"]

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
        if status is TaskStatus.TIMED_OUT:
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
    return ErrorInfo("TimeoutError", f"stopped after {seconds:.3g} s of work; its limit is {limit:g} s")


def _describe(status: TaskStatus, error: ErrorInfo | None, executions: int, outcome: Outcome) -> str:
    """Return `TaskResponse.msg` of a task without success."""
    if status is TaskStatus.CANCELLED:
        return f"cancelled after {outcome.seconds:.3g} s of work" if outcome.seconds else "cancelled before it started"
    text = str(error) if error else str(status)
    retries = executions - 1
    return f"{text} (after {retries} {'retry' if retries == 1 else 'retries'})" if retries else text
