"""Client end of an authenticated gRPC stream, and the errors that gRPC status codes mean."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from paragent.errors import AccessDenied, LimitExceeded, ParagentError, ProtocolError, ServerLost
from paragent.transport.auth import ClientSide, decode_message
from paragent.transport.limits import MESSAGE_BYTES, TimeBudget

if TYPE_CHECKING:
    from paragent.transport.address import Address, TlsConf
    from paragent.transport.auth import Token

__all__ = ["ERRORS", "METHOD", "ClientStream", "ConnectionClosed", "connect", "error_of"]


_Code = grpc.StatusCode

ERRORS: dict[grpc.StatusCode, type[ParagentError]] = {
    _Code.OK: ServerLost,  # the stream ended although neither side closed it
    _Code.CANCELLED: ServerLost,
    _Code.UNKNOWN: ServerLost,
    _Code.UNAVAILABLE: ServerLost,
    _Code.DEADLINE_EXCEEDED: ServerLost,
    _Code.ABORTED: ServerLost,
    _Code.INTERNAL: ServerLost,
    _Code.DATA_LOSS: ServerLost,
    _Code.UNAUTHENTICATED: AccessDenied,
    _Code.PERMISSION_DENIED: AccessDenied,
    _Code.RESOURCE_EXHAUSTED: LimitExceeded,
    _Code.OUT_OF_RANGE: LimitExceeded,
    _Code.INVALID_ARGUMENT: ProtocolError,
    _Code.FAILED_PRECONDITION: ProtocolError,
    _Code.NOT_FOUND: ProtocolError,
    _Code.ALREADY_EXISTS: ProtocolError,
    _Code.UNIMPLEMENTED: ProtocolError,
}


class ConnectionClosed(ServerLost):
    """The server closed the connection before it said anything, as a server with TLS does if the client uses none."""


_CONNECTION_FAILURES: tuple[tuple[str, type[ParagentError], str], ...] = (
    ("Connection refused", ServerLost, "connection refused"),
    ("address lookup failed", ServerLost, "the name of the host is unknown"),
    (
        "Socket closed",
        ConnectionClosed,
        "it closed the connection; a server with TLS does so if the client has no TLS settings",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        AccessDenied,
        "no known authority signed its certificate; name its file: client: TlsConf(ca=...), --tls-ca; agent server: --peer-ca",
    ),
    (
        "Hostname Verification Check failed",
        AccessDenied,
        "its certificate is for another host name; set this name with --tls-server-name or TlsConf(server_name=...)",
    ),
    ("WRONG_VERSION_NUMBER", AccessDenied, "it does not use TLS; connect without TLS settings"),
    ("Expected SETTINGS frame", ProtocolError, "this is not a server of paragent; check the port"),
    (
        "Method not found",
        ProtocolError,
        "this is not a server of paragent, or it has another version; check the port and the versions of both sides",
    ),
)
"""Parts of gRPC's details of a failed connection, and what they mean."""


def error_of(code: grpc.StatusCode, details: str | None, address: Address) -> ParagentError:
    """Return the error for a gRPC status of the server at `address`."""
    for part, kind, meaning in _CONNECTION_FAILURES:
        if part in (details or ""):
            return kind(f"server {address}: {meaning}")
    return ERRORS[code](f"server {address}: {details or code.name.lower().replace('_', ' ')}")


METHOD = "/paragent.v1.Link/Open"
_STATUS_SECONDS = 0.2
"""Seconds to wait for the status of a call that has ended; gRPC has it by then, or never."""

_OPTIONS = [
    # gRPC seems to ping at most once per second, however short the first number is (measured with 0.5 s and 0.25 s). So a frozen
    # server or a cut link is pinged after at most 1 s and detected 0.55 s later. With 0.35 s to reconnect that makes 1.9 s,
    # within the documented 2 s.
    ("grpc.keepalive_time_ms", 250),
    ("grpc.keepalive_timeout_ms", 550),
    ("grpc.http2.ping_timeout_ms", 550),  # newer versions of gRPC use this; their default is a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Every channel gets its own connection: the back-off of one that failed must not delay a new one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    (
        "grpc.min_reconnect_backoff_ms",
        20_000,
    ),  # how long one attempt to connect may take; the time budget of `connect` ends it earlier
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.max_receive_message_length", 2 * MESSAGE_BYTES),
    ("grpc.max_send_message_length", 2 * MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
]


class ClientStream:
    """A bidirectional stream of byte messages to a server that has proved that it knows the token."""

    def __init__(self, channel: grpc.aio.Channel, call: Any, address: Address) -> None:
        self._channel, self._call, self._address = channel, call, address

    async def read(self) -> bytes:
        """Return the next message.

        Raises:
            ParagentError: the stream ended; the type says why.
        """
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_of(error.code(), error.details(), self._address) from None
        except asyncio.CancelledError:
            self._check_closed()
            raise
        if message is grpc.aio.EOF:
            raise error_of(await self._call.code(), await self._call.details(), self._address)
        return bytes(message)

    async def write(self, message: bytes) -> None:
        """Send a message, waiting while the server does not read.

        Raises:
            ParagentError: as `read`.
        """
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise await self._ending() from None
        except asyncio.CancelledError:
            self._check_closed()
            raise

    def _check_closed(self) -> None:
        """Raise `ServerLost` if a read or write was cancelled because the stream was closed, and not its caller's task."""
        if not _being_cancelled():
            raise ServerLost(f"server {self._address}: the connection was closed") from None

    async def _ending(self) -> ParagentError:
        """Return why the stream ended: a failed write does not say, the status of the call does."""
        try:
            async with asyncio.timeout(_STATUS_SECONDS):
                return error_of(await self._call.code(), await self._call.details(), self._address)
        except TimeoutError:
            return ServerLost(f"server {self._address}: the connection is closed")

    def cancel(self) -> None:
        """End the stream: pending reads and writes raise an error."""
        self._call.cancel()

    async def close(self) -> None:
        """End the stream and its connection."""
        self._call.cancel()
        await self._channel.close()


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def connect(
    address: Address, service: str, token: Token, tls: TlsConf | None, hello: dict[str, Any], budget: float | TimeBudget
) -> tuple[ClientStream, dict[str, Any]]:
    """Open a stream to a service; return it and the server's welcome.

    Args:
        address: where the server listens.
        service: the name of the service.
        token: the secret that both sides must know.
        tls: settings for TLS; None connects without TLS.
        hello: sent to the service, which answers with its welcome.
        budget: seconds to wait.

    Raises:
        AccessDenied: one side does not know the token, or TLS failed.
        ServerLost: no server answered within the budget.
        ParagentError: the server ended the stream; `ERRORS` maps its status to a type.
    """
    if not isinstance(budget, TimeBudget):
        budget = TimeBudget(budget)
    seconds = budget.left
    channel = _channel(address, tls)
    call: Any = channel.stream_stream(METHOD)()
    stream = ClientStream(channel, call, address)
    try:
        return stream, await budget.run(_handshake(stream, ClientSide(token, service), hello))
    except TimeoutError:
        await _abandon(stream)
        raise ServerLost(f"no server answers at {address} within {seconds:.1f} s") from None
    except BaseException:
        await _abandon(stream)
        raise


def _channel(address: Address, tls: TlsConf | None) -> grpc.aio.Channel:
    options: list[tuple[str, Any]] = list(_OPTIONS)
    if tls is None:
        return grpc.aio.insecure_channel(address.target, options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(address.target, tls.channel_credentials(), options)


async def _handshake(stream: ClientStream, side: ClientSide, hello: dict[str, Any]) -> dict[str, Any]:
    await stream.write(side.begin())
    await stream.write(side.answer(await stream.read(), hello))
    welcome: dict[str, Any] = decode_message(await stream.read())["welcome"]
    return welcome


async def _abandon(stream: ClientStream) -> None:
    with contextlib.suppress(ParagentError, asyncio.CancelledError):
        await stream.close()
