"""Messages between a worker process and its owner, sent as pickled frames (`paragent.transport.framing`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from paragent.serialization import Parcel
from paragent.tasks import Ending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.tasks import ErrorInfo
    from paragent.worker.output import Line

__all__ = [
    "CANCEL",
    "RECALL",
    "STOP",
    "Call",
    "Hello",
    "News",
    "WireOutcome",
    "Work",
]

RECALL, CANCEL, STOP = "recall", "cancel", "stop"
"""Supervisor to worker: give back what has not started; cancel everything; end when done."""


class Call:
    """One attempt as an engine sees it: `unpack(target)(unpack(argument))`, under a limit. It can be pickled.

    No dataclass, as the other records that workers know: making one takes as long as loading three modules.
    """

    __slots__ = ("argument", "company", "is_async", "label", "limit", "number", "target")

    number: int
    """Names the call; its outcome carries the same number. Unique in the life of an engine."""
    target: Parcel
    """What to call; unpacked anew for every call, so that calls do not share state."""
    argument: Any
    """A `Parcel`, or a plain immutable value."""
    label: str
    """The task's id: marks prints and logs, and is what `current_task()` returns to the code."""
    limit: float | None
    """Seconds of work after which the code is stopped."""
    is_async: bool
    """The target returns a coroutine: run it on an event loop with many others."""
    company: int
    """How many calls may be in one worker together with this one, itself included; 0: any number. Used to find out which
    of several calls kills workers."""

    def __init__(
        self,
        number: int,
        target: Parcel,
        argument: Any,
        label: str,
        limit: float | None = None,
        is_async: bool = False,
        company: int = 0,
    ) -> None:
        self.number = number
        self.target = target
        self.argument = argument
        self.label = label
        self.limit = limit
        self.is_async = is_async
        self.company = company


class Hello(NamedTuple):
    """The first thing a worker hears."""

    sys_path: list[str]
    sync_limit: int
    async_limit: int
    shared_limit: bool
    log_level: int


class Work(NamedTuple):
    """Calls for a worker, with the targets and the code it does not have yet."""

    code: dict[str, bytes]
    targets: dict[int, bytes]
    forget: list[int]
    """Targets that will not be named again."""
    calls: list[tuple[int, int, Any, str, float | None, bool]]
    """Each: number, target, argument, label, limit, is_async. The sender chooses the numbers; outcomes name them."""
    forget_code: Sequence[str] = ()
    """Code that neither these calls nor those under way nor the targets name."""

    def unwrap(self, targets: dict[int, Parcel]) -> list[Call]:
        """Return the calls, and bring `targets`, in which the receiver keeps the targets it was sent, up to date."""
        for key, body in self.targets.items():
            targets[key] = Parcel(body, {})
        calls = [
            Call(number, targets[target], argument, label, limit, is_async)
            for number, target, argument, label, limit, is_async in self.calls
        ]
        for key in self.forget:
            targets.pop(key, None)
        return calls


WireOutcome = tuple[int, Ending, Any, "ErrorInfo | None", float, "dict[str, float] | None", Any]
"""Slot, ending, value, error, seconds, usage, trajectory: an `Outcome` without what the supervisor knows."""


class News(NamedTuple):
    """What happened in a worker since it last spoke."""

    outcomes: list[WireOutcome]
    lines: list[Line]
    returned: list[int] | None = None
    """The reply to RECALL: slots of calls that had not started."""
