"""How one attempt ended, as an engine reports it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paragent.tasks.response import ErrorInfo

__all__ = ["Ending", "Outcome"]


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
