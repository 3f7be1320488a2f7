"""The driver's end: hears what all workers meet at the endpoint, and tells each its share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import threading
from typing import TYPE_CHECKING, Any, Self

from paragent.errors import ParagentError, ProtocolError
from paragent.models.base import GatePlace
from paragent.models.rate_limit.limiter import Report, SharedLimit
from paragent.transport.address import Address
from paragent.transport.auth import Token
from paragent.transport.loop import run as run_on_io_loop
from paragent.transport.server import RpcServer

if TYPE_CHECKING:
    from paragent.transport.server import ServerStream

__all__ = ["SERVICE", "GateServer"]

SERVICE = "endpoint"
"""The name of the service in the handshake."""
_START_SECONDS = 20.0
_STOP_SECONDS = 5.0
_TURN = 1.0
"""Seconds after which shares are divided and told anew if nothing happens: where there are fewer than workers, they go round,
and a worker that lowered its own for a burst of refusals has it back."""


class GateServer:
    """A context manager; inside, workers join at `place`.

    Args:
        most: requests at a time that the whole run may make.
        host: where to listen.

    Raises:
        ConfigError: (on entering) the address cannot be listened at.
    """

    def __init__(self, most: int, host: str = "127.0.0.1") -> None:
        self._secret = secrets.token_urlsafe(32)
        self._service = _GateService(most)
        self._address = Address.of(host, 0)
        self._server = RpcServer(self._address, {SERVICE: self._service}, Token(self._secret))

    def __enter__(self) -> Self:
        port = run_on_io_loop(self._server.start(), _START_SECONDS)
        self.place = GatePlace(address=f"{self._address.host}:{port}", secret=self._secret)
        return self

    def __exit__(self, *_: object) -> None:
        run_on_io_loop(self._server.stop(0.0), _STOP_SECONDS)

    def pressure(self) -> tuple[int, int]:
        """Return how many requests all workers have in flight, and how many they may have."""
        return self._service.pressure()


class _GateService:
    """What happens on the streams; all of it on the loop of all gRPC traffic."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        """Protects the limits while another thread asks for their state."""
        self._limits: dict[str, SharedLimit] = {}
        """By model: each has a quota of its own."""
        self._numbers = itertools.count()
        self._outboxes: dict[str, asyncio.Queue[dict[str, Any]]] = {}
        self._told: dict[str, int] = {}

    def pressure(self) -> tuple[int, int]:
        with self._lock:
            seen = [limit.pressure for limit in self._limits.values()]
        return sum(flying for flying, _ in seen), sum(limit for _, limit in seen)

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Whoever knows the run's secret may take part."""
        try:
            return {}, (str(hello["model"]), int(hello["most"]))
        except (KeyError, TypeError, ValueError):
            raise ProtocolError("a member says which model it asks, and how many requests it can use") from None

    async def serve(self, stream: ServerStream, admitted: Any) -> None:
        """Hear reports and send shares."""
        model, most = admitted
        worker = f"{stream.peer}#{next(self._numbers)}"
        limit = self._limits.setdefault(model, SharedLimit(self._most))
        outbox = self._outboxes[worker] = asyncio.Queue()
        sender = asyncio.create_task(self._send(stream, worker, outbox, limit))
        try:
            with self._lock:
                limit.join(worker, most)
            while True:
                self._tell(limit)
                report = _report(await stream.read())
                with self._lock:
                    limit.report(worker, report)
        finally:
            sender.cancel()
            del self._outboxes[worker]
            self._told.pop(worker, None)
            with self._lock:
                limit.leave(worker)
            self._tell(limit)

    def _tell(self, limit: SharedLimit) -> None:
        """Send shares to those whose share is another one, or who have to keep still."""
        with self._lock:
            shares, closed = limit.shares(), limit.opens_in()
        for worker, share in shares.items():
            if worker in self._outboxes and (closed or self._told.get(worker) != share):
                self._told[worker] = share
                self._outboxes[worker].put_nowait({"share": share, "closed": closed})

    async def _send(
        self, stream: ServerStream, worker: str, outbox: asyncio.Queue[dict[str, Any]], limit: SharedLimit
    ) -> None:
        with contextlib.suppress(ParagentError):
            while True:
                try:
                    async with asyncio.timeout(_TURN):
                        message = await outbox.get()
                except TimeoutError:
                    limit.rotate()
                    self._told.pop(worker, None)  # its client may have lowered the share by itself
                    self._tell(limit)
                else:
                    await stream.write(json.dumps(message).encode())


def _report(message: bytes) -> Report:
    try:
        return Report(**json.loads(message))
    except (ValueError, TypeError):
        raise ProtocolError("this is no report of a member") from None
