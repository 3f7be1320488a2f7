"""Calls over an authenticated stream: one JSON object in each message, requests with ids, answers in any order.

::

    {"id": 7, "method": "acquire", "args": [...]}                  a call
    {"id": 7, "result": ...}                                       its answer
    {"id": 7, "error": {"type": "LeaseLost", "message": "..."}}    or its error
    {"method": "share", "args": [...]}                             a notification, which has no answer

A message that is longer than one message of the stream may be is sent in parts: each begins with `+`, the last one with `.`.

Both ends of a stream may call and notify. `JsonConnection` is one end of one stream; `JsonClient` keeps a connection to a
server and connects again after it broke. All of it runs on the I/O loop (`transport.loop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from paragent.errors import ParagentError, ProtocolError, ServerLost
from paragent.transport.limits import MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from paragent.transport.client import ClientStream

__all__ = ["ByteStream", "JsonClient", "JsonConnection"]

_log = logging.getLogger("paragent.transport")

_LONGEST = 32 << 20
"""Bytes of the longest message: a screenshot of 16 MiB in base64 has 22 MiB."""
_MORE, _LAST = b"+", b"."
"""The first byte of a part. A message that is sent as a whole begins with a brace."""


class ByteStream(Protocol):
    """What `ClientStream` and `ServerStream` have in common."""

    async def read(self) -> bytes:
        """Return the next message.

        Raises:
            ParagentError: the stream ended.
        """

    async def write(self, message: bytes) -> None:
        """Send a message, waiting while the peer does not read."""


class JsonConnection:
    """One end of one stream. Belongs to the event loop of the stream.

    Arguments and results must be JSON values. Dataclass instances are sent as objects, tuples as arrays.

    Args:
        stream: the stream; nothing else may read it.
        methods: what the peer may call, by name. Calls run concurrently. Notifications run in the order in which they were
            sent, and the next message is read only after one has been handled.
        errors: errors that are raised here with the type that the peer raised.
        other_errors: the type of every other error of the peer.
    """

    def __init__(
        self,
        stream: ByteStream,
        methods: Mapping[str, Callable[..., Awaitable[Any]]] | None = None,
        *,
        errors: Iterable[type[ParagentError]] = (),
        other_errors: type[ParagentError] = ProtocolError,
    ) -> None:
        self._stream, self._methods = stream, methods or {}
        self._errors = {kind.__name__: kind for kind in errors}
        self._other_errors = other_errors
        self._ids = itertools.count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        """Calls without an answer yet, by id."""
        self._running: set[asyncio.Task[None]] = set()
        """Calls of the peer that run here."""
        self._write_lock = asyncio.Lock()
        """A stream takes one write at a time."""
        self._ended: str | None = None
        """Why the stream ended; None while it has not."""

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the peer and return its result.

        Raises:
            ServerLost: the stream ended; it is unknown whether the call was executed.
            ParagentError: the error that the method raised.
        """
        if self._ended is not None:
            raise ServerLost(self._ended)
        call_id = next(self._ids)
        future = self._pending[call_id] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"id": call_id, "method": method, "args": args})
            return await future
        finally:
            self._pending.pop(call_id, None)
            if future.done() and not future.cancelled():
                future.exception()  # marks it as read: `_send` may have failed first

    @property
    def ended(self) -> bool:
        """Whether the stream has ended, so that every call fails."""
        return self._ended is not None

    async def notify(self, method: str, *args: Any) -> None:
        """Call a method of the peer without waiting for it.

        Raises:
            ParagentError: the stream ended.
        """
        await self._send({"method": method, "args": args})

    async def serve(self) -> NoReturn:
        """Read messages until the stream ends, then fail pending calls and cancel the peer's calls that run here.

        Raises:
            ProtocolError: the peer sent a message that is not of this protocol, or a notification that cannot be handled.
            ParagentError: the stream ended; the type says why.
        """
        reason = "the connection was closed"
        try:
            while True:
                await self._handle(_decode(await self._read()))
        except ParagentError as error:
            reason = str(error)
            raise
        finally:
            self._end(reason)

    def _end(self, reason: str) -> None:
        self._ended = reason
        for task in self._running:
            task.cancel()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ServerLost(reason))

    async def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, default=_to_json).encode()
        if len(data) > _LONGEST:
            raise ProtocolError(f"a message of {len(data):,} bytes; the limit is {_LONGEST:,}")
        async with self._write_lock:
            for part in _parts(data):
                await self._stream.write(part)

    async def _read(self) -> bytes:
        """Return the next message; it is joined if it was sent in parts."""
        data = await self._stream.read()
        if data[:1] not in (_MORE, _LAST):
            return data
        parts, size = [data[1:]], len(data)
        while data[:1] == _MORE:
            data = await self._stream.read()
            size += len(data)
            if data[:1] not in (_MORE, _LAST) or size > _LONGEST + MESSAGE_BYTES:
                raise ProtocolError("the peer sent a malformed message in parts")
            parts.append(data[1:])
        return b"".join(parts)

    async def _handle(self, message: dict[str, Any]) -> None:
        call_id = message.get("id")
        if "method" not in message:
            self._answered(call_id, message)
        elif call_id is None:
            await self._notified(message)
        else:
            task = asyncio.create_task(self._called(call_id, message))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _answered(self, call_id: Any, message: dict[str, Any]) -> None:
        future = self._pending.pop(call_id, None)
        if future is None or future.done():
            return  # the caller gave up
        if "error" in message:
            future.set_exception(self._error_from(message["error"]))
        else:
            future.set_result(message.get("result"))

    def _error_from(self, fields: Any) -> ParagentError:
        if not isinstance(fields, dict):
            return ProtocolError("the peer sent a malformed error")
        return self._errors.get(str(fields.get("type")), self._other_errors)(str(fields.get("message")))

    async def _notified(self, message: dict[str, Any]) -> None:
        try:
            await self._execute(message)
        except (TypeError, ValueError, KeyError) as error:
            raise ProtocolError(f"malformed notification {message['method']!r}: {error}") from error

    async def _called(self, call_id: Any, message: dict[str, Any]) -> None:
        try:
            await self._send({"id": call_id, "result": await self._execute(message)})
        except ParagentError as error:
            await self._send_error(call_id, error)
        except Exception as error:  # noqa: BLE001 - the caller must get an answer to every call
            _log.exception("unexpected error in a call of %r", message["method"])
            await self._send_error(call_id, ProtocolError(f"{type(error).__name__}: {error}"))

    async def _send_error(self, call_id: Any, error: ParagentError) -> None:
        with contextlib.suppress(ParagentError):  # the peer is gone
            await self._send({"id": call_id, "error": {"type": type(error).__name__, "message": str(error)}})

    async def _execute(self, message: dict[str, Any]) -> Any:
        method = self._methods.get(message["method"])
        args = message.get("args")
        if method is None:
            raise ProtocolError(f"unknown method {message['method']!r}")
        if not isinstance(args, list):
            raise ProtocolError("the arguments of a call must be a list")
        return await method(*args)


class JsonClient:
    """Calls a server, connecting when needed. Every method must run on the I/O loop.

    A connection belongs to the event loop that opened it. If that loop failed and was replaced, the next call opens another
    connection.

    Args:
        connect: opens a stream to the server.
        errors: as for `JsonConnection`.
        other_errors: as for `JsonConnection`.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[ClientStream]],
        *,
        errors: Iterable[type[ParagentError]] = (),
        other_errors: type[ParagentError] = ProtocolError,
    ) -> None:
        self._connect = connect
        self._errors, self._other_errors = tuple(errors), other_errors
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        """Makes concurrent callers open one connection."""
        self._connection: JsonConnection | None = None
        self._reader: asyncio.Task[None] | None = None

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the server and return its result.

        Raises:
            ServerLost: the server cannot be reached, or the connection broke and it is unknown whether the call was executed.
            ParagentError: the error that the method raised.
        """
        return await (await self.connection()).call(method, *args)

    async def connection(self) -> JsonConnection:
        """Return the connection; open one if there is none or it broke.

        Raises:
            ParagentError: the error of `connect`.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
            self._connection = self._reader = None
        async with self._lock:
            if self._connection is None or self._connection.ended or self._reader is None or self._reader.done():
                stream = await self._connect()
                self._connection = JsonConnection(stream, errors=self._errors, other_errors=self._other_errors)
                self._reader = asyncio.create_task(_read(stream, self._connection), name="paragent JSON client")
            return self._connection

    async def close(self) -> None:
        """Close the connection, if there is one. Pending calls fail with `ServerLost`."""
        reader, self._reader = self._reader, None
        if reader is not None and self._loop is asyncio.get_running_loop():
            reader.cancel()
            await asyncio.wait([reader])


async def _read(stream: ClientStream, connection: JsonConnection) -> None:
    """Read answers until the stream ends; `JsonConnection.serve` gives pending calls the reason."""
    with contextlib.suppress(ParagentError):
        try:
            await connection.serve()
        finally:
            await stream.close()


def _parts(data: bytes) -> Iterator[bytes]:
    if len(data) <= MESSAGE_BYTES:
        yield data
        return
    for start in range(0, len(data), MESSAGE_BYTES):
        end = start + MESSAGE_BYTES
        yield (_LAST if end >= len(data) else _MORE) + data[start:end]


def _decode(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError("the peer sent a message that is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("id", 0), int):
        raise ProtocolError("the peer sent a message that is not a call or an answer")
    if not isinstance(message.get("method", ""), str):
        raise ProtocolError("the peer sent a call without the name of a method")
    return message


def _to_json(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON")
