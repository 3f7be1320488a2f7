"""A worker's end: tells what its requests meet, and hears how many it may have in flight."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING

from paragent._internal.threads import write_traceback
from paragent.errors import ParagentError
from paragent.models.rate_limit.limiter import Report
from paragent.models.rate_limit.server import SERVICE
from paragent.transport.address import Address
from paragent.transport.auth import Token
from paragent.transport.client import connect
from paragent.transport.loop import io_loop

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from paragent.models.base import GatePlace
    from paragent.transport.client import ClientStream

__all__ = ["GateMember"]

_INTERVAL = 0.1
"""Seconds between two reports: a tenth of the time for which a cut is not followed by another."""
_CONNECT_SECONDS = 5.0
_PAUSE = 2.0
"""Seconds before a connection that broke is tried again; meanwhile the worker decides by itself."""


class GateMember:
    """Takes part for one model of one worker; everything but the constructor and `close` may be called from any thread.

    Args:
        place: where to take part.
        model: whose quota it is about.
        most: requests at a time that this worker can use.
        state: returns how many requests are in flight, and how many of them there are with those that wait.
        changed: told a share and for how many seconds to keep still; a share of None: decide alone. Called on the
            connection's own thread.
    """

    def __init__(
        self,
        place: GatePlace,
        model: str,
        most: int,
        state: Callable[[], tuple[int, int]],
        changed: Callable[[int | None, float], None],
    ) -> None:
        self._place, self._hello = place, {"model": model, "most": most}
        self._state, self._changed = state, changed
        self._lock = threading.Lock()
        """Protects what happened since the last report."""
        self._answered = self._refused = self._troubled = 0
        self._retry_after = self._seconds = 0.0
        self._work: Future[None] = asyncio.run_coroutine_threadsafe(self._take_part(), io_loop())

    def answered(self, seconds: float) -> None:
        """The endpoint answered after so many seconds."""
        with self._lock:
            self._answered += 1
            self._seconds += seconds

    def throttled(self, retry_after: float | None) -> None:
        """The endpoint asked for fewer requests."""
        with self._lock:
            self._refused += 1
            self._retry_after = max(self._retry_after, retry_after or 0.0)

    def troubled(self) -> None:
        """The endpoint failed by its own fault."""
        with self._lock:
            self._troubled += 1

    def close(self) -> None:
        """Take no part any more."""
        self._work.cancel()

    def _report(self) -> Report:
        in_flight, wanted = self._state()
        with self._lock:
            report = Report(
                in_flight, wanted, self._answered, self._refused, self._retry_after, self._troubled, self._seconds
            )
            self._answered = self._refused = self._troubled = 0
            self._retry_after = self._seconds = 0.0
        return report

    async def _take_part(self) -> None:
        while True:
            try:
                await self._join()
            except ParagentError:
                pass  # the server is gone, or not there yet
            except Exception as error:  # noqa: BLE001 - a worker that hears nothing any more must not wait for its share
                write_traceback(
                    "the shared limit of requests failed here; this worker decides alone for a moment", error
                )
            finally:
                self._changed(None, 0.0)
            await asyncio.sleep(_PAUSE)

    async def _join(self) -> None:
        """Connect and converse until the connection ends."""
        host, _, port = self._place.address.rpartition(":")
        address, token = Address.of(host, port), Token(self._place.secret)
        stream, _ = await connect(address, SERVICE, token, None, self._hello, _CONNECT_SECONDS)
        try:
            await self._converse(stream)
        finally:
            await stream.close()

    async def _converse(self, stream: ClientStream) -> None:
        listening = asyncio.create_task(self._listen(stream))
        before = Report()
        try:
            while not listening.done():
                report = self._report()
                if report != before or report.has_events:
                    before = report
                    await stream.write(json.dumps(asdict(report)).encode())
                await asyncio.wait([listening], timeout=_INTERVAL)
            listening.result()
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self, stream: ClientStream) -> None:
        while True:
            told = json.loads(await stream.read())
            self._changed(int(told["share"]), float(told["closed"]))
