"""Tasks that depend on each other: each answer becomes the next task's input. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paragent.tasks import Task, TaskResponse

__all__ = ["Chain"]


class Chain:
    """What a sequence of dependent tasks remembers between two of them."""

    def __init__(self) -> None:
        self._last: TaskResponse | None = None

    @property
    def broken(self) -> str | None:
        """Why no further task can run, or None."""
        last = self._last
        return (
            None
            if last is None or last.success
            else f"not run: task {last.id!r}, before it in the sequence, {last.status}"
        )

    def given(self, task: Task) -> Any:
        """Return what the agent of the next task is given: the last answer, or its own input if it is the first."""
        return task.input if self._last is None else self._last.answer

    def note(self, response: TaskResponse) -> None:
        """Take in the response of the task that was next; after a failure nothing changes any more."""
        if self.broken is None:
            self._last = response
