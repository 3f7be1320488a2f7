"""Results on their way to a client: how much of them there is, and the calls that wait until it has read some."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.server.mailbox import Call

__all__ = ["Backlog"]

_COUNTED = 512
"""Bytes from which on a result counts as on its way. Smaller ones are bounded by the number of calls under way."""


class Backlog:
    """The bytes of results that a client has not read. Any thread may use it.

    Args:
        most: bytes from which on no further call of the client may begin, until half of them are read.
        unpark: begins the calls that waited for that.
    """

    def __init__(self, most: int, unpark: Callable[[list[Call]], None]) -> None:
        self.full = False
        """Whether so many results are on their way that no further call may begin."""
        self.size = 0
        """Bytes of results on their way, without the small ones."""
        self._most = most
        self._unpark = unpark
        self._filling = threading.Lock()
        """Protects everything that changes here."""
        self._parked: list[Call] = []
        """Calls whose turn came while it was full."""

    def add(self, size: int) -> None:
        """Count a result that is to be sent."""
        if size >= _COUNTED:
            with self._filling:
                self.size += size
                self.full = self.full or self.size > self._most

    def remove(self, size: int) -> None:
        """Count a result as sent, and begin calls if that makes room for them."""
        if size < _COUNTED:
            return
        parked: list[Call] = []
        with self._filling:
            self.size -= size
            if self.full and self.size <= self._most // 2:
                self.full = False
                parked, self._parked = self._parked, []
        if parked:
            self._unpark(parked)

    def park(self, call: Call) -> bool:
        """Keep a call until the client has read some of what it was sent; return False if it has, by now."""
        with self._filling:
            if self.full:
                self._parked.append(call)
            return self.full

    def end(self) -> list[Call]:
        """Wait for the client no more; return the calls that did."""
        with self._filling:
            self.full = False
            parked, self._parked = self._parked, []
        return parked
