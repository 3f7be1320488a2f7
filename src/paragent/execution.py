"""Records of one execution of a task: how it ended, and what its code reports while it runs.

A worker loads this module before it reports that it is ready, so it has no dataclasses: importing `dataclasses` and creating
a few of them would take a fifth of that time.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paragent.tasks import ErrorInfo

__all__ = [
    "STARTING_HELPER",
    "Activity",
    "Ending",
    "ExecutionRecord",
    "Outcome",
    "SelfLimited",
    "current_activity",
    "current_record",
    "current_task",
    "doing",
    "limit_itself",
    "record_step",
    "record_usage",
    "waiting",
]


class Ending(Enum):
    """How an execution ended. The normal ending is RETURNED. The worker sets it, unless the text below says otherwise."""

    RETURNED = 0
    """The code returned a value that could be sent back."""
    RAISED = 1
    """The code raised, or its value could not be sent back; `error` says which."""
    TIMED_OUT = 2
    """The code exceeded its time limit and was stopped. Set by the worker if async code could be cancelled, by the
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
    """How the execution ended."""
    value: Any
    """What the code returned, a `Payload` or a plain value; only with RETURNED."""
    error: ErrorInfo | None
    """The failure; None on success."""
    seconds: float
    """Working time: from the start of the code to its end, without queues."""
    worker: str
    """The worker, as `host:pid`."""
    alone: bool
    """With LOST: no other call was running in the worker, so either this one was the cause, or the worker died by chance."""
    usage: dict[str, float] | None
    """What the agent recorded with `record_usage`."""
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


class SelfLimited(Protocol):
    """An async call that enforces its own time limit, as its worker sees it."""

    def excuse(self, seconds: float) -> None:
        """Called on the event loop after another call blocked it for some seconds, which do not count for this one."""

    def stop(self, stack: str) -> Any:
        """Return the result of the call, whose code blocks the event loop beyond its deadline and will not continue.

        Called from another thread.

        Args:
            stack: where the code is, as text.
        """


class ExecutionRecord:
    """What the code of one execution has recorded."""

    __slots__ = ("limit_itself", "number", "task_id", "trajectory", "usage")

    number: int | None
    """The number of the call while its code runs on the event loop, else None."""
    limit_itself: Callable[[SelfLimited], Callable[[float], None]] | None
    """See the function `limit_itself`; None where nobody watches the event loop."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.number = None
        self.limit_itself = None
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
    """Append a step (a `Msg`, a tool call, any serialisable object) to the task's trajectory; does nothing outside of a task."""
    if record := current_record.get():
        record.trajectory.append(step)


def limit_itself(limited: SelfLimited) -> Callable[[float], None]:
    """Tell the worker that the calling code is one async call as a whole and enforces its own time limit.

    Returns:
        A function that sets the deadline: the `time.monotonic()` at which the worker ends the call if it blocks the event loop or
        ignores its own limit; infinite: it may only block the event loop for a while; negative: the same, and the code that runs
        now is not what the limit is for. Outside of a worker, the function does nothing.
    """
    record = current_record.get()
    return (lambda _: None) if record is None or record.limit_itself is None else record.limit_itself(limited)


class Activity(Protocol):
    """Receives what one rollout is doing, for the live display and the time limit."""

    def doing(self, what: str, name: str = "") -> None:
        """Called when the rollout begins a step; see `doing`."""

    def pause(self, what: str, seconds: float | None) -> None:
        """Called when the rollout begins to wait, with the expected seconds if they are known."""

    def resume(self) -> None:
        """Called when the last wait is over."""


current_activity: ContextVar[Activity | None] = ContextVar("paragent_activity", default=None)


def doing(what: str, name: str = "") -> None:
    """Report what the current rollout does now.

    Args:
        what: the activity: `generating`, `acting` and `working` are recorded, other words are only displayed.
        name: what is displayed instead, for example the name of the tool.
    """
    if activity := current_activity.get():
        activity.doing(what, name)


STARTING_HELPER = "waiting for a helper process"
"""The wait for a process or another resource that the rollouts of a worker share: until it is started, or free."""


@contextlib.contextmanager
def waiting(what: str, seconds: float | None = None) -> Iterator[None]:
    """Mark a wait for a shared resource: it is displayed and does not count against the time limit.

    Args:
        what: `waiting for a machine`; `STARTING_HELPER`, which is recorded as what the rollout was doing; any other text is
            recorded as waiting for the endpoint.
        seconds: how long it takes, if that is known.
    """
    activity = current_activity.get()
    if activity is None:
        yield
        return
    activity.pause(what, seconds)
    try:
        yield
    finally:
        activity.resume()
