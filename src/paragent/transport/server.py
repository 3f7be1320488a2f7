"""Server end of authenticated gRPC streams: listens, authenticates every peer, and passes its stream to a service."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from paragent._internal.text import printable
from paragent._internal.threads import fatal
from paragent.errors import AccessDenied, ConfigError, LimitExceeded, ParagentError, ProtocolError, ServerLost
from paragent.transport.address import Address
from paragent.transport.auth import ServerSide, encode_message
from paragent.transport.client import METHOD
from paragent.transport.limits import MESSAGE_BYTES, Limits, TokenBucket
from paragent.transport.loop import off_failure, on_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.transport.address import TlsConf
    from paragent.transport.auth import Token

__all__ = ["RpcServer", "ServerStream", "Service"]

_log = logging.getLogger("paragent.transport")

_HANDSHAKE_SECONDS = 5.0
"""Seconds in which a peer must authenticate; it takes two round trips."""
_REJECTION_DELAY = 0.3
"""Seconds before a wrong proof is rejected, to slow down guessing."""
_PORT_SECONDS = 1.0
"""Seconds to wait until a gRPC server that ended by itself has released its port."""
_PORT_PAUSE = 0.05
"""Seconds between two attempts to listen again."""
_LOG_EVERY = 1.0
"""Seconds between log lines about rejected peers; a line contains the count since the previous one."""
_NO_PROOF = (
    "probably a wrong token: the client closed the stream when it had read the server's proof, as a client with a "
    "different token does"
)

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
    """A bidirectional stream of byte messages to a client that has proved that it knows the token."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.peer = _peer_of(context)

    async def read(self) -> bytes:
        """Return the next message.

        Raises:
            ServerLost: the client closed the stream.
        """
        message = await self._context.read()
        if message is grpc.aio.EOF:
            raise ServerLost("the client closed the stream")
        return bytes(message)

    async def write(self, message: bytes) -> None:
        """Send a message, waiting while the client does not read."""
        await self._context.write(message)


class Service(Protocol):
    """Handles the streams of authenticated clients."""

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Return the welcome for the client and the second argument of `serve`.

        Raises:
            ParagentError: the client is rejected.
        """

    async def serve(self, stream: ServerStream, admitted: Any) -> None:
        """Exchange messages with the client until either side ends the stream."""


class RpcServer:
    """Listens at one address for one or more services, on the I/O loop.

    If that loop ends unexpectedly, the server ends its process: its port would stay open with nothing behind it, and clients
    would wait for ever.

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
        """None while it does not listen."""
        self._restarting: asyncio.Task[None] | None = None
        self._handshakes: dict[asyncio.Timeout, None] = {}
        """Time limits of unauthenticated peers, the oldest first."""
        self._handshake_rate = TokenBucket(self._limits.handshakes_per_second, time.monotonic())
        self._rejections = 0
        self._last_logged = 0.0

    async def start(self) -> int:
        """Start to listen; return the port (the system chooses one if the address has port 0)."""
        port = await self._listen()
        on_failure(self._loop_failed)
        self._address = Address(self._address.host, port, self._address.path)
        return port

    async def stop(self, grace: float) -> None:
        """Stop listening, and end every stream after at most `grace` seconds."""
        server, self._server = self._server, None
        off_failure(self._loop_failed)
        if self._restarting is not None:
            self._restarting.cancel()
        if server is not None:
            await server.stop(grace)

    def _loop_failed(self, name: str, error: BaseException) -> None:
        fatal(name, error)

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
            raise ConfigError(f"cannot listen at {self._address}: {_why_not(self._address)}") from error
        before = asyncio.all_tasks()
        await server.start()
        for task in asyncio.all_tasks() - before:
            task.add_done_callback(lambda ended: self._accept_loop_ended(server, ended))
        self._server = server
        return port

    def _accept_loop_ended(self, server: grpc.aio.Server, ended: asyncio.Task[Any]) -> None:
        """Replace a gRPC server that ended by itself, which happens if a peer sends a request path that is not UTF-8."""
        if self._server is server and not ended.cancelled() and isinstance(ended.exception(), UnicodeError):
            _log.warning("a peer sent a request that gRPC cannot decode (%s); listening again", ended.exception())
            self._restarting = asyncio.create_task(self._listen_again(server))

    async def _listen_again(self, server: grpc.aio.Server) -> None:
        """Listen at the same port again. Connected clients reconnect and resume their sessions."""
        with contextlib.suppress(UnicodeError, TimeoutError):
            await asyncio.wait_for(server.stop(None), _PORT_SECONDS)
        while self._server is server:
            try:
                await self._listen()
            except ConfigError:  # the port has not been released yet
                await asyncio.sleep(_PORT_PAUSE)

    async def _open(self, _: Any, context: Any) -> None:
        stream = ServerStream(context)
        try:
            service, admitted = await self._admit(stream)
        except TimeoutError:
            await self._reject(context, "no handshake in time", grpc.StatusCode.DEADLINE_EXCEEDED)
        except AccessDenied as error:
            await asyncio.sleep(_REJECTION_DELAY)
            await self._reject(context, str(error), grpc.StatusCode.UNAUTHENTICATED)
        except LimitExceeded as error:
            await self._reject(context, str(error), grpc.StatusCode.RESOURCE_EXHAUSTED)
        except (ProtocolError, ServerLost) as error:
            await self._reject(context, str(error), grpc.StatusCode.INVALID_ARGUMENT)
        else:
            await self._serve(service, stream, admitted, context)

    async def _admit(self, stream: ServerStream) -> tuple[Service, Any]:
        if not self._handshake_rate.try_take(time.monotonic()):
            raise LimitExceeded("too many new connections; try again")
        if len(self._handshakes) >= self._limits.handshakes:
            # Evict the oldest unauthenticated peer, so that idle connections do not block new ones.
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())
        async with asyncio.timeout(_HANDSHAKE_SECONDS) as limit:
            self._handshakes[limit] = None
            try:
                side = ServerSide(self._token)
                await stream.write(side.challenge(await stream.read()))
                hello = side.admit(await self._read_client_proof(stream, limit))
            finally:
                self._handshakes.pop(limit, None)
        service = self._services.get(side.service)
        if service is None:
            others = ", ".join(map(repr, self._services))
            raise ProtocolError(f"this server has no service {side.service[:40]!r}, it has {others}; check the port")
        welcome, admitted = service.welcome(hello)
        await stream.write(encode_message({"welcome": welcome}))
        return service, admitted

    async def _read_client_proof(self, stream: ServerStream, limit: asyncio.Timeout) -> bytes:
        """Read the client's second message. A client with a different token sends none: it does not trust this server."""
        try:
            return await stream.read()
        except ServerLost:
            raise ServerLost(_NO_PROOF) from None
        except asyncio.CancelledError:  # what gRPC does if the connection is closed as well
            if self._server is not None and not limit.expired():
                self._log_rejection(stream.peer, _NO_PROOF)
            raise

    async def _serve(self, service: Service, stream: ServerStream, admitted: Any, context: Any) -> None:
        try:
            await service.serve(stream, admitted)
        except (ProtocolError, LimitExceeded) as error:
            await self._reject(context, str(error), grpc.StatusCode.INVALID_ARGUMENT)
        except ParagentError:
            return  # the client is gone; the service has already handled that

    async def _reject(self, context: Any, reason: str, code: grpc.StatusCode) -> None:
        self._log_rejection(_peer_of(context), reason)
        await context.abort(code, reason)

    def _log_rejection(self, peer: str, reason: str) -> None:
        self._rejections += 1
        now = time.monotonic()
        if now - self._last_logged >= _LOG_EVERY:
            _log.warning("rejected %s: %s (%d since the last such line)", peer, printable(reason), self._rejections)
            self._rejections, self._last_logged = 0, now


def _why_not(address: Address) -> str:
    """Return why gRPC cannot listen at an address and what to do: gRPC's own error does not say."""
    found = set()
    try:
        for family, kind, _, _, target in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                found.add(_bind_error(probe, target))
    except OSError as error:
        return f"{error.strerror}; use a name or an address of this host"
    if errno.EADDRINUSE in found:
        return "the port is in use; choose another port, or stop the program that uses it"
    if errno.EADDRNOTAVAIL in found:
        return "this is not an address of this host; use one of its addresses, or 0.0.0.0 for all of them"
    if errno.EACCES in found:
        return "ports below 1024 need the rights of root; choose another port"
    return "the port is in use, or the host is not this one; choose another port, or stop the program that uses it"


def _bind_error(probe: socket.socket, target: Any) -> int:
    try:
        probe.bind(target)
    except OSError as error:
        return error.errno or 0
    return 0


def _peer_of(context: Any) -> str:
    """Return the address of the peer, such as `ipv6:[::1]:50051`; gRPC percent-encodes the brackets."""
    return str(context.peer()).replace("%5B", "[").replace("%5D", "]")
