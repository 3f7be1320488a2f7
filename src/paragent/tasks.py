"""Records of tasks: `Task` in, `TaskResponse` out. What an engine returns for one execution is in `paragent.execution`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict

from paragent._internal.ids import new_id
from paragent._internal.representations import short_record
from paragent._internal.validation import integer, seconds, suggests_fields
from paragent.errors import ConfigError, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ANSWERED",
    "ANSWER_CUT",
    "CONTEXT_FULL",
    "CUT_ENDINGS",
    "TURNS_USED_UP",
    "BenchmarkTask",
    "ErrorInfo",
    "Task",
    "TaskResponse",
    "TaskSettings",
    "TaskStatus",
    "content_digest",
]


@suggests_fields
@dataclass(slots=True)
class Task:
    """An input and the agent that replies to it.

    Every execution gets a copy of the agent in the state that it had when the run began, so tasks that share an agent object
    do not see each other's changes to it.

    Raises:
        ConfigError: a field is unknown, the id is not a string, or a limit is out of range.
    """

    input: Any = None
    """The input of the agent. An `AgentBase` receives it as `Msg.content` (or unchanged, if it is a `Msg`), a function
    receives it unchanged."""
    agent: Callable[[Any], Any] | None = None
    """An `AgentBase`, or any function of one argument, sync or async."""
    id: str = field(default_factory=lambda: new_id("task"))
    """Unique within a run; the key of the response."""
    name: str = ""
    """For people: shown instead of the id in logs and displays."""
    timeout: float | None = None
    """Seconds of work before the execution is stopped, counted from its start in a worker; None: the run's limit."""
    max_retries: int | None = None
    """As `RunConfig.max_retries`, for this task; None: that of the run."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Copied to the response; neither interpreted nor sent to workers."""

    def __post_init__(self) -> None:
        if type(self.id) is not str or not self.id:
            raise ConfigError(f"a task's id must be a non-empty string, not {self.id!r}")
        if self.timeout is not None:
            seconds(self.timeout, f"task {self.id!r}: timeout", none=True)
        if self.max_retries is not None:
            integer(self.max_retries, f"task {self.id!r}: max_retries", least=0, none=True)


class TaskSettings(TypedDict, total=False):
    """The fields of `Task` besides input and agent, as keyword arguments: `def run(**settings: Unpack[TaskSettings])`."""

    id: str
    name: str
    timeout: float | None
    max_retries: int | None
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BenchmarkTask:
    """A task of a benchmark: the question, the expected answer, and the other keys of its line in the file."""

    id: str
    """Unique within the benchmark."""
    question: str
    """What the agent is asked."""
    answer: Any = None
    """The expected answer: a string, a number, a list of acceptable answers, or None if the benchmark has none."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """All other keys of the line. Each environment documents which of them it reads."""

    @property
    def references(self) -> tuple[str, ...]:
        """All acceptable answers as strings; empty if the benchmark has none."""
        if self.answer is None:
            return ()
        if isinstance(self.answer, (list, tuple)):
            return tuple(str(one) for one in self.answer)
        return (str(self.answer),)


def content_digest(task: BenchmarkTask, *, references: bool = True) -> str:
    """Return 12 hexadecimal digits that tell tasks with different contents apart, whatever their ids.

    Args:
        task: the task.
        references: whether the reference answers belong to the content, besides question, choices and images.
    """
    shown = {name: task.metadata[name] for name in _SHOWN if name in task.metadata}
    parts = [" ".join(task.question.split()), shown, *([task.references] if references else [])]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class TaskStatus(StrEnum):
    """How a task ended. Every task ends in exactly one of these, and all of them are final."""

    SUCCEEDED = "succeeded"
    """The agent replied; `answer` has its answer, which may be falsy."""
    FAILED = "failed"
    """The agent's code raised, or its answer could not be sent back."""
    TIMED_OUT = "timed out"
    """The agent exceeded the time limit and was stopped."""
    LOST = "lost"
    """Every execution that was allowed ended with the death of its worker."""
    CANCELLED = "cancelled"
    """The task was stopped or not started: Ctrl-C, or an earlier task of its sequence failed."""


@dataclass(slots=True)
class ErrorInfo:
    """An error as text, which every process can read; it has no exception object."""

    type: str
    """The name of the exception's class, with its module unless it is a builtin or one of paragent."""
    message: str
    """The message of the exception."""
    traceback: str = ""
    """The traceback in the worker, from the first line of the user's code; if that is not Python, from the line that called
    it. Empty if nothing was raised."""
    retryable: bool = False
    """Whether a retry may succeed."""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(slots=True, repr=False)
class TaskResponse:
    """The response to one task. Every task gets exactly one.

    `repr` leaves out what says nothing: empty fields, and fields that repeat others.
    """

    id: str
    """The id of the task."""
    answer: Any = None
    """The answer of the agent; None if there is none."""
    success: bool = False
    """Whether there is an answer."""
    status: TaskStatus = TaskStatus.FAILED
    """How the task ended."""
    msg: str = ""
    """The failure in one sentence; empty on success."""
    error: ErrorInfo | None = None
    """The failure with its traceback; None on success."""
    time_cost: float = 0.0
    """Seconds of work of the last execution."""
    queue_time: float = 0.0
    """Seconds from acceptance to the response without `time_cost`: queues, earlier executions, transport."""
    executions: int = 0
    """How many times the task was executed, retries included; 0 if it never started. Executions that ended because of
    another task in the same worker do not count."""
    usage: dict[str, float] = field(default_factory=dict)
    """What the agent recorded with `record_usage`, added up."""
    trajectory: list[Any] = field(default_factory=list)
    """What the agent recorded with `record_step`, in order."""
    trace_id: str = ""
    """An id for tracing, unique for each task of a run."""
    worker: str = ""
    """The worker of the last execution, as `host:pid`."""
    name: str = ""
    """The name of the task."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The metadata of the task."""
    earlier_errors: tuple[ErrorInfo, ...] = ()
    """The errors of earlier executions, oldest first: lost workers, and errors after which the task was retried. It may have
    more of them than `executions` counts, because an execution that was lost together with others does not count."""

    def __repr__(self) -> str:
        return short_record(self, always=("status",), never=("error", "success", "trace_id"))

    def unwrap(self) -> Any:
        """Return the answer.

        Raises:
            TaskFailed: the task has no answer; the message has the traceback of the worker.
        """
        if self.success:
            return self.answer
        detail = self.error.traceback if self.error and self.error.traceback else self.msg
        raise TaskFailed(f"task {self.id!r} {self.status}: {detail}", self)


ANSWERED = "answered"
"""The ending of a rollout whose agent gave its answer."""
TURNS_USED_UP = "turns used up"
"""The ending of a rollout that reached its limit of turns."""
ANSWER_CUT = "answer cut"
"""The ending of a rollout whose last reply reached the limit of tokens, or whose program printed too much."""
CONTEXT_FULL = "context full"
"""The ending of a rollout whose messages did not fit into the model's context any more."""
CUT_ENDINGS = (ANSWER_CUT, CONTEXT_FULL)
"""The endings of rollouts whose answer may be incomplete because such a limit was reached."""
_SHOWN = ("choices", "image", "images")
"""Keys of a task that its question refers to."""
