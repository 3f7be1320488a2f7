"""A unit of work: an agent and what it is given."""

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
    "Outcome",
    "Recording",
    "Task",
    "TaskResponse",
    "TaskStatus",
    "current_activity",
    "current_recording",
    "current_task",
    "doing",
    "record_step",
    "record_usage",
    "waiting",
]


@dataclass(slots=True)
class Task:
    """An input and the agent that shall reply to it.

    Every attempt gets a copy of the agent as it was when the run began, so tasks that share an agent object do not see
    each other's changes to it.

    Raises:
        ConfigError: the id is no string, or a limit is out of range.
    """

    input: Any = None
    """What the agent is given. An `AgentBase` receives it as `Msg.content` (a `Msg` is handed over as it is), a plain
    function as it is."""
    agent: Any = None
    """An `AgentBase`, or any function of one argument, sync or async."""
    id: str = field(default_factory=lambda: new_id("task"))
    """Unique within a run; the key of the response."""
    name: str = ""
    """For people: shown in logs and displays where there is one, else the id is."""
    timeout: float | None = None
    """Seconds of work before the attempt is stopped, counted from its start in a worker; None: the run's limit."""
    max_retries: int | None = None
    """As `RunConfig.max_retries`, for this task; None: the run's."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Comes back on the response; neither interpreted nor sent to workers."""

    def __post_init__(self) -> None:
        if type(self.id) is not str or not self.id:
            raise ConfigError(f"a task's id must be a non-empty string, not {self.id!r}")
        if self.timeout is not None:
            seconds(self.timeout, f"task {self.id!r}: timeout", none=True)
        if self.max_retries is not None:
            integer(self.max_retries, f"task {self.id!r}: max_retries", least=0, none=True)


@dataclass(frozen=True, slots=True)
class BenchmarkTask:
    """A question of a benchmark, what is expected, and whatever else the file said about it."""

    id: str
    """Unique within the benchmark."""
    question: str
    answer: Any = None
    """The reference: a text or a number, a list of acceptable ones, or None where the benchmark has none."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Every other key of the entry under its own name. Environments say which of them they read."""

    @property
    def references(self) -> tuple[str, ...]:
        """Every acceptable answer as text; empty if the benchmark has none."""
        if self.answer is None:
            return ()
        if isinstance(self.answer, (list, tuple)):
            return tuple(str(one) for one in self.answer)
        return (str(self.answer),)


class Ending(Enum):
    """The ways an attempt ends. The normal one is RETURNED; set by the worker unless said otherwise."""

    RETURNED = 0
    """The code returned a value that could be sent back."""
    RAISED = 1
    """The code raised, or its value could not be sent back; `error` says which."""
    TIMED_OUT = 2
    """The code worked longer than its limit and was stopped. Set by the worker for async code that could be cancelled,
    by the worker's supervisor where the process had to be killed."""
    LOST = 3
    """The worker died while the code ran. Set by the supervisor. Whether this attempt or a neighbour in the same worker
    was the cause is known only if it was `alone`."""
    DISPLACED = 4
    """The attempt had to leave its worker for a reason that is not its own: a neighbour was stopped, or it had not
    started. Set by the supervisor; nobody is charged, the attempt is made again."""
    CANCELLED = 5
    """The run was cancelled before the code ended."""


class Outcome:
    """Exactly one of these comes back for each call given to an engine."""

    __slots__ = ("alone", "ending", "error", "number", "seconds", "trajectory", "usage", "value", "worker")

    number: int
    """The number of the call this is the outcome of."""
    ending: Ending
    value: Any
    """What the code returned, packed as it travelled; meaningful with RETURNED only."""
    error: ErrorInfo | None
    seconds: float
    """Working time: from the start of the code to its end, without any queue."""
    worker: str
    """Where it ran, as `host:pid`."""
    alone: bool
    """With LOST: no other attempt was running in the worker, so this one is the cause or was hit by chance."""
    usage: dict[str, float] | None
    trajectory: Any
    """The packed list of recorded steps, or None where there were none."""

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


TURNS_USED_UP = "turns used up"
"""How a rollout ended that was stopped by its limit of turns."""


class Recording:
    """The notes of one attempt."""

    __slots__ = ("task_id", "trajectory", "usage")

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        """The task the attempt belongs to."""
        self.usage: dict[str, float] = {}
        self.trajectory: list[Any] = []


current_recording: ContextVar[Recording | None] = ContextVar("paragent_recording", default=None)


def current_task() -> str | None:
    """Return the id of the task whose code is calling, or None outside of a task."""
    recording = current_recording.get()
    return recording.task_id if recording else None


def record_usage(**amounts: float) -> None:
    """Add to the task's usage, for example `record_usage(prompt_tokens=12, completion_tokens=40)`.

    Outside of a task this does nothing, so that an agent's code runs the same by hand.

    Raises:
        TypeError: an amount is not a number.
    """
    if recording := current_recording.get():
        for key, amount in amounts.items():
            name = str.__str__(key)  # a member of an enumeration of the user's becomes plain text
            recording.usage[name] = recording.usage.get(name, 0) + _plain_number(name, amount)


def _plain_number(name: str, amount: Any) -> float:
    """Return an amount as an `int` or `float`, which every process can read; numpy's and others' own types are converted."""
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
    if recording := current_recording.get():
        recording.trajectory.append(step)


class Activity(Protocol):
    """Listens to what one attempt is doing."""

    def doing(self, what: str) -> None:
        """The attempt works on this now."""

    def pause(self, what: str, seconds: float | None) -> None:
        """The attempt waits from now on, for about so many seconds where that is known."""

    def resume(self) -> None:
        """The waiting that began last is over."""


current_activity: ContextVar[Activity | None] = ContextVar("paragent_activity", default=None)


def doing(what: str) -> None:
    """Say what the attempt under way does now: `generating`, `calculator`, ..."""
    if activity := current_activity.get():
        activity.doing(what)


@contextlib.contextmanager
def waiting(what: str, seconds: float | None = None) -> Iterator[None]:
    """Mark a wait for something that others hold: it is shown, and does not count against the time limit of the attempt."""
    activity = current_activity.get()
    if activity is None:
        yield
        return
    activity.pause(what, seconds)
    try:
        yield
    finally:
        activity.resume()
