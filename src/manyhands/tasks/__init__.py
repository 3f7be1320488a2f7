"""The records of work: `Task` in, attempts in between, `TaskResponse` out."""

from manyhands.tasks.item import Item
from manyhands.tasks.outcome import Ending, Outcome
from manyhands.tasks.recording import Recording, current_task, record_step, record_usage
from manyhands.tasks.response import ErrorInfo, TaskResponse, TaskStatus
from manyhands.tasks.task import Task

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
