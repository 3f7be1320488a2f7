"""What a running attempt tells about itself besides its answer: tokens used, steps taken.

The worker opens a `Recording` around every attempt; whatever way the attempt ends, what was recorded comes back.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

__all__ = ["TURNS_USED_UP", "Recording", "current_recording", "current_task", "record_step", "record_usage"]

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
