"""Measures how long the machine kept this process waiting."""

from __future__ import annotations

import threading
import time
from typing import Self


class StallTimer:
    """Sums the time that sleeps of 10 ms took beyond 20 ms. Tests with tight time limits add it to them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        then = time.monotonic()
        while not self._over.wait(0.01):
            now = time.monotonic()
            self.seconds += max(0.0, now - then - 0.02)
            then = now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
