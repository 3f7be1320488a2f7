"""The server's end: listens, makes every peer prove that it knows the token, hands the stream to a service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from paragent._internal.text import printable
from paragent.errors import AccessDenied, ConfigError, LimitExceeded, ParagentError, ProtocolError, ServerLost
from paragent.transport.auth import ServerSide, as_text
from paragent.transport.client import METHOD
from paragent.transport.limits import MESSAGE_BYTES, Limits, Pace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.transport.address import Address
    from paragent.transport.auth import Token
    from paragent.transport.tls import TlsConf

__all__ = ["RpcServer", "ServerStream", "Service"]

_log = logging.getLogger("paragent.transport")

_HANDSHAKE_SECONDS = 5.0
"""A peer that has not proved itself by then is dropped; a real one needs two round trips."""
_REFUSAL_DELAY = 0.3
"""Seconds before a wrong proof is refused, which makes guessing slow and costs an honest mistake nothing."""
_PORT_SECONDS = 1.0
"""For a server that ended by itself to let go of what it has."""
_PORT_PAUSE = 0.05
"""Seconds between two tries to listen again."""
_LOG_EVERY = 1.0
"""Seconds between log lines about refusals: a flood of them is one line with a count."""

_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_receive_message_length", 2 * MESSAGE_BYTES),
    ("grpc.max_send_message_length", 2 * MESSAGE_BYTES),
]


class ServerStream:
    """A stream of byte messages in both directions to a client that proved that it knows the token."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.peer = _peer_of(context)

    async def read(self) -> bytes:
        """Return the next message.

        Raises:
            ServerLost: the client is gone.
        """
        message = await self._context.read()
        if message is grpc.aio.EOF:
            raise ServerLost("the client closed the stream")
        return bytes(message)

    async def write(self, message: bytes) -> None:
        """Send a message, waiting while the client does not read."""
        await self._context.write(message)


class Service(Protocol):
    """What happens on a stream once its peer is known."""

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Return what to say to the client and whatever `serve` shall be given.

        Raises:
            ParagentError: the client is refused.
        """

    async def serve(self, stream: ServerStream, admitted: Any) -> None:
        """Speak with the client until either side ends it."""


class RpcServer:
    """Listens at one address for any number of services.

    Raises:
        ConfigError: (by `start`) the address cannot be listened at.
    """

    def __init__(
        self,
        address: Address,
        services: Mapping[str, Service],
        token: Token,
        *,
        tls: TlsConf | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._address, self._services, self._token, self._tls = address, services, token, tls
        self._limits = limits or Limits()
        self._server: grpc.aio.Server | None = None
        """None unless it listens."""
        self._rising: asyncio.Task[None] | None = None
        self._shaking: dict[asyncio.Timeout, None] = {}
        """The time limits of peers that have not yet proved themselves, the oldest first."""
        self._pace = Pace(self._limits.handshakes_per_second, time.monotonic())
        self._refusals = 0
        self._last_line = 0.0

    async def start(self) -> int:
        """Begin to listen; return the port, which the system chose if it was given as 0."""
        port = await self._listen()
        self._address = self._address._replace(port=port)
        return port

    async def stop(self, grace: float) -> None:
        """Stop listening and end every stream, after `grace` seconds at most."""
        server, self._server = self._server, None
        if self._rising is not None:
            self._rising.cancel()
        if server is not None:
            await server.stop(grace)

    async def _listen(self) -> int:
        server = grpc.aio.server(options=_OPTIONS)
        handler: Any = grpc.stream_stream_rpc_method_handler(self._open)
        service, method = METHOD[1:].split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        try:
            if self._tls is None:
                port = server.add_insecure_port(self._address.target)
            else:
                port = server.add_secure_port(self._address.target, self._tls.server_credentials())
        except RuntimeError as error:
            await server.stop(None)
            raise ConfigError(
                f"cannot listen at {self._address}: the address is in use or not of this machine"
            ) from error
        before = asyncio.all_tasks()
        await server.start()
        for task in asyncio.all_tasks() - before:
            task.add_done_callback(lambda ended: self._accepted_its_last(server, ended))
        self._server = server
        return port

    def _accepted_its_last(self, server: grpc.aio.Server, ended: asyncio.Task[Any]) -> None:
        """Take the place of a server that ended by itself: gRPC's does when anybody sends a path that is no UTF-8."""
        if self._server is server and not ended.cancelled() and isinstance(ended.exception(), UnicodeError):
            _log.warning("somebody sent a request that gRPC cannot read (%s); listening again", ended.exception())
            self._rising = asyncio.create_task(self._listen_again(server))

    async def _listen_again(self, server: grpc.aio.Server) -> None:
        """Listen at the same port as before; clients that were connected come back and go on where they were."""
        with contextlib.suppress(UnicodeError, TimeoutError):
            await asyncio.wait_for(server.stop(None), _PORT_SECONDS)
        while self._server is server:
            try:
                await self._listen()
            except ConfigError:  # the system has not let go of the port yet
                await asyncio.sleep(_PORT_PAUSE)

    async def _open(self, _: Any, context: Any) -> None:
        stream = ServerStream(context)
        try:
            service, admitted = await self._admit(stream)
        except TimeoutError:
            await self._refuse(context, "no handshake in time", grpc.StatusCode.DEADLINE_EXCEEDED)
        except AccessDenied as error:
            await asyncio.sleep(_REFUSAL_DELAY)
            await self._refuse(context, str(error), grpc.StatusCode.UNAUTHENTICATED)
        except LimitExceeded as error:
            await self._refuse(context, str(error), grpc.StatusCode.RESOURCE_EXHAUSTED)
        except (ProtocolError, ServerLost) as error:
            await self._refuse(context, str(error), grpc.StatusCode.INVALID_ARGUMENT)
        else:
            await self._serve(service, stream, admitted, context)

    async def _admit(self, stream: ServerStream) -> tuple[Service, Any]:
        if not self._pace.allows(time.monotonic()):
            raise LimitExceeded("too many peers begin to shake hands; try again")
        if len(self._shaking) >= self._limits.handshakes:
            # Whoever has said nothing for longest goes: peers that open streams and wait do not keep others out.
            oldest = next(iter(self._shaking))
            del self._shaking[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())
        async with asyncio.timeout(_HANDSHAKE_SECONDS) as limit:
            self._shaking[limit] = None
            try:
                side = ServerSide(self._token)
                await stream.write(side.challenge(await stream.read()))
                hello = side.admit(await stream.read())
            finally:
                self._shaking.pop(limit, None)
        service = self._services.get(side.service)
        if service is None:
            raise ProtocolError(f"there is no service {side.service[:40]!r} here")
        welcome, admitted = service.welcome(hello)
        await stream.write(as_text({"welcome": welcome}))
        return service, admitted

    async def _serve(self, service: Service, stream: ServerStream, admitted: Any, context: Any) -> None:
        try:
            await service.serve(stream, admitted)
        except (ProtocolError, LimitExceeded) as error:
            await self._refuse(context, str(error), grpc.StatusCode.INVALID_ARGUMENT)
        except ParagentError:
            return  # the client went away, which the service has taken note of

    async def _refuse(self, context: Any, reason: str, code: grpc.StatusCode) -> None:
        self._refusals += 1
        now = time.monotonic()
        if now - self._last_line >= _LOG_EVERY:
            _log.warning(
                "refused %s: %s (%d since the last such line)", _peer_of(context), printable(reason), self._refusals
            )
            self._refusals, self._last_line = 0, now
        await context.abort(code, reason)


def _peer_of(context: Any) -> str:
    """Return who is at the other end, as `ipv6:[::1]:50051`; gRPC writes the brackets as addresses of the web have them."""
    return str(context.peer()).replace("%5B", "[").replace("%5D", "]")
