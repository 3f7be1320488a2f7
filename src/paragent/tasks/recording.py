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
        for name, amount in amounts.items():
            recording.usage[name] = recording.usage.get(name, 0) + _plain_number(name, amount)


def _plain_number(name: str, amount: Any) -> float:
    """Return an amount as an `int` or `float`, which every process can read; numpy's and others' own types are converted."""
    if type(amount) in (int, float, bool):
        return amount  # type: ignore[no-any-return]
    kind = type(amount)
    if hasattr(kind, "__index__"):
        number = amount.__index__()
    else:
        number = float(amount) if hasattr(kind, "__float__") else None
    if type(number) not in (int, float):
        raise TypeError(f"record_usage({name}=...) takes a number, not a {kind.__qualname__}")
    return number


def record_step(step: Any) -> None:
    """Append a step (a `Msg`, a tool call, any serialisable object) to the task's trajectory; outside of a task, nothing."""
    if recording := current_recording.get():
        recording.trajectory.append(step)
