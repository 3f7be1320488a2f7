"""Rate limit server: receives the reports of all workers of a run and sends each worker its share of the limit.

For training it also sends the version of the policy, and pauses the requests of all workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import threading
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.text import counted
from paragent.errors import ParagentError, PauseTimeout, ProtocolError, UsageError
from paragent.models.base import RateLimitAddress
from paragent.models.policy import PolicyControl
from paragent.models.rate_limit import RequestReport, SharedLimit
from paragent.transport.address import Address
from paragent.transport.auth import Token
from paragent.transport.json_calls import JsonConnection
from paragent.transport.loop import run as run_on_io_loop
from paragent.transport.server import RpcServer

if TYPE_CHECKING:
    from paragent.models.base import ModelSettings
    from paragent.transport.server import ServerStream

__all__ = ["SERVICE", "RateLimitServer", "limit_name"]

SERVICE = "rate_limit"
"""The name of the service in the handshake."""
_START_SECONDS = 20.0
_STOP_SECONDS = 5.0
_ROTATION_SECONDS = 1.0
"""Seconds without a change after which shares are divided and sent again. If there are fewer slots than workers, the
slots rotate; a worker that lowered its own share after a burst of refusals gets it back."""

_OBEY_SECONDS = 2.0
"""Seconds to wait until all workers know a new version. One that does not report is disconnected or stalled."""


def limit_name(settings: ModelSettings) -> str:
    """Return the name of the limit for the requests with these settings."""
    return f"{settings.name} at {settings.base_url} ({settings.api})"


class RateLimitServer:
    """A context manager; inside, workers connect to `address`.

    Args:
        most: requests at a time that the whole run may make.
        host: where to listen.
        controlled: whether `publish`, `pause` and `resume` are used. Workers then send requests only while they are
            connected, so that none is sent during a pause.

    Raises:
        ConfigError: (on entering) the address cannot be listened at.
    """

    def __init__(self, most: int, host: str = "127.0.0.1", *, controlled: bool = False) -> None:
        self._secret = secrets.token_urlsafe(32)
        self._controlled = controlled
        self._service = _RateLimitService(most, controlled=controlled)
        self._listen = Address.of(host, 0)
        self._server = RpcServer(self._listen, {SERVICE: self._service}, Token(self._secret))

    def __enter__(self) -> Self:
        port = run_on_io_loop(self._server.start(), _START_SECONDS)
        self.address = RateLimitAddress(
            address=f"{self._listen.host}:{port}", secret=self._secret, controlled=self._controlled
        )
        return self

    def __exit__(self, *_: object) -> None:
        run_on_io_loop(self._server.stop(0.0), _STOP_SECONDS)

    def pressure(self) -> tuple[int, int]:
        """Return how many requests all workers have in flight, and how many they may have."""
        return self._service.pressure()

    def has_answered(self, settings: ModelSettings) -> bool:
        """Return whether the endpoint has answered a request with these settings in any worker; from any thread."""
        return settings.answered or self._service.has_answered(limit_name(settings))

    def resize(self, most: int) -> None:
        """Change how many requests at a time the whole run may make; from any thread."""
        run_on_io_loop(self._service.resize(most), _STOP_SECONDS)

    def publish(self, version: int) -> None:
        """Tell all workers the version of the policy; `Completion.version` of later requests has it. From any thread."""
        self._check_controlled()
        run_on_io_loop(self._service.publish(version), _STOP_SECONDS)

    def pause(self, timeout: float) -> None:
        """Admit no more requests, and wait until none is in flight in any worker. From any thread.

        Workers that join later do not send requests either. Waiting does not count as working time of rollouts.

        Raises:
            PauseTimeout: some are still in flight after `timeout` seconds. The run stays paused: call `pause` again to wait
                longer, or `resume`.
        """
        self._check_controlled()
        run_on_io_loop(self._service.pause(timeout), timeout + _STOP_SECONDS)

    def resume(self) -> None:
        """Admit requests again. From any thread."""
        self._check_controlled()
        run_on_io_loop(self._service.resume(), _STOP_SECONDS)

    def _check_controlled(self) -> None:
        if not self._controlled:
            raise UsageError("this rate limit server does not control the policy: create it with `controlled=True`")


class _RateLimitService:
    """Serves the connections of workers, on the I/O loop."""

    def __init__(self, most: int, *, controlled: bool) -> None:
        self._most = most
        self._controlled = controlled
        self._policy = PolicyControl(self._policy_changed)
        self._reported = asyncio.Event()
        """Set when a report arrived or a worker left."""
        self._lock = threading.Lock()
        """Protects the limits while another thread reads their state."""
        self._limits: dict[str, SharedLimit] = {}
        """By model: each has its own limit."""
        self._numbers = itertools.count()
        self._outboxes: dict[str, asyncio.Queue[tuple[Any, ...]]] = {}
        """Notifications to send, by worker: name and arguments."""
        self._sent: dict[str, tuple[int, bool]] = {}
        """What each worker was told last: its share, and whether the endpoint has answered."""
        self._connected: dict[str, str] = {}
        """By client: its latest connection. An earlier one whose end has not been noticed yet has no share."""

    def pressure(self) -> tuple[int, int]:
        with self._lock:
            seen = [limit.pressure for limit in self._limits.values()]
        return sum(in_flight for in_flight, _ in seen), sum(limit for _, limit in seen)

    def has_answered(self, model: str) -> bool:
        with self._lock:
            limit = self._limits.get(model)
        return limit is not None and limit.answered

    async def resize(self, most: int) -> None:
        self._most = most
        for limit in self._limits.values():
            with self._lock:
                limit.resize(most)
            self._update_shares(limit)

    async def publish(self, version: int) -> None:
        self._policy.publish(version)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OBEY_SECONDS):
                while self._policy.behind():
                    self._reported.clear()
                    await self._reported.wait()

    async def pause(self, timeout: float) -> None:
        self._policy.pause()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._policy.busy():
                    self._reported.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._reported.wait(), self._policy.frees_in())
        if busy := self._policy.busy():
            raise PauseTimeout(
                f"{counted(busy, 'worker')} still had requests in flight {timeout:g} s after the pause began: allow more time, "
                "or lower the time limit of a request"
            )

    async def resume(self) -> None:
        self._policy.resume()

    def _policy_changed(self) -> None:
        """Queue the state of the policy for all workers."""
        for outbox in self._outboxes.values() if self._controlled else ():
            outbox.put_nowait(("policy", self._policy.state))

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Admit every client that knows the secret of the run."""
        try:
            admitted = (str(hello["model"]), int(hello["most"]), str(hello["client"]), bool(hello["answered"]))
        except (KeyError, TypeError, ValueError):
            raise ProtocolError(
                "a client must name itself, its model, how many requests it can use and whether one was answered"
            ) from None
        return {}, admitted

    async def serve(self, stream: ServerStream, admitted: Any) -> None:
        """Receive the reports of one worker and send it its shares."""
        model, most, client, answered = admitted
        worker = f"{stream.peer}#{next(self._numbers)}"
        limit = self._limits.setdefault(model, SharedLimit(self._most))
        limit.answered = limit.answered or answered

        async def report(fields: dict[str, Any]) -> None:
            if self._connected.get(client) == worker:
                received = RequestReport(**fields)
                with self._lock:
                    limit.report(worker, received)
                self._policy.report(client, received.policy, received.in_flight)
                self._reported.set()
                self._update_shares(limit)

        connection = JsonConnection(stream, {"report": report})
        self._outboxes[worker] = asyncio.Queue()
        sender = asyncio.create_task(self._send_shares(connection, worker, limit))
        try:
            with self._lock:
                if (earlier := self._connected.get(client)) is not None:
                    limit.leave(earlier)
                self._connected[client] = worker
                limit.join(worker, most)
            self._policy.join(client)
            if self._controlled:
                self._outboxes[worker].put_nowait(("policy", self._policy.state))
            self._update_shares(limit)
            await connection.serve()
        finally:
            sender.cancel()
            del self._outboxes[worker]
            self._sent.pop(worker, None)
            if self._connected.get(client) == worker:
                del self._connected[client]
                self._policy.leave(client)
                self._reported.set()
                with self._lock:
                    limit.leave(worker)
                self._update_shares(limit)

    def _update_shares(self, limit: SharedLimit) -> None:
        """Queue the shares that have changed, and every share while no request may be sent."""
        with self._lock:
            shares, closed, answered = limit.shares(), limit.opens_in(), limit.answered
        for worker, share in shares.items():
            if worker in self._outboxes and (closed or self._sent.get(worker) != (share, answered)):
                self._sent[worker] = (share, answered)
                self._outboxes[worker].put_nowait(("share", share, closed, answered))

    async def _send_shares(self, connection: JsonConnection, worker: str, limit: SharedLimit) -> None:
        outbox = self._outboxes[worker]
        with contextlib.suppress(ParagentError):
            while True:
                try:
                    async with asyncio.timeout(_ROTATION_SECONDS):
                        notification = await outbox.get()
                except TimeoutError:
                    limit.rotate()
                    self._sent.pop(worker, None)  # the worker may have lowered its share by itself
                    self._update_shares(limit)
                else:
                    await connection.notify(*notification)
