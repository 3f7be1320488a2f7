"""`ConnectionServer`: the connections of the gateway, limited for each rollout and for clients that have sent no key.

A program can open many thousand connections, and each takes a file descriptor of the worker, which its other rollouts need.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from aiohttp import web

from paragent.gateway.errors import Refusal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

__all__ = ["MOST_CONNECTIONS", "MOST_STRANGERS", "ConnectionServer"]

MOST_CONNECTIONS = 128
"""Connections of one rollout: twice the calls that are answered at a time."""
MOST_STRANGERS = 128
"""Connections without a request of a rollout. Clients send theirs within milliseconds."""


class ConnectionServer(web.Server):
    """An HTTP server that closes the connections that were idle for longest when there are too many."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._strangers: dict[web.RequestHandler, None] = {}
        """The oldest first."""
        self._owners: dict[web.RequestHandler, str] = {}
        """The rollouts of the other connections."""
        self._idle: dict[str, dict[web.RequestHandler, None]] = defaultdict(dict)
        """The connections of each rollout without a request in progress, the oldest first."""
        self._numbers: dict[str, int] = defaultdict(int)
        """The number of connections of each rollout."""

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Count a new connection; if too many have sent no request, close the oldest."""
        super().connection_made(handler, transport)
        self._strangers[handler] = None
        if len(self._strangers) > MOST_STRANGERS:
            _close_oldest(self._strangers)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Count a connection no more."""
        super().connection_lost(handler, exc)
        self._strangers.pop(handler, None)
        owner = self._owners.pop(handler, None)
        if owner is None:
            return
        self._idle[owner].pop(handler, None)
        self._numbers[owner] -= 1
        if not self._numbers[owner]:
            del self._numbers[owner], self._idle[owner]

    @contextlib.contextmanager
    def serving(self, handler: web.RequestHandler, rollout: str) -> Iterator[None]:
        """Count a connection for the rollout whose request it has sent, while the request is answered.

        Raises:
            Refusal: the rollout has too many connections, and all of them have requests in progress.
        """
        self._own(handler, rollout)
        self._idle[rollout].pop(handler, None)
        try:
            if self._numbers[rollout] > MOST_CONNECTIONS and not _close_oldest(self._idle[rollout]):
                handler.close()  # after the response
                raise Refusal(429, "too_many_calls", f"a rollout has at most {MOST_CONNECTIONS} calls at a time")
            yield
        finally:
            if handler in self._owners:
                self._idle[rollout][handler] = None

    def _own(self, handler: web.RequestHandler, rollout: str) -> None:
        before = self._owners.get(handler)
        if before == rollout:
            return
        self._strangers.pop(handler, None)
        if before is not None:  # an agent that calls for another rollout has its key, so they are in the same process
            self._idle[before].pop(handler, None)
            self._numbers[before] -= 1
        self._owners[handler] = rollout
        self._numbers[rollout] += 1


def _close_oldest(connections: dict[web.RequestHandler, None]) -> bool:
    """Close the oldest of some connections; return whether there was one."""
    for oldest in connections:
        del connections[oldest]
        oldest.force_close()
        return True
    return False
