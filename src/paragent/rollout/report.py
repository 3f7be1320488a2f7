"""`SessionReport`: collects what the parts of a session report, for the display, the budgets and `live/session.json`."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING

from paragent.rollout.live_run import LiveRun, LiveWorker, write_session_file
from paragent.rollout.live_status import LiveStatus, TokenUsage, read_status_files, usage_of
from paragent.rollout.queue import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from paragent.rollout.budgets import Budgets
    from paragent.rollout.live_run import LiveBudget, RunState
    from paragent.rollout.live_status import RolloutProgress
    from paragent.rollout.machines import SessionPool
    from paragent.rollout.queue import RolloutQueue
    from paragent.store import RolloutResult

__all__ = ["WATCH_INTERVAL", "SessionReport"]

WATCH_INTERVAL = 0.2
"""Seconds between two calls of the observers: reading the status files costs more than recording a result."""
_FILE_INTERVAL = 1.0
"""Seconds between two versions of `live/session.json`."""


class SessionReport:
    """The live state of a session.

    Args:
        folder: the folder `live` of the run.
        progress: the progress, which gets the live values too.
        queue: the rollouts of the session.
        budgets: the budgets of the run.
        seconds_before: the duration of earlier sessions.
    """

    def __init__(
        self, folder: Path, progress: RolloutProgress, queue: RolloutQueue, budgets: Budgets, seconds_before: float
    ) -> None:
        self._folder, self._progress, self._queue = folder, progress, queue
        self._budgets, self._seconds_before = budgets, seconds_before
        self._workers: dict[str, LiveWorker] = {}
        self._observers: list[Callable[[RolloutProgress], None]] = []
        self._observed = self._written = 0.0
        """When the observers were called and the session file was written."""
        self.pool: SessionPool | None = None
        """The pool, while the run has one."""
        self.requests: Callable[[], tuple[int, int]] | None = None
        """Returns the requests in flight and their limit."""
        self.live: LiveRun
        """The last state that was collected."""
        progress.num_rollouts = queue.limit
        self.collect(progress.state)

    def watch(self, observer: Callable[[RolloutProgress], None]) -> None:
        """Call `observer` with the progress a few times per second, and when the state or the note changes."""
        self._observers.append(observer)

    def show_regularly(self, state: RunState) -> None:
        """Call the observers and write the session file, each at its interval."""
        now = self._progress.seconds
        if now - self._written > _FILE_INTERVAL:
            self.show(state)
        elif self._observers and now - self._observed > WATCH_INTERVAL:
            self.collect(state)
            self._observe()

    def show(self, state: RunState) -> None:
        """Collect the state, write the session file and call the observers."""
        self._written = self._progress.seconds
        self.collect(state)
        write_session_file(self._folder, self.live)
        self._observe()

    def _observe(self) -> None:
        self._observed = self._progress.seconds
        for observer in self._observers:
            observer(self._progress)

    def count(self, result: RolloutResult) -> None:
        """Count an execution for its worker."""
        if result.worker:
            worker = self._workers.setdefault(result.worker, LiveWorker(result.worker))
            worker.done += 1
            worker.lost += result.kind == "worker"

    def collect(self, state: RunState) -> None:
        """Read the status files of workers and the state of the pool."""
        progress = self._progress
        progress.state, progress.active = state, len(self._queue.active)
        progress.live = live = read_status_files(self._folder)
        if self.requests:
            live.in_flight, live.request_limit = self.requests()
        progress.machines = self.pool.counts() if self.pool else None
        usage = self.usage()
        progress.budgets = self._budgets.use(usage, self._seconds_before + progress.seconds)
        self.live = self._live_run(live, usage)

    def usage(self, unrecorded: Iterable[RolloutResult] = ()) -> TokenUsage:
        """Return the tokens of the run: of recorded and unrecorded results, and of the rollouts under way."""
        total = self._progress.usage
        for result in unrecorded:
            total += usage_of(result)
        active = {key_of(rollout) for rollout in self._queue.active.values()}
        for key, used in self._progress.live.used.items():
            if key in active:  # a status file may describe a rollout whose result has come
                total += used
        return total

    def used_up(self, unrecorded: Iterable[RolloutResult] = ()) -> LiveBudget | None:
        """Return the first budget that is used up; None if there is none."""
        if not self._budgets.limited:
            return None
        return self._budgets.used_up(self.usage(unrecorded), self._seconds_before + self._progress.seconds)

    def use_of(self, name: str) -> LiveBudget:
        """Return how much of a budget is used."""
        budgets = self._budgets.use(self.usage(), self._seconds_before + self._progress.seconds)
        return next(one for one in budgets if one.name == name)

    def _live_run(self, status: LiveStatus, usage: TokenUsage) -> LiveRun:
        progress = self._progress
        machines = self.pool.machines() if self.pool else []
        return LiveRun(
            run=progress.run,
            state=progress.state,
            at=time.time(),
            pid=os.getpid(),
            host=socket.gethostname(),
            note=progress.note or self._queue.stopped,
            total=progress.total,
            done=progress.done,
            active=progress.active,
            pending=progress.total - progress.done - progress.active,
            failed=progress.failed,
            cancelled=progress.cancelled,
            infrastructure_failures=progress.infrastructure_failures,
            retries=progress.retries,
            mean_score=progress.mean,
            measured=progress.measured,
            cut=progress.cut,
            requests_in_flight=status.in_flight,
            request_limit=status.request_limit,
            prompt_tokens=usage.prompt,
            completion_tokens=usage.completion,
            cost=self._budgets.cost_so_far(usage),
            budgets=progress.budgets,
            num_rollouts=progress.num_rollouts,
            seconds=progress.seconds,
            seconds_left=progress.seconds_left,
            machine_states=dict(Counter(machine.state for machine in machines)),
            machines=machines,
            workers=self._worker_rows(status),
            rollouts=status.rollouts,
        )

    def _worker_rows(self, status: LiveStatus) -> list[LiveWorker]:
        active = Counter(rollout.worker for rollout in status.rollouts)
        for name in active:
            self._workers.setdefault(name, LiveWorker(name))
        return [
            LiveWorker(worker.name, active[worker.name], worker.done, worker.lost) for worker in self._workers.values()
        ]
