"""Rate limit client: a worker reports its requests and receives its share of the run's rate limit."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from paragent._internal.ids import new_id
from paragent._internal.threads import write_traceback
from paragent.errors import ParagentError
from paragent.models.policy import PolicyState
from paragent.models.rate_limit import RequestReport
from paragent.models.rate_limit_server import SERVICE, limit_name
from paragent.transport.address import Address
from paragent.transport.auth import Token
from paragent.transport.client import connect
from paragent.transport.json_calls import JsonConnection
from paragent.transport.loop import submit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future

    from paragent.models.base import ModelSettings

__all__ = ["RECONNECT_SECONDS", "RateLimitClient"]

_REPORT_SECONDS = 0.1
"""Seconds between two reports: a tenth of the shortest round in which the limiter measures refusals."""
_FIRST_REPORT_SECONDS = 0.02
"""The same until the first answer, for which all workers wait."""
_CONNECT_SECONDS = 5.0
RECONNECT_SECONDS = 2.0
"""Seconds before a broken connection is tried again. Until then the worker decides by itself."""


class RateLimitClient:
    """Shares the rate limit of one model for one worker. All methods may be called from any thread.

    Args:
        settings: the settings of the model, with the address of the server. Each model has its own limit.
        state: returns how many requests are in flight, and how many are in flight or waiting.
        changed: called with the share of this worker, the seconds in which to send no request, and whether the endpoint has
            answered any worker. A share of None means that the worker decides by itself. Called on the I/O loop.
        policy: for a server that controls the policy: called with each state of the policy, and with None when the
            connection has ended. Called on the I/O loop.
        obeyed: returns the number of the last such state that is in force.
    """

    def __init__(
        self,
        settings: ModelSettings,
        state: Callable[[], tuple[int, int]],
        changed: Callable[[int | None, float, bool], None],
        policy: Callable[[PolicyState | None], None] = lambda _: None,
        obeyed: Callable[[], int] = lambda: 0,
    ) -> None:
        assert settings.rate_limit is not None
        self._address = settings.rate_limit
        self._hello = {
            "model": limit_name(settings),
            "most": settings.max_concurrency,
            "client": new_id("client"),
            "answered": settings.answered,
        }
        self._state, self._changed = state, changed
        self._policy, self._obeyed = policy, obeyed
        self._lock = threading.Lock()
        """Protects the counts since the last report, and `_closed` together with `_work`."""
        self._answered = self._refused = self._server_errors = 0
        self._retry_after = self._seconds = 0.0
        self._period = _REPORT_SECONDS if settings.answered else _FIRST_REPORT_SECONDS
        self._closed = False
        self._work: Future[None]
        self._start()

    def answered(self, seconds: float) -> None:
        """Count an answer of the endpoint, which took `seconds`."""
        with self._lock:
            self._answered += 1
            self._seconds += seconds

    def throttled(self, retry_after: float | None) -> None:
        """Count a request that the endpoint refused because there were too many."""
        with self._lock:
            self._refused += 1
            self._retry_after = max(self._retry_after, retry_after or 0.0)

    def server_error(self) -> None:
        """Count a server error of the endpoint."""
        with self._lock:
            self._server_errors += 1

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._closed = True
        self._work.cancel()

    def _start(self, pause: float = 0.0) -> None:
        """Run on the I/O loop; start again, after a pause, if that loop ends unexpectedly."""
        with self._lock:
            if self._closed:
                return
            self._work = submit(self._stay_connected(pause))
        self._work.add_done_callback(self._work_ended)

    def _work_ended(self, work: Future[None]) -> None:
        if not work.cancelled():
            self._disconnected()
            self._start(RECONNECT_SECONDS)

    def _disconnected(self) -> None:
        self._policy(None)
        self._changed(None, 0.0, False)

    def _report(self) -> RequestReport:
        policy = self._obeyed()  # first: what is in flight afterwards was admitted under this state or before it
        in_flight, wanted = self._state()
        with self._lock:
            report = RequestReport(
                in_flight=in_flight,
                wanted=wanted,
                answered=self._answered,
                refused=self._refused,
                retry_after=self._retry_after,
                server_errors=self._server_errors,
                seconds=self._seconds,
                policy=policy,
            )
            self._answered = self._refused = self._server_errors = 0
            self._retry_after = self._seconds = 0.0
        return report

    async def _stay_connected(self, pause: float) -> None:
        await asyncio.sleep(pause)
        while True:
            try:
                await self._exchange()
            except ParagentError:
                pass  # the server has ended or has not started yet
            except Exception as error:  # noqa: BLE001 - the worker must not keep an outdated share
                write_traceback(
                    "the shared rate limit failed in this worker; it decides by itself until it has reconnected", error
                )
            finally:
                self._disconnected()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _exchange(self) -> None:
        """Connect, then report and receive shares until the connection ends."""
        host, _, port = self._address.address.rpartition(":")
        target, token = Address.of(host, port), Token(self._address.secret)
        stream, _ = await connect(target, SERVICE, token, None, self._hello, _CONNECT_SECONDS)
        try:
            methods: dict[str, Callable[..., Awaitable[None]]] = {
                "share": self._receive_share,
                "policy": self._receive_policy,
            }
            await self._send_reports(JsonConnection(stream, methods))
        finally:
            await stream.close()

    async def _send_reports(self, connection: JsonConnection) -> None:
        reading = asyncio.create_task(connection.serve())
        before = RequestReport()
        try:
            while not reading.done():
                report = self._report()
                if report != before or report.has_events:
                    before = report
                    await connection.notify("report", report)
                await asyncio.wait([reading], timeout=self._period)
            reading.result()
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _receive_share(self, share: int, closed: float, answered: bool) -> None:
        self._period = _REPORT_SECONDS if answered else _FIRST_REPORT_SECONDS
        self._changed(int(share), float(closed), bool(answered))

    async def _receive_policy(self, state: dict[str, Any]) -> None:
        self._policy(PolicyState(**state))
