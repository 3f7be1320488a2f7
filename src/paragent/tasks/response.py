"""What a user gets for each task."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from paragent.errors import TaskFailed

__all__ = ["ErrorInfo", "TaskResponse", "TaskStatus"]


class TaskStatus(StrEnum):
    """How a task ended. Every task ends in exactly one of these, and all of them are final."""

    SUCCEEDED = "succeeded"
    """The agent replied; `answer` is what it said, falsy answers included."""
    FAILED = "failed"
    """The agent's code raised, or its answer could not be sent back."""
    TIMED_OUT = "timed out"
    """The agent worked longer than the time limit and was stopped."""
    LOST = "lost"
    """Every attempt that was allowed ended with the death of its worker."""
    CANCELLED = "cancelled"
    """The task was not finished, and will not be: Ctrl-C, or an earlier task of its chain failed."""


@dataclass(slots=True)
class ErrorInfo:
    """An error as it can cross processes: names and text, never the exception object."""

    type: str
    """The name of the exception's class, with its module unless it is a builtin or one of paragent."""
    message: str
    traceback: str = ""
    """The far side's traceback from the first line of the user's code on, or, where that is not Python, the line that called it;
    empty where nothing was raised."""
    retryable: bool = False
    """Whether another attempt may end differently."""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(slots=True)
class TaskResponse:
    """The one honest response to one task."""

    id: str
    answer: Any = None
    success: bool = False
    status: TaskStatus = TaskStatus.FAILED
    msg: str = ""
    """One sentence for people: empty on success."""
    error: ErrorInfo | None = None
    time_cost: float = 0.0
    """Seconds of work of the attempt that decided."""
    queue_time: float = 0.0
    """Seconds from acceptance to the response in which that attempt was not working: queues, earlier attempts, the way."""
    attempts: int = 0
    """How many attempts were made and charged to the task; 0 if it never started."""
    usage: dict[str, float] = field(default_factory=dict)
    trajectory: list[Any] = field(default_factory=list)
    trace_id: str = ""
    worker: str = ""
    """Where the deciding attempt ran, as `host:pid`."""
    name: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def unwrap(self) -> Any:
        """Return the answer.

        Raises:
            TaskFailed: there is none; the message has the far side's traceback.
        """
        if self.success:
            return self.answer
        detail = self.error.traceback if self.error and self.error.traceback else self.msg
        raise TaskFailed(f"task {self.id!r} {self.status}: {detail}", self)
