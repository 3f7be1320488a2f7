"""Events of machines and workers of a session, from the pool and the engine to the journal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from paragent._internal.clock import Clock, monotonic
from paragent.store import MachineEvent, WorkerEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paragent.rollout.machines import SessionPool
    from paragent.runners.run import Run
    from paragent.store import RolloutResult

__all__ = ["EventLog"]

_LONGEST_WAIT = 5.0
"""Seconds that events wait for results to be recorded with; then they are recorded without any."""


class EventLog:
    """The events that are not recorded yet. Use it from one thread."""

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self.machines: list[MachineEvent] = []
        self.workers: list[WorkerEvent] = []
        self._known: set[str] = set()
        """Workers whose start the engine has reported."""
        self._derived: set[str] = set()
        """Workers that are known only from their results."""
        self._recorded = clock()

    @property
    def overdue(self) -> bool:
        """Whether there are events that have waited long enough for results."""
        return bool(self.machines or self.workers) and self._clock() - self._recorded > _LONGEST_WAIT

    def collect(self, run: Run | None, pool: SessionPool | None, *, now: bool = False) -> None:
        """Add what the engine and the pool have reported since the last call; the pool is asked once a second, unless `now`."""
        for worker, event, at, detail in run.worker_changes() if run is not None else ():
            self.workers.append(WorkerEvent(worker, event, at, detail))
            self._known.add(worker)
        if pool is not None:
            self.machines += pool.events(now=now)

    def derive(self, results: Iterable[RolloutResult]) -> None:
        """Add events of workers that an engine of the user's own does not report: from the first result, and from losses."""
        for result in results:
            worker = result.worker
            if not worker or worker in self._known:
                continue
            if worker not in self._derived:
                self._derived.add(worker)
                self.workers.append(WorkerEvent(worker, "started", result.started or time.time()))
            if result.kind == "worker":
                self._derived.discard(worker)
                self.workers.append(WorkerEvent(worker, "lost", result.ended, result.error))

    def clear(self) -> None:
        """Forget the events, because they were recorded."""
        self.machines, self.workers = [], []
        self._recorded = self._clock()
