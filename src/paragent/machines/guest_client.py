"""HTTP client for the guest agent of a machine: one request on one connection, sync for holders and async for the pool.

Machines are not trusted. `timeout` limits the whole exchange, however slowly a machine sends. A reply may have at most `limit`
bytes, whatever length the machine announces. Replies with a length, chunked replies and replies that end with the connection
are understood.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import urllib.parse
from dataclasses import dataclass
from typing import Any, NamedTuple

from paragent._internal.clock import monotonic
from paragent.errors import LeaseLost, MachineFailed

__all__ = [
    "FILE_BYTES",
    "JSON_BYTES",
    "REPLY_BYTES",
    "TOKEN_HEADER",
    "GuestReply",
    "GuestRequest",
    "RequestBody",
    "form_body",
    "json_body",
    "upload_body",
]

TOKEN_HEADER = "X-Paragent-Token"  # noqa: S105 - the name of a header
REPLY_BYTES = 64 << 20
"""Default limit of a reply: the output of a command, an accessibility tree, a screenshot."""
FILE_BYTES = 1 << 30
"""Default limit of a file that is read from a machine; uploads have the same limit."""
JSON_BYTES = 8 << 20
"""Limit of a reply that is parsed as JSON: objects take up to 25 times as much memory. An accessibility tree has up to 3 MB."""
_HEAD_BYTES = 64 << 10
_CHUNK_LINE_BYTES = 4 << 10
_READ_BYTES = 256 << 10
_STALE_TOKEN = 409
"""The status of a reply to a token that is not the current holder's."""


class GuestReply(NamedTuple):
    """The reply of a guest agent."""

    status: int
    """The status code of the HTTP response."""
    body: bytes
    """The body of the response."""

    def json(self) -> Any:
        """Return the body parsed as JSON.

        Raises:
            MachineFailed: the body is not JSON, or is larger than `JSON_BYTES`.
        """
        if len(self.body) > JSON_BYTES:
            raise MachineFailed(
                f"the machine sent {len(self.body)} bytes of JSON, and at most {JSON_BYTES} are read: let a command with more "
                "output write to a file, and read the file"
            )
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise MachineFailed(f"the machine sent {self.body[:200]!r}, which is not JSON") from None

    def fields(self) -> dict[str, Any]:
        """Return the body parsed as a JSON object.

        Raises:
            MachineFailed: the body is not a JSON object.
        """
        answer = self.json()
        if not isinstance(answer, dict):
            raise MachineFailed(f"the machine sent {self.body[:200]!r}, which is not a JSON object")
        return answer

    def check(self, operation: str) -> GuestReply:
        """Return this reply if its status is 200.

        Args:
            operation: what was requested, for the error message.

        Raises:
            LeaseLost: the machine has another holder now.
            MachineFailed: any other status.
        """
        if self.status == _STALE_TOKEN:
            raise LeaseLost(f"{operation}: the machine has another holder now; this lease has ended")
        if self.status != 200:
            text = self.body[:500].decode(errors="replace")
            raise MachineFailed(f"{operation}: the machine answered with status {self.status}: {text}")
        return self


class RequestBody(NamedTuple):
    """The body of a request."""

    content_type: str
    """The media type of the data."""
    data: bytes
    """The data to send."""


def json_body(fields: dict[str, Any]) -> RequestBody:
    """Return a JSON body."""
    return RequestBody("application/json", json.dumps(fields).encode())


def form_body(fields: dict[str, str]) -> RequestBody:
    """Return a URL-encoded form."""
    return RequestBody("application/x-www-form-urlencoded", urllib.parse.urlencode(fields).encode())


def upload_body(path: str, data: bytes) -> RequestBody:
    """Return a multipart form with a file."""
    boundary = secrets.token_hex(16)
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file_path"\r\n\r\n{path}\r\n--{boundary}\r\n'
    head += 'Content-Disposition: form-data; name="file_data"; filename="file"\r\n\r\n'
    content = head.encode() + data + f"\r\n--{boundary}--\r\n".encode()
    return RequestBody(f"multipart/form-data; boundary={boundary}", content)


@dataclass(frozen=True, slots=True)
class GuestRequest:
    """One request to a guest agent."""

    host: str
    port: int
    method: str
    path: str
    body: RequestBody | None = None
    token: str | None = None
    timeout: float = 10.0
    """Seconds for the whole exchange."""
    limit: int = REPLY_BYTES
    """Maximum number of bytes of the reply's body."""

    def send(self) -> GuestReply:
        """Send the request and return the reply.

        Raises:
            MachineFailed: the reply was not complete within `timeout`, is larger than `limit` or is not HTTP, or the
                connection broke.
        """
        deadline, parser = monotonic() + self.timeout, _ReplyParser(self.limit)
        try:
            with socket.create_connection((self.host, self.port), self.timeout) as connection:
                connection.settimeout(_remaining(deadline))
                connection.sendall(self._encode())
                while not parser.done:
                    connection.settimeout(_remaining(deadline))
                    parser.feed(connection.recv(_READ_BYTES))
            return parser.reply()
        except (OSError, ValueError) as error:
            raise self._failed(error) from error

    async def send_async(self) -> GuestReply:
        """Send the request and return the reply, without blocking the event loop; raises the same errors as `send`."""
        try:
            async with asyncio.timeout(self.timeout):
                return await self._exchange(_ReplyParser(self.limit))
        except (OSError, ValueError) as error:
            raise self._failed(error) from error

    async def _exchange(self, parser: _ReplyParser) -> GuestReply:
        request = self._encode()
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(request)
            await writer.drain()
            while not parser.done:
                parser.feed(await reader.read(_READ_BYTES))
            return parser.reply()
        finally:
            writer.transport.abort()  # a machine that does not read must not delay the end of the exchange
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _encode(self) -> bytes:
        if any(character <= " " or character == "\x7f" for character in self.method + self.path + (self.token or "")):
            raise ValueError("a request line cannot have spaces or control characters")
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {self.host}:{self.port}", "Connection: close"]
        if self.body is not None:
            lines += [f"Content-Type: {self.body.content_type}", f"Content-Length: {len(self.body.data)}"]
        if self.token is not None:
            lines.append(f"{TOKEN_HEADER}: {self.token}")
        return "\r\n".join([*lines, "", ""]).encode() + (b"" if self.body is None else self.body.data)

    def _failed(self, error: Exception) -> MachineFailed:
        reason = str(error) or type(error).__name__
        return MachineFailed(f"{self.method} {self.path} at {self.host}:{self.port}: {reason}")


def _remaining(deadline: float) -> float:
    """Return the seconds until the deadline; raises `TimeoutError` if it has passed."""
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class _ReplyParser:
    """Parses one HTTP reply from pieces of bytes and keeps at most `limit` bytes of its body.

    Raises:
        ValueError: (`feed`) the reply is malformed, too large or incomplete.
    """

    def __init__(self, limit: int) -> None:
        self.done = False
        self._limit, self._status, self._head = limit, 0, bytearray()
        self._body = bytearray()
        self._left: int | None = None
        """Bytes of the body, or of the current chunk, that are missing; None: the body ends with the connection."""
        self._chunked = False

    def feed(self, data: bytes) -> None:
        """Parse received bytes; no bytes mean that the peer closed the connection."""
        if not data:
            if not self._status or self._chunked or self._left:
                raise ValueError("the connection ended before the reply was complete")
            self.done = True
            return
        if not self._status:
            self._head += data
            self._read_head()
        elif self._chunked:
            self._head += data
            self._read_chunks()
        else:
            self._take(data)

    def reply(self) -> GuestReply:
        """Return the reply, when `done`."""
        return GuestReply(self._status, bytes(self._body))

    def _read_head(self) -> None:
        end = self._head.find(b"\r\n\r\n")
        if end < 0 or end > _HEAD_BYTES:
            if len(self._head) > _HEAD_BYTES:
                raise ValueError(f"the headers of the reply have more than {_HEAD_BYTES} bytes")
            return
        first, *lines = self._head[:end].decode("latin-1").split("\r\n")
        rest, self._head = bytes(self._head[end + 4 :]), bytearray()
        self._status = _status(first)
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if fields.get("transfer-encoding", "identity").lower() != "identity":
            self._chunked, self._left = True, 0
        elif "content-length" in fields:
            self._left = _number(fields["content-length"], 10)
            self._check(self._left)
        self.done = self._left == 0 and not self._chunked
        if rest and not self.done:
            self.feed(rest)

    def _take(self, data: bytes) -> None:
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self.done = self._left == 0
        self._check(len(self._body) + len(data))
        self._body += data

    def _read_chunks(self) -> None:
        """Parse all complete chunks; trailers are not read."""
        while self._head:
            if self._left:
                piece = self._head[: self._left]
                self._check(len(self._body) + len(piece))
                self._body += piece
                self._left -= len(piece)
                del self._head[: len(piece)]
                continue
            start = 2 if self._head.startswith(b"\r\n") else 0  # ends the previous chunk
            end = self._head.find(b"\r\n", start)
            if end < 0:
                if len(self._head) > _CHUNK_LINE_BYTES:
                    raise ValueError("the reply has a malformed chunk")
                return
            self._left = _number(self._head[start:end].decode("latin-1").partition(";")[0].strip(), 16)
            self._check(len(self._body) + self._left)
            del self._head[: end + 2]
            if self._left == 0:
                self._chunked, self.done = False, True
                return

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise ValueError(f"the reply is larger than {self._limit} bytes; a higher limit can be set")


def _status(line: str) -> int:
    words = line.split()
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal() or len(words[1]) != 3:
        raise ValueError(f"the reply is not HTTP: {line[:100]!r}")
    return int(words[1])


def _number(text: str, base: int) -> int:
    """Parse a length; signs, spaces and underscores, which `int` accepts, are malformed."""
    if not text or len(text) > 16 or not set(text.lower()) <= set("0123456789abcdef"[:base]):
        raise ValueError(f"the reply has the malformed length {text[:100]!r}")
    return int(text, base)
