"""The records of work: `Task` in, attempts in between, `TaskResponse` out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._lazy import names_from

if TYPE_CHECKING:
    from paragent.tasks.item import Item
    from paragent.tasks.outcome import Ending, Outcome
    from paragent.tasks.recording import Recording, current_task, record_step, record_usage
    from paragent.tasks.response import ErrorInfo, TaskResponse, TaskStatus
    from paragent.tasks.task import Task

__all__ = [
    "Ending",
    "ErrorInfo",
    "Item",
    "Outcome",
    "Recording",
    "Task",
    "TaskResponse",
    "TaskStatus",
    "current_task",
    "record_step",
    "record_usage",
]

__getattr__ = names_from(
    __name__,
    {
        "item": ("Item",),
        "outcome": ("Ending", "Outcome"),
        "recording": ("Recording", "current_task", "record_step", "record_usage"),
        "response": ("ErrorInfo", "TaskResponse", "TaskStatus"),
        "task": ("Task",),
    },
)
