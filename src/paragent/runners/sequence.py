"""Tasks that depend on each other: each answer becomes the next task's input. No I/O."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paragent.tasks import Task, TaskResponse

__all__ = ["Chain", "SeenIds"]


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


_START = 1 << 10


class SeenIds:
    """A set of strings that remembers 64 bits of each, in an open-addressing table at most half full.

    Two different ids out of a million are taken for the same with a probability of 3e-8.
    """

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * _START))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, task_id: str) -> bool:
        """Remember an id; return False if it was there already."""
        if 2 * self._count >= len(self._table):
            self._grow()
        added = self._insert(hash(task_id) & 0xFFFF_FFFF_FFFF_FFFF or 1)
        self._count += added
        return added

    def _insert(self, value: int) -> bool:
        table, mask = self._table, len(self._table) - 1
        index = (value ^ (value >> 32)) & mask
        while table[index]:
            if table[index] == value:
                return False
            index = (index + 1) & mask
        table[index] = value
        return True

    def _grow(self) -> None:
        old = self._table
        self._table = array("Q", bytes(16 * len(old)))
        for value in old:
            if value:
                self._insert(value)
