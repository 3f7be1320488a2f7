"""`LostWorkers`: logs the workers that a run has lost, at a limited rate."""

from __future__ import annotations

import math

from paragent._internal.clock import Clock, monotonic
from paragent._internal.text import counted

__all__ = ["LostWorkers"]

_INTERVAL = 30.0
"""Seconds between two messages: a host that kills every worker must not fill the log."""


class LostWorkers:
    """The workers that were lost in a run. The first loss is logged at once, later ones together, at most every 30 s."""

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._known: set[str] = set()
        """Workers that were noted: the engine reports a loss, and so does each call that was lost with it."""
        self._unlogged = 0
        self._last = ""
        """Why the last worker was lost."""
        self._logged_at = -math.inf

    def note(self, worker: str, reason: str) -> None:
        """Note the loss of a worker; the same worker is counted once."""
        if worker not in self._known:
            self._known.add(worker)
            self._unlogged += 1
            self._last = reason
            self.log()

    def note_start(self, worker: str) -> None:
        """Note that a worker has started; it may have the host and pid of a worker that was lost."""
        self._known.discard(worker)

    def log(self, *, now: bool = False) -> None:
        """Log what was not logged, if the last message is old enough or with `now`."""
        if not self._unlogged or not (now or self._clock() - self._logged_at >= _INTERVAL):
            return
        import logging  # not at the top: programs that do not log start faster

        if self._unlogged == 1:
            message = f"lost a worker: {self._last}"
        else:
            message = f"lost {counted(self._unlogged, 'more worker')}; the last one: {self._last}"
        self._unlogged, self._logged_at = 0, self._clock()
        logging.getLogger("paragent").warning(message)
