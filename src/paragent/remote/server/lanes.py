"""Threads for sync methods: one does all the work as long as calls are quick, more come when calls block.

A call that blocks must not keep others waiting, and a thread for every call would be slow where calls are trivial. So
work is handed to one thread in batches, and while some of it waits, a watch looks every few milliseconds whether the
threads get on: if not a single call has ended, or the process hardly used its processor, they are blocked, and their
number is doubled.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from paragent._threads import start_thread
from paragent.remote.server.interruption import Interruption

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Lanes"]

_log = logging.getLogger("paragent.remote")

_TICK = 0.002
"""Seconds between looks at work that waits: small against any call worth a thread, large against a quick one."""
_IDLE = 10.0
"""Seconds after which a thread without work ends."""
_RETRY = 0.1
"""Seconds until the next look after the system refused another thread."""
_BUSY_SHARE = 0.5
"""A process that used this share of a core or more between two looks is computing, not waiting."""


class Lanes:
    """Runs `perform` on each work item in some thread. `submit` belongs to the I/O loop or any other thread.

    Args:
        perform: carries out one work item; must not raise.
        limit: threads there may be.
        loop: the I/O loop.
        failed: called if a thread ends by an exception all the same.
        prepare: called by each thread at its start.
    """

    def __init__(
        self,
        perform: Callable[[Any], None],
        limit: int,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[str, BaseException], object],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._perform, self._prepare = perform, prepare
        self._limit = limit
        self._loop = loop
        self._failed = failed
        self._ready: deque[Any] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._counting = threading.Lock()
        """Protects `_threads` and `_idle`."""
        self.performed = 0
        """Work items that ended; only whether it moves matters, so it is counted without a lock."""
        self._watched = False
        self._seen = (0, 0.0, 0.0)
        self._refused = False
        """Whether the system had no room for another thread when one was last asked for."""
        self._open = True

    @property
    def waiting(self) -> int:
        """Work items that no thread has begun."""
        return len(self._ready)

    @property
    def threads(self) -> int:
        """Threads there are."""
        return self._threads

    def submit(self, work: list[Any]) -> None:
        """Have the work performed, each item by some thread."""
        self._ready.extend(work)
        if self._idle:
            self._tokens.put(None)
        elif not self._threads:
            self._grow(1)
        if not self._watched:
            self._watched = True
            self._loop.call_soon_threadsafe(self._watch)

    def close(self) -> None:
        """Let every thread end after what it is doing."""
        self._open = False
        self._ready.clear()
        for _ in range(self._threads):
            self._tokens.put(None)

    def _watch(self) -> None:
        self._seen = (self.performed, time.process_time(), time.monotonic())
        self._loop.call_later(_RETRY if self._refused else _TICK, self._look)

    def _look(self) -> None:
        performed, used, then = self._seen
        if not self._ready:
            self._watched = False
            if not self._ready:
                return
            self._watched = True
        share = (time.process_time() - used) / (time.monotonic() - then)
        if performed == self.performed or share < _BUSY_SHARE:
            wanted = min(len(self._ready), max(self._threads, 1))
            for _ in range(min(wanted, self._idle)):
                self._tokens.put(None)
            self._grow(min(wanted - self._idle, self._limit - self._threads))
        self._watch()

    def _grow(self, count: int) -> None:
        """Start threads, as many as the system has room for: where it has none, the watch tries again."""
        for _ in range(count):
            with self._counting:
                self._threads += 1
            try:
                start_thread(self._lane, name="paragent-lane", failed=self._failed)
            except (RuntimeError, MemoryError) as error:
                with self._counting:
                    self._threads -= 1
                if not self._refused:
                    _log.warning("%d threads for sync methods, and no more: %s; calls wait", self._threads, error)
                self._refused = True
                return
            self._refused = False

    def _lane(self) -> None:
        self._prepare()
        ready = self._ready
        while self._open:
            try:
                work = ready.popleft()
            except IndexError:
                if not self._rest():
                    break
                continue
            with contextlib.suppress(Interruption):  # meant for a call that has just ended by itself
                self._perform(work)
            self.performed += 1
        with self._counting:
            self._threads -= 1

    def _rest(self) -> bool:
        """Wait for work; return False if none came for long."""
        with self._counting:
            self._idle += 1
        try:
            # Whoever submits looks for idle threads after adding work; so work is looked for after becoming idle.
            if not self._ready:
                self._tokens.get(timeout=_IDLE)
        except Empty:
            return bool(self._ready)
        finally:
            with self._counting:
                self._idle -= 1
        return True
