"""The commands of `paragent ctl`, as the session's loop executes them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from paragent._internal.text import counted
from paragent.errors import StoreFailed, UsageError
from paragent.rollout.blame import CANCELLED
from paragent.rollout.cancelled import write_cancelled
from paragent.store import PendingRollout, RolloutResult, RolloutStatus
from paragent.store.records import rollout_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.rollout.live_status import RolloutProgress
    from paragent.rollout.machines import SessionPool
    from paragent.rollout.queue import RolloutKey, RolloutQueue
    from paragent.store import RunDirectory

__all__ = ["COMMANDS", "SessionCommands"]

COMMANDS = ("pause", "resume", "cancel", "retry", "set", "retire", "stop")
"""The commands that change a run."""
_NUM_ROLLOUTS = "num-rollouts"


class SessionCommands:
    """Executes commands on the parts of a session. Each command returns a sentence that says what was done.

    Args:
        queue: the rollouts of the session.
        directory: the run directory.
        progress: the progress of the run.
        attempts: the number of attempts at each task.
        capacity: how many rollouts the engine can execute at a time.
        record: records a result.
    """

    def __init__(
        self,
        queue: RolloutQueue,
        directory: RunDirectory,
        progress: RolloutProgress,
        *,
        attempts: int,
        capacity: int,
        record: Callable[[RolloutResult], None],
    ) -> None:
        self._queue, self._directory, self._progress = queue, directory, progress
        self._attempts, self._capacity, self._record = attempts, capacity, record
        self._began = time.time()
        self.pool: SessionPool | None = None
        """The pool, while the run has one."""
        self.resize_requests: Callable[[int], None] | None = None
        """Changes the limit of requests to the endpoint; None for a model without an endpoint."""

    def execute(self, name: str, argument: str) -> str:
        """Execute a command.

        Raises:
            UsageError: the command is unknown, or cannot be executed now.
        """
        if name not in COMMANDS:
            raise UsageError(f"there is no command {name!r}; the commands are: {', '.join(COMMANDS)}")
        if self._queue.stopped and name not in {"cancel", "stop"}:
            raise UsageError(f"the run is stopping ({self._queue.stopped}), so it cannot {name}")
        if name in {"pause", "resume"}:
            return self._pause() if name == "pause" else self._resume()
        actions = {
            "cancel": self._cancel,
            "retry": self._retry,
            "set": self._set,
            "retire": self._retire,
            "stop": self._stop,
        }
        return actions[name](argument)

    def clear_cancelled(self) -> None:
        """Rewrite the list of rollouts to cancel after some of them have ended."""
        try:
            write_cancelled(self._directory.live, self._queue.cancelling)
        except OSError as error:
            raise StoreFailed(f"cannot write in {self._directory.live}: {error}") from error

    def _pause(self) -> str:
        queue = self._queue
        if queue.paused:
            raise UsageError("the run is paused already")
        queue.paused = True
        active = counted(len(queue.active), "rollout")
        return f"no new rollouts start; {active} under way will finish" if queue.active else "the run is paused"

    def _resume(self) -> str:
        if not self._queue.paused:
            raise UsageError("the run is not paused")
        self._queue.paused = False
        return "the run continues"

    def _stop(self, argument: str) -> str:
        queue = self._queue
        if argument not in {"", "cancel"}:
            raise UsageError(f"stop has no argument {argument!r}; `cancel` cancels the rollouts under way")
        queue.stopped = queue.stopped or "stopped by a user"
        queue.cancels_active = queue.cancels_active or argument == "cancel"
        active = counted(len(queue.active), "rollout")
        if not queue.active:
            return "the run stops"
        if queue.cancels_active:
            return f"the run stops; {active} under way will be cancelled and stay pending"
        return f"the run stops when {active} under way have finished"

    def _cancel(self, label: str) -> str:
        key = self._find(label)
        queue = self._queue
        if queue.is_active(key):
            queue.cancelling.add(key)
            self.clear_cancelled()
            return f"{rollout_label(*key)} is being cancelled"
        result = self._directory.journal.final_result(*key)
        if result is not None and result.status is not RolloutStatus.INFRASTRUCTURE:
            raise UsageError(
                f"{rollout_label(*key)} has ended ({result.status}); only pending and running rollouts can be cancelled"
            )
        if result is not None and self._was_counted(result):
            self._progress.reopen(result)
        queue.drop(key)
        cancelled = RolloutResult(*key, RolloutStatus.CANCELLED, ended=time.time())
        CANCELLED.set_on(cancelled)
        self._record(cancelled)
        return f"{rollout_label(*key)} was pending and is cancelled"

    def _retry(self, label: str) -> str:
        key = self._find(label)
        name = rollout_label(*key)
        if self._queue.is_active(key):
            raise UsageError(f"{name} is running; cancel it first")
        result = self._directory.journal.final_result(*key)
        if result is None or self._queue.waits(key) or not self._was_counted(result):
            raise UsageError(f"{name} is pending and will be executed anyway")
        task = self._directory.journal.task(key[0])
        assert task is not None, "found above"
        self._directory.journal.reopen_rollout(*key)
        self._progress.reopen(result)
        self._queue.add(PendingRollout(task, key[1]))
        return f"{name} ({result.status}) will be executed again"

    def _set(self, argument: str) -> str:
        name, _, text = argument.partition("=")
        if name.strip().lstrip("-").replace("_", "-") != _NUM_ROLLOUTS:
            raise UsageError(f"only {_NUM_ROLLOUTS} can be set, as in: set {_NUM_ROLLOUTS}=40; not {argument!r}")
        number = int(text) if text.strip().isdecimal() else 0
        if number < 1:
            raise UsageError(f"{_NUM_ROLLOUTS} must be an integer of at least 1, not {text!r}")
        allowed = min(number, self._capacity)
        self._queue.limit = self._progress.num_rollouts = allowed
        if self.resize_requests is not None:
            self.resize_requests(allowed)
        notes = [f"up to {counted(allowed, 'rollout')} at a time"]
        if allowed < number:
            notes.append(
                f"the engine of this session has no room for {number}: start the run with a higher --num-rollouts for more"
            )
        counts = self.pool.counts() if self.pool else None
        if counts is not None and counts.total < allowed:
            notes.append(f"they share {counted(counts.total, 'machine')}")
        return "; ".join(notes)

    def _retire(self, machine: str) -> str:
        if self.pool is None:
            raise UsageError("this run uses no machines")
        self.pool.retire(machine)
        return f"{machine} is replaced now or when its lease ends"

    def _find(self, label: str) -> RolloutKey:
        """Return the rollout with this label: a task, which means its first attempt, or `TASK#ATTEMPT`.

        Raises:
            UsageError: there is no such rollout.
        """
        journal = self._directory.journal
        if journal.task(label) is not None:
            return label, 1
        task, _, attempt = label.rpartition("#")
        if not attempt.isdecimal() or journal.task(task) is None:
            raise UsageError(f"the run has no task {label!r}")
        if not 1 <= int(attempt) <= self._attempts:
            raise UsageError(f"the run has {counted(self._attempts, 'attempt')} at each task, so there is no {label!r}")
        return task, int(attempt)

    def _was_counted(self, result: RolloutResult) -> bool:
        """Return whether the progress counts a result: an infrastructure failure of an earlier session is pending."""
        return result.status is not RolloutStatus.INFRASTRUCTURE or result.ended >= self._began
