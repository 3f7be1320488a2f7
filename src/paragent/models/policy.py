"""The policy that is trained: its version, whether requests are paused, and which workers obey. No I/O; it takes a clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paragent._internal.clock import Clock, monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PolicyControl", "PolicyState"]

_LOST_SECONDS = 10.0
"""Seconds in which a worker whose connection broke may still have requests in flight. A living worker connects again after 2 s;
the requests of a dead one have ended with it."""


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a worker has to know before it sends a request."""

    version: int | None = None
    """None: no version has been published."""
    paused: bool = False
    number: int = 1
    """Counts the changes. A worker reports the number of the state that it obeys."""


@dataclass(slots=True)
class _Client:
    obeyed: int = 0
    """The number of the last state that it obeys."""
    in_flight: int = 0


class PolicyControl:
    """The state of the policy, and how far the workers obey it.

    Args:
        clock: returns monotonic seconds.
        changed: called after each change of the state.
    """

    def __init__(self, changed: Callable[[], None], clock: Clock = monotonic) -> None:
        self.state = PolicyState()
        self._changed, self._clock = changed, clock
        self._clients: dict[str, _Client] = {}
        self._lost: dict[str, float] = {}
        """Clients whose connection broke while they had requests in flight, and when these requests have ended at the latest."""
        self._pause_number = 0

    def publish(self, version: int) -> None:
        """Change the version. Requests that are sent from now on are requests to this version."""
        self._change(replace(self.state, version=version))

    def pause(self) -> None:
        """Admit no requests. `busy` returns how many clients may still have some in flight."""
        if not self.state.paused:
            self._change(replace(self.state, paused=True))
            self._pause_number = self.state.number

    def resume(self) -> None:
        """Admit requests again."""
        if self.state.paused:
            self._change(replace(self.state, paused=False))

    def _change(self, state: PolicyState) -> None:
        self.state = replace(state, number=state.number + 1)
        self._changed()

    def join(self, client: str) -> None:
        """Add a client, or one that connects again."""
        self._clients[client] = _Client()
        self._lost.pop(client, None)

    def leave(self, client: str) -> None:
        """Remove a client whose connection has ended."""
        left = self._clients.pop(client, None)
        if left is not None and left.in_flight:
            self._lost[client] = self._clock() + _LOST_SECONDS

    def report(self, client: str, obeyed: int, in_flight: int) -> None:
        """Record which state a client obeys, and how many of its requests are in flight."""
        if client in self._clients:
            self._clients[client] = _Client(obeyed, in_flight)

    def behind(self) -> bool:
        """Return whether a client does not obey the current state yet: its requests have the version before."""
        return any(one.obeyed < self.state.number for one in self._clients.values())

    def busy(self) -> int:
        """Return how many clients do not obey the pause yet, or have requests in flight."""
        now = self._clock()
        self._lost = {client: until for client, until in self._lost.items() if until > now}
        running = [one for one in self._clients.values() if one.obeyed < self._pause_number or one.in_flight]
        return len(running) + len(self._lost)

    def frees_in(self) -> float | None:
        """Return the seconds after which `busy` may change without a report; None if it will not."""
        return max(0.0, min(self._lost.values()) - self._clock()) if self._lost else None
