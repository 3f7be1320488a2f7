"""Records of tasks: `Task` in, `Outcome` from an engine, `TaskResponse` out; and what running code can record."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from paragent._internal.ids import new_id
from paragent._internal.validation import integer, seconds
from paragent.errors import ConfigError, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "TURNS_USED_UP",
    "Activity",
    "BenchmarkTask",
    "Ending",
    "ErrorInfo",
    "ExecutionRecord",
    "Outcome",
    "Task",
    "TaskResponse",
    "TaskStatus",
    "current_activity",
    "current_record",
    "current_task",
    "doing",
    "record_step",
    "record_usage",
    "waiting",
]


@dataclass(slots=True)
class Task:
    """An input and the agent that replies to it.

    Every execution gets a copy of the agent in the state that it had when the run began, so tasks that share an agent object
    do not see each other's changes to it.

    Raises:
        ConfigError: the id is not a string, or a limit is out of range.
    """

    input: Any = None
    """The input of the agent. An `AgentBase` receives it as `Msg.content` (or unchanged, if it is a `Msg`), a function
    receives it unchanged."""
    agent: Any = None
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


@dataclass(frozen=True, slots=True)
class BenchmarkTask:
    """A task of a benchmark: the question, the expected answer, and the other keys of its line in the file."""

    id: str
    """Unique within the benchmark."""
    question: str
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


class Ending(Enum):
    """How an execution ended. The normal ending is RETURNED. The worker sets it, unless the text below says otherwise."""

    RETURNED = 0
    """The code returned a value that could be sent back."""
    RAISED = 1
    """The code raised, or its value could not be sent back; `error` says which."""
    TIMED_OUT = 2
    """The code worked longer than its limit and was stopped. Set by the worker if async code could be cancelled, by the
    engine if the worker process had to be killed."""
    LOST = 3
    """The worker died while the code ran. Set by the engine. Whether this call or another one in the same worker was the
    cause is known only if it was `alone`."""
    DISPLACED = 4
    """The call was removed from its worker because another call in it was stopped, or before it had started. Set by the
    engine. The task is executed again, and this execution does not count."""
    CANCELLED = 5
    """The run was cancelled before the code ended."""


class Outcome:
    """The result of one call. An engine returns exactly one outcome for each call."""

    __slots__ = ("alone", "ending", "error", "number", "seconds", "trajectory", "usage", "value", "worker")

    number: int
    """The number of the call."""
    ending: Ending
    value: Any
    """What the code returned, a `Payload` or a plain value; only with RETURNED."""
    error: ErrorInfo | None
    seconds: float
    """Working time: from the start of the code to its end, without queues."""
    worker: str
    """The worker, as `host:pid`."""
    alone: bool
    """With LOST: no other call was running in the worker, so this one was the cause or was hit by chance."""
    usage: dict[str, float] | None
    trajectory: Any
    """The packed list of recorded steps, or None if there are none."""

    def __init__(
        self,
        number: int,
        ending: Ending,
        value: Any = None,
        error: ErrorInfo | None = None,
        seconds: float = 0.0,
        worker: str = "",
        alone: bool = True,
        usage: dict[str, float] | None = None,
        trajectory: Any = None,
    ) -> None:
        self.number = number
        self.ending = ending
        self.value = value
        self.error = error
        self.seconds = seconds
        self.worker = worker
        self.alone = alone
        self.usage = usage
        self.trajectory = trajectory

    def __repr__(self) -> str:
        return (
            f"Outcome({self.number}, {self.ending}, value={self.value!r}, error={self.error!r}, worker={self.worker!r})"
        )


class TaskStatus(StrEnum):
    """How a task ended. Every task ends in exactly one of these, and all of them are final."""

    SUCCEEDED = "succeeded"
    """The agent replied; `answer` has its answer, which may be falsy."""
    FAILED = "failed"
    """The agent's code raised, or its answer could not be sent back."""
    TIMED_OUT = "timed out"
    """The agent worked longer than the time limit and was stopped."""
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
    traceback: str = ""
    """The traceback in the worker, from the first line of the user's code; if that is not Python, from the line that called
    it. Empty if nothing was raised."""
    retryable: bool = False
    """Whether a retry may end differently."""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(slots=True)
class TaskResponse:
    """The response to one task. Every task gets exactly one."""

    id: str
    answer: Any = None
    success: bool = False
    status: TaskStatus = TaskStatus.FAILED
    msg: str = ""
    """One sentence for people; empty on success."""
    error: ErrorInfo | None = None
    time_cost: float = 0.0
    """Seconds of work of the last execution."""
    queue_time: float = 0.0
    """Seconds from acceptance to the response without `time_cost`: queues, earlier executions, transport."""
    executions: int = 0
    """How many times the task was executed, retries included; 0 if it never started. Executions that ended because of
    another task in the same worker do not count."""
    usage: dict[str, float] = field(default_factory=dict)
    trajectory: list[Any] = field(default_factory=list)
    trace_id: str = ""
    worker: str = ""
    """The worker of the last execution, as `host:pid`."""
    name: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def unwrap(self) -> Any:
        """Return the answer.

        Raises:
            TaskFailed: the task has no answer; the message has the traceback of the worker.
        """
        if self.success:
            return self.answer
        detail = self.error.traceback if self.error and self.error.traceback else self.msg
        raise TaskFailed(f"task {self.id!r} {self.status}: {detail}", self)


TURNS_USED_UP = "turns used up"
"""The ending of a rollout that reached its limit of turns."""


class ExecutionRecord:
    """What the code of one execution has recorded."""

    __slots__ = ("task_id", "trajectory", "usage")

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.usage: dict[str, float] = {}
        self.trajectory: list[Any] = []


current_record: ContextVar[ExecutionRecord | None] = ContextVar("paragent_record", default=None)


def current_task() -> str | None:
    """Return the id of the task whose code is calling, or None outside of a task."""
    record = current_record.get()
    return record.task_id if record else None


def record_usage(**amounts: float) -> None:
    """Add to the task's usage, for example `record_usage(prompt_tokens=12, completion_tokens=40)`.

    Outside of a task this does nothing, so the code of an agent also runs without a runner.

    Raises:
        TypeError: an amount is not a number.
    """
    if record := current_record.get():
        for key, amount in amounts.items():
            name = str.__str__(key)  # a key that is a member of a user's StrEnum becomes plain text
            record.usage[name] = record.usage.get(name, 0) + _plain_number(name, amount)


def _plain_number(name: str, amount: Any) -> float:
    """Return an amount as an `int` or `float`, which every process can read; types of numpy and others are converted."""
    kind = type(amount)
    number: Any = None
    if kind in (int, float, bool):
        number = amount + 0
    elif hasattr(kind, "__index__"):
        number = amount.__index__()
    elif hasattr(kind, "__float__"):
        number = float(amount)
    if type(number) is int or type(number) is float:
        return number
    raise TypeError(f"record_usage({name}=...) takes a number, not a {kind.__qualname__}")


def record_step(step: Any) -> None:
    """Append a step (a `Msg`, a tool call, any serialisable object) to the task's trajectory; outside of a task, nothing."""
    if record := current_record.get():
        record.trajectory.append(step)


class Activity(Protocol):
    """Receives what one rollout is doing, for the live display and the time limit."""

    def doing(self, what: str) -> None:
        """Called when the rollout begins a step, such as a tool call."""

    def pause(self, what: str, seconds: float | None) -> None:
        """Called when the rollout begins to wait, with the expected seconds if they are known."""

    def resume(self) -> None:
        """Called when the last wait is over."""


current_activity: ContextVar[Activity | None] = ContextVar("paragent_activity", default=None)


def doing(what: str) -> None:
    """Report what the current rollout does now: `generating`, `calculator`, ..."""
    if activity := current_activity.get():
        activity.doing(what)


@contextlib.contextmanager
def waiting(what: str, seconds: float | None = None) -> Iterator[None]:
    """Mark a wait for a shared resource: it is displayed and does not count against the time limit."""
    activity = current_activity.get()
    if activity is None:
        yield
        return
    activity.pause(what, seconds)
    try:
        yield
    finally:
        activity.resume()
