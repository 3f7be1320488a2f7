"""Admission: calls start in the order in which they came, never more than a limit at a time."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paragent.engines.base import Call

__all__ = ["Gate"]


class Gate:
    """Holds back what is over the limit. Thread-safe."""

    def __init__(self, limit: int, start: Callable[[list[Call]], None]) -> None:
        self._limit = limit
        self._start = start
        self._running = 0
        self._waiting: deque[Call] = deque()
        self._lock = threading.Lock()
        """Protects `_running` and `_waiting`; never held while calling `start`."""

    def offer(self, calls: Sequence[Call]) -> None:
        """Let `calls` in, now or when others have left."""
        with self._lock:
            self._waiting.extend(calls)
            admitted = self._admit()
        if admitted:
            self._start(admitted)

    def leave(self) -> None:
        """Say that one admitted call has ended."""
        with self._lock:
            self._running -= 1
            admitted = self._admit() if self._waiting else None
        if admitted:
            self._start(admitted)

    def exchange(self) -> Call | None:
        """Say that one admitted call has ended; return the one that takes its place, if one waits, for the caller to start."""
        with self._lock:
            if self._waiting and self._running <= self._limit:
                return self._waiting.popleft()
            self._running -= 1
            return None

    def recall(self) -> list[Call]:
        """Take back, and return, every call that has not been admitted."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def _admit(self) -> list[Call]:
        admitted = []
        while self._waiting and self._running < self._limit:
            admitted.append(self._waiting.popleft())
            self._running += 1
        return admitted
