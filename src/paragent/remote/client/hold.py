"""Keeping a result on its server for as long as somebody here may want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent.remote.wire import RELEASE

if TYPE_CHECKING:
    from paragent.remote.client.outbox import Outbox

__all__ = ["Hold", "Holds"]


class Holds:
    """The results that a server keeps for this process."""

    __slots__ = ("_numbers", "_outbox")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._numbers: dict[int, int] = {}
        """By the identity of what holds each."""

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, hold: Hold, number: int) -> None:
        """Note that `hold` keeps the result of a call."""
        self._numbers[id(hold)] = number

    def drop(self, hold: Hold) -> None:
        """Let the server free what `hold` kept; never blocks, as it is done where an object is dropped."""
        number = self._numbers.pop(id(hold), None)
        if number is not None:
            self._outbox.put((RELEASE, number))


class Hold:
    """Keeps one result alive on the server; dropped together with whatever wanted it."""

    __slots__ = ("_holds",)

    def __init__(self, holds: Holds, number: int) -> None:
        self._holds = holds
        holds.add(self, number)

    def __del__(self) -> None:
        self._holds.drop(self)
