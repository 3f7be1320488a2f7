"""From a task to what the driver owes for it: checked, packed, with the run's limits filled in."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from paragent.agents import Reply, replies_async
from paragent.agents.replying import require_agent
from paragent.driver import Owed
from paragent.errors import DuplicateTaskId, UsageError
from paragent.parcels import Parcel, is_plain
from paragent.parcels.packing import Packer
from paragent.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.config import RunConfig

__all__ = ["Preparer", "check_ids", "require_task"]

_AGENTS_KEPT = 64
"""Packed agents that are kept; a run whose every task has an agent of its own packs each once and forgets it."""


def check_ids(tasks: Sequence[Task]) -> None:
    """Refuse a list in which an id stands twice.

    Raises:
        UsageError: something in the list is no task.
        DuplicateTaskId: two tasks have the same id.
    """
    seen: set[str] = set()
    for task in tasks:
        require_task(task)
        if task.id in seen:
            raise DuplicateTaskId(task.id)
        seen.add(task.id)


def require_task(task: Any) -> None:
    """Refuse what is no task.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(task, Task):
        raise UsageError(f"expected a Task, got {task!r}; write Task(input=..., agent=...)")


class Preparer:
    """Packs the tasks of one run; an agent that many tasks share is packed once."""

    def __init__(self, config: RunConfig, *, carries_modules: bool = False) -> None:
        self._timeout = config.timeout
        self._max_retries = config.max_retries
        self._packer = Packer(carries_modules=carries_modules)
        self._agents: OrderedDict[int, tuple[Any, Parcel, bool]] = OrderedDict()

    def owed(self, task: Task, given: Any) -> Owed:
        """Return what is owed for `task` when its agent is given `given`.

        Raises:
            UsageError: the task has no agent that can reply.
            Unserialisable: its agent or input cannot be sent to a worker.
        """
        packed = self._agents.get(id(task.agent))
        if packed is None:
            packed = self._pack_agent(task)
        _, target, is_async = packed
        argument = given if is_plain(given) else self._packer.pack(given, f"task {task.id!r}", "input")
        return Owed(
            task.id,
            target,
            argument,
            is_async,
            self._timeout if task.timeout is None else float(task.timeout),
            self._max_retries if task.max_retries is None else task.max_retries,
            task,
        )

    def _pack_agent(self, task: Task) -> tuple[Any, Parcel, bool]:
        agent = task.agent
        require_agent(agent, f"task {task.id!r}")
        target = self._packer.pack(Reply(agent), f"task {task.id!r}", "task")
        packed = (agent, target, replies_async(agent))
        self._agents[id(agent)] = packed
        if len(self._agents) > _AGENTS_KEPT:
            self._agents.popitem(last=False)
        return packed
