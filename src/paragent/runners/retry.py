"""Retry policy of tasks and rollouts: whether a task or rollout that failed is executed again. No I/O, no clock.

The rules:

- A lost worker, machine or connection is not the task's fault. It is retried twice, unless the user sets a number.
- An error of the task's own code is a result. It is retried only if the user asks for retries.
- A reached time limit, a cancellation and an error that is marked as final are never retried.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from paragent.config import LOST_RETRIES

__all__ = ["Failure", "RetryPolicy", "smaller_group"]


class Failure(Enum):
    """The cause of a failed execution, as far as it matters for a retry."""

    INFRASTRUCTURE = auto()
    """A worker, a machine, an environment or a connection was lost."""
    TASK = auto()
    """The task's own code failed, with an error that need not repeat itself."""
    FINAL = auto()
    """A retry would end in the same way: a reached time limit, a cancellation, an error that is marked as final."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How many retries a task or rollout has, and how long to wait before each."""

    infrastructure_retries: int = LOST_RETRIES
    """Retries after `Failure.INFRASTRUCTURE`."""
    task_retries: int = 0
    """Retries after `Failure.TASK`."""
    pause: float = 0.0
    """Seconds before the first retry; before the n-th retry it is n times as long."""

    @classmethod
    def for_task(cls, max_retries: int | None) -> RetryPolicy:
        """Return the policy of a task: `max_retries` counts for both kinds of failure; None means the defaults."""
        return _DEFAULT if max_retries is None else cls(max_retries, max_retries)

    def allows(self, failure: Failure, executions: int) -> bool:
        """Return whether work that failed in this way, and was executed so many times, is executed again."""
        if failure is Failure.INFRASTRUCTURE:
            return executions <= self.infrastructure_retries
        return failure is Failure.TASK and executions <= self.task_retries

    def delay(self, executions: int) -> float:
        """Return the seconds to wait before the retry that follows so many executions."""
        return self.pause * executions


_DEFAULT = RetryPolicy()


def smaller_group(suspects: int, max_group: int, workers: int) -> int:
    """Return the size of the groups in which calls run again after the worker that executed them died.

    Args:
        suspects: how many calls the worker was executing. One of them may have killed it.
        max_group: the limit that the calls had before; 0: none.
        workers: how many groups can run at the same time.
    """
    size = suspects if not max_group else min(suspects, max_group)
    return max(1, size // max(2, workers))
