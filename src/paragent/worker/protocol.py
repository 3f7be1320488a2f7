"""Messages between a worker process and its owner, sent as pickled frames (`paragent.transport.framing`).

The owner sends one `WorkerSetup`, then `CallBatch` messages and commands. The worker sends `WorkerUpdate` messages.
Batches are columns, not rows: pickling a few long lists is several times faster than pickling many records.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent.execution import Outcome
from paragent.serialization import Payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.execution import Ending
    from paragent.tasks import ErrorInfo
    from paragent.worker.output import Line

__all__ = ["Call", "CallBatch", "OutcomeBatch", "WorkerCommand", "WorkerSetup", "WorkerUpdate"]


class WorkerCommand(Enum):
    """An order from the owner that has no arguments."""

    RECALL = 0
    """Return the calls that have not started."""
    CANCEL = 1
    """Cancel async calls, and calls that have not started."""
    STOP = 2
    """End after the calls that are running."""
    KILL = 3
    """To a node agent only: kill the worker, report its calls as cancelled, start another worker."""
    RESTART = 4
    """To a node agent only: replace an idle worker."""


class Call:
    """One execution of a task as an engine sees it: `unpack(target)(unpack(argument))` with a time limit.

    It can be pickled, without the fields that only the dispatch loop uses. Not a dataclass, because
    importing `dataclasses` would delay the start of workers.
    """

    __slots__ = (
        "accepted",
        "argument",
        "earlier_errors",
        "executions",
        "is_async",
        "label",
        "limit",
        "max_group",
        "number",
        "target",
        "task",
    )

    number: int
    """Identifies the call; its outcome has the same number. Unique in the lifetime of an engine."""
    target: Payload
    """The callable; unpacked for every call, so that calls do not share state."""
    argument: Any
    """A `Payload`, or a plain immutable value."""
    label: str
    """The task's id: marks prints and log records, and is the value of `current_task()`."""
    limit: float | None
    """Seconds of work after which the call is stopped."""
    is_async: bool
    """The target returns a coroutine, which runs on one event loop together with others."""
    max_group: int
    """How many calls may be in one worker together with this one, including itself; 0: any number. Used to find out which
    of several calls kills workers."""
    task: Any
    """Dispatch loop only: the `Task`; None in a worker."""
    accepted: float
    """Dispatch loop only: when the run accepted the task, by the monotonic clock."""
    executions: int
    """Dispatch loop only: how many times the task has been executed, this call included. Executions that ended because of
    another call in the same worker do not count."""
    earlier_errors: tuple[ErrorInfo, ...]
    """Dispatch loop only: the errors of earlier executions of the task, oldest first."""

    def __init__(
        self,
        number: int,
        target: Payload,
        argument: Any,
        label: str,
        limit: float | None = None,
        is_async: bool = False,
        max_group: int = 0,
        task: Any = None,
        accepted: float = 0.0,
        executions: int = 1,
        earlier_errors: tuple[ErrorInfo, ...] = (),
    ) -> None:
        self.number = number
        self.target = target
        self.argument = argument
        self.label = label
        self.limit = limit
        self.is_async = is_async
        self.max_group = max_group
        self.task = task
        self.accepted = accepted
        self.executions = executions
        self.earlier_errors = earlier_errors

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            Call,
            (self.number, self.target, self.argument, self.label, self.limit, self.is_async, self.max_group),
        )


class WorkerSetup(NamedTuple):
    """The first message to a worker."""

    sys_path: list[str]
    sync_limit: int
    async_limit: int
    shared_limit: bool
    log_levels: dict[str, int]
    worker: str
    """The id of the worker."""


class CallBatch(NamedTuple):
    """Calls for a worker, with the targets and the code that it does not have yet."""

    numbers: list[int]
    """Chosen by the sender; outcomes refer to them."""
    target_keys: list[int]
    arguments: list[Any]
    labels: list[str]
    limits: list[float | None]
    async_flags: list[bool]
    targets: dict[int, bytes]
    """New targets by key."""
    code: dict[str, bytes]
    """New code by digest."""
    dropped_targets: list[int]
    """Keys that later batches will not use."""
    dropped_code: Sequence[str]
    """Digests that neither this batch nor the calls in flight nor the targets use."""

    def calls(self, targets: dict[int, Payload]) -> list[Call]:
        """Return the calls and update `targets`, the receiver's table of targets by key."""
        for key, body in self.targets.items():
            targets[key] = Payload(body, {})
        calls = [
            Call(number, targets[key], argument, label, limit, is_async)
            for number, key, argument, label, limit, is_async in zip(
                self.numbers, self.target_keys, self.arguments, self.labels, self.limits, self.async_flags, strict=True
            )
        ]
        for key in self.dropped_targets:
            targets.pop(key, None)
        return calls


class OutcomeBatch(NamedTuple):
    """Outcomes without the fields that the receiver knows: where they ran, and whether the call was alone."""

    numbers: list[int]
    endings: list[Ending]
    values: list[Any]
    seconds: list[float]
    errors: dict[int, ErrorInfo]
    usages: dict[int, dict[str, float]]
    trajectories: dict[int, Any]
    """These three by number, for the outcomes that have one."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> OutcomeBatch:
        """Return the batch of `outcomes`."""
        return cls(
            [outcome.number for outcome in outcomes],
            [outcome.ending for outcome in outcomes],
            [outcome.value for outcome in outcomes],
            [outcome.seconds for outcome in outcomes],
            {outcome.number: outcome.error for outcome in outcomes if outcome.error is not None},
            {outcome.number: outcome.usage for outcome in outcomes if outcome.usage is not None},
            {outcome.number: outcome.trajectory for outcome in outcomes if outcome.trajectory is not None},
        )

    def outcomes(self, worker: str, alone: bool = True) -> list[Outcome]:
        """Return the outcomes of calls that ran in `worker`."""
        outcomes = [
            Outcome(number, ending, value, None, seconds, worker, alone)
            for number, ending, value, seconds in zip(
                self.numbers, self.endings, self.values, self.seconds, strict=True
            )
        ]
        if self.errors or self.usages or self.trajectories:
            for outcome in outcomes:
                number = outcome.number
                outcome.error = self.errors.get(number)
                outcome.usage = self.usages.get(number)
                outcome.trajectory = self.trajectories.get(number)
        return outcomes


class WorkerUpdate(NamedTuple):
    """What happened in a worker since its last update."""

    outcomes: OutcomeBatch
    lines: list[Line]
    returned: list[int] | None = None
    """The reply to RECALL: the numbers of the calls that had not started."""
