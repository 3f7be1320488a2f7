"""A pool for others: workers in other processes and on other hosts lease from it over gRPC.

The stream may break and come back. A request whose client is gone keeps its place for a moment, so that a client which
comes back finds it; a lease whose client is gone ends by its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from paragent.errors import ParagentError, ProtocolError
from paragent.machines.lease import LeaseRequest
from paragent.machines.protocol import SERVICE, decode, encode, error_to, to_plain
from paragent.transport.address import Address
from paragent.transport.auth import Token, load_token
from paragent.transport.loop import io_loop
from paragent.transport.loop import run as run_on_io_loop
from paragent.transport.server import RpcServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from paragent.machines.pool import VMPoolManager
    from paragent.transport.server import ServerStream
    from paragent.transport.tls import TlsConf

__all__ = ["PoolServer"]

_log = logging.getLogger("paragent.machines")

_RETURN_SECONDS = 3.0
"""How long a waiting request keeps its place while its client is away; a client notices a cut within two seconds."""
_START_SECONDS = 20.0
_STOP_SECONDS = 5.0


class PoolServer:
    """Serves a running pool at an address; it does not own the pool.

    Raises:
        ConfigError: the address cannot be listened at.
        AccessDenied: the user's token file can be read by others.
    """

    def __init__(
        self,
        pool: VMPoolManager,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: Token | None = None,
        tls: TlsConf | None = None,
    ) -> None:
        address = Address.of(host, port)
        self._service = _PoolService(pool)
        self._server = RpcServer(address, {SERVICE: self._service}, token or load_token(), tls=tls)
        self.address = Address(host, run_on_io_loop(self._server.start(), _START_SECONDS))
        """Where the pool is served."""

    @property
    def drain_asked(self) -> bool:
        """Whether a client has asked for the pool to be drained."""
        return self._service.drain_asked

    def close(self) -> None:
        """Stop serving; the pool goes on."""
        run_on_io_loop(self._server.stop(1.0), _STOP_SECONDS + 1.0)


class _PoolService:
    """What happens on the streams; all of it on the loop of all gRPC traffic."""

    def __init__(self, pool: VMPoolManager) -> None:
        self._pool = pool
        self._awaited: Counter[str] = Counter()
        """How many streams wait for each request."""
        self.drain_asked = False
        self._calls: dict[str, Callable[..., Awaitable[Any]]] = {
            "withdraw": pool._withdraw,
            "renew": pool._renew,
            "release": pool._release,
            "reset": pool._reset,
            "pause": pool._pause,
            "status": pool._status,
            "retire": pool._retire,
            "drain": self._drain,
        }

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Any]:  # noqa: ARG002 - the contract's
        """Every client that knows the token is welcome."""
        return {}, None

    async def serve(self, stream: ServerStream, admitted: Any) -> None:  # noqa: ARG002 - the contract's
        """Answer calls, each as soon as it is done."""
        under_way: set[asyncio.Task[None]] = set()
        turn = asyncio.Lock()  # one message at a time is written
        try:
            while True:
                fields = decode(await stream.read())
                task = asyncio.create_task(self._answer(stream, turn, fields))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        finally:
            for task in under_way:
                task.cancel()

    async def _answer(self, stream: ServerStream, turn: asyncio.Lock, fields: dict[str, Any]) -> None:
        number = fields["call"]
        try:
            message = encode(call=number, answer=to_plain(await self._perform(fields.get("do"), fields.get("with"))))
        except ParagentError as error:
            message = encode(call=number, error=error_to(error))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a call, its caller must not wait for ever
            _log.exception("a call of a client failed in a way it must not")
            message = encode(call=number, error=error_to(ProtocolError(f"{type(error).__name__}: {error}")))
        async with turn:
            with contextlib.suppress(ParagentError):
                await stream.write(message)

    async def _perform(self, name: Any, arguments: Any) -> Any:
        if not isinstance(arguments, list):
            raise ProtocolError("a call has a list of arguments")
        if name == "acquire":
            return await self._acquire(LeaseRequest(*arguments))
        call = self._calls.get(name)
        if call is None:
            raise ProtocolError(f"a pool knows no call {name!r}")
        return await self._pool.wait_async(call(*arguments))  # type: ignore[arg-type]

    async def _acquire(self, request: LeaseRequest) -> Any:
        self._awaited[request.id] += 1
        try:
            grant = await self._pool.wait_async(self._pool._acquire(request))
        except asyncio.CancelledError:
            io_loop().call_later(_RETURN_SECONDS, self._withdraw_if_abandoned, request.id)
            raise
        finally:
            self._awaited[request.id] -= 1
            self._awaited += Counter()  # drops those that nobody waits for
        return grant

    def _withdraw_if_abandoned(self, request_id: str) -> None:
        if not self._awaited[request_id]:
            with contextlib.suppress(ParagentError):  # a pool that has ended has no queue
                loop = self._pool._loop()
                asyncio.run_coroutine_threadsafe(self._pool._withdraw_pending(request_id), loop)

    async def _drain(self) -> None:
        self.drain_asked = True
        self._pool._open().drain()
