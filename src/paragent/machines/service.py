"""Pool service: workers in other processes and on other hosts lease machines over gRPC.

A connection may break and be opened again. A waiting request keeps its place for a moment after its connection broke, so that
a client that reconnects finds it. A lease whose client does not come back ends by its deadline.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from paragent.errors import ParagentError
from paragent.machines.client import SERVICE
from paragent.transport.address import Address
from paragent.transport.auth import Token, load_token
from paragent.transport.json_calls import JsonConnection
from paragent.transport.loop import io_loop
from paragent.transport.loop import run as run_on_io_loop
from paragent.transport.server import RpcServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from paragent.machines.controller import PoolController
    from paragent.machines.lease import EventLoopBridge
    from paragent.machines.machine import Machine
    from paragent.transport.address import TlsConf
    from paragent.transport.server import ServerStream

__all__ = ["PoolServer"]

_RECONNECT_SECONDS = 3.0
"""How long a waiting request keeps its place without a connection; a client notices a broken one within two seconds."""
_START_SECONDS = 20.0
_STOP_SECONDS = 5.0


class PoolServer:
    """Serves a running pool at an address. It does not own the pool.

    Args:
        pool: the pool's operations.
        bridge: runs them on the pool's event loop.
        host: the address to listen at.
        port: the port to listen at; 0: any free port.
        token: proves that a client may use the pool; the default is the user's own token.
        tls: encrypts connections.

    Raises:
        ConfigError: the server cannot listen at this address.
        AccessDenied: other users can read the user's token file.
    """

    def __init__(
        self,
        pool: PoolController,
        bridge: EventLoopBridge,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: Token | None = None,
        tls: TlsConf | None = None,
    ) -> None:
        address = Address.of(host, port)
        self._service = _PoolService(pool, bridge)
        self._server = RpcServer(address, {SERVICE: self._service}, token or load_token(), tls=tls)
        self.address = Address(host, run_on_io_loop(self._server.start(), _START_SECONDS))
        """Where the pool is served."""

    @property
    def drain_requested(self) -> bool:
        """Whether a client has asked to drain the pool."""
        return self._service.drain_requested

    def close(self) -> None:
        """Stop serving; the pool goes on."""
        run_on_io_loop(self._server.stop(1.0), _STOP_SECONDS + 1.0)


class _PoolService:
    """The calls of clients. Everything runs on the I/O loop."""

    def __init__(self, pool: PoolController, bridge: EventLoopBridge) -> None:
        self._pool, self._bridge = pool, bridge
        self._waiting: Counter[str] = Counter()
        """How many connections wait for each request."""
        self.drain_requested = False
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "acquire": self._acquire,
            "drain": self._drain,
            "machine_screenshot": self._machine_screenshot,
        }
        for name in ("withdraw", "renew", "release", "reset", "pause", "status", "changes", "retire", "machine_log"):
            self._methods[name] = self._on_pool_loop(getattr(pool, name))

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Any]:  # noqa: ARG002 - part of the contract
        """Accept every client that has the token."""
        return {}, None

    async def serve(self, stream: ServerStream, admitted: Any) -> None:  # noqa: ARG002 - part of the contract
        """Execute the calls of one client until its connection ends."""
        await JsonConnection(stream, self._methods).serve()

    def _on_pool_loop(self, method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            return await self._bridge.wait_async(method(*args))

        return call

    async def _acquire(
        self, request_id: str, holder: str, duration: float, limit: float | None, worker: str = ""
    ) -> tuple[int, Machine]:
        self._waiting[request_id] += 1
        try:
            return await self._bridge.wait_async(self._pool.acquire(request_id, holder, duration, limit, worker))
        except asyncio.CancelledError:
            io_loop().call_later(_RECONNECT_SECONDS, self._withdraw_if_abandoned, request_id)
            raise
        finally:
            self._waiting[request_id] -= 1
            self._waiting += Counter()  # removes requests for which no connection waits

    def _withdraw_if_abandoned(self, request_id: str) -> None:
        if not self._waiting[request_id]:
            with contextlib.suppress(ParagentError):  # a pool that has stopped has no queue
                self._bridge.submit(self._pool.withdraw_pending(request_id))

    async def _machine_screenshot(self, machine_id: str) -> str:
        image = await self._bridge.wait_async(self._pool.machine_screenshot(machine_id))
        return base64.b64encode(image).decode()

    async def _drain(self) -> None:
        self.drain_requested = True
        await self._bridge.wait_async(self._pool.drain())
