"""HTTP to the agent inside a machine: one request, one connection; sync for holders, async for the pool.

Guests are not trusted. `timeout` covers the whole exchange, however slowly a guest sends, and no reply may be larger than
`limit` bytes, however a guest announces its length.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import urllib.parse
from typing import Any, NamedTuple

from paragent._internal.clock import monotonic
from paragent.errors import LeaseLost, MachineFailed

__all__ = [
    "ANSWER_BYTES",
    "FILE_BYTES",
    "JSON_BYTES",
    "TOKEN_HEADER",
    "Reply",
    "as_form",
    "as_json",
    "as_upload",
    "ask",
    "ask_async",
    "checked",
]

TOKEN_HEADER = "X-Paragent-Token"  # noqa: S105 - the name of a header
ANSWER_BYTES = 64 << 20
"""Default limit of a reply: the output of a command, an accessibility tree, a picture."""
FILE_BYTES = 1 << 30
"""Default limit of a file that is read from a guest: as much as a guest accepts as an upload."""
JSON_BYTES = 8 << 20
"""Limit of a reply that is read as JSON: objects take up to 25 times as much memory. An accessibility tree has up to 3 MB."""
_HEAD_BYTES = 64 << 10
_CHUNK_LINE_BYTES = 4 << 10
_READ_BYTES = 256 << 10
_STALE = 409
"""What a guest answers to a token that is not its holder's."""


class Reply(NamedTuple):
    """What a guest answered."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the body, which is JSON.

        Raises:
            MachineFailed: it is not, or it is larger than `JSON_BYTES`.
        """
        if len(self.body) > JSON_BYTES:
            raise MachineFailed(
                f"the guest answered {len(self.body)} bytes of JSON, and at most {JSON_BYTES} are read: have a command that "
                "prints more write to a file, and get that"
            )
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise MachineFailed(f"the guest answered {self.body[:200]!r}, which is no JSON") from None

    def fields(self) -> dict[str, Any]:
        """Return the body, which is a JSON object.

        Raises:
            MachineFailed: it is not.
        """
        answer = self.json()
        if not isinstance(answer, dict):
            raise MachineFailed(f"the guest answered {self.body[:200]!r}, which is no JSON object")
        return answer


class Body(NamedTuple):
    """What a request sends."""

    kind: str
    data: bytes


def as_json(fields: dict[str, Any]) -> Body:
    """Return a JSON body."""
    return Body("application/json", json.dumps(fields).encode())


def as_form(fields: dict[str, str]) -> Body:
    """Return a form."""
    return Body("application/x-www-form-urlencoded", urllib.parse.urlencode(fields).encode())


def as_upload(path: str, data: bytes) -> Body:
    """Return a multipart form with a file."""
    boundary = secrets.token_hex(16)
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file_path"\r\n\r\n{path}\r\n--{boundary}\r\n'
    head += 'Content-Disposition: form-data; name="file_data"; filename="file"\r\n\r\n'
    return Body(f"multipart/form-data; boundary={boundary}", head.encode() + data + f"\r\n--{boundary}--\r\n".encode())


def checked(reply: Reply, what: str) -> Reply:
    """Return the reply if it is a success.

    Raises:
        LeaseLost: the machine has another holder now.
        MachineFailed: the guest refused.
    """
    if reply.status == _STALE:
        raise LeaseLost(f"{what}: the machine has another holder now; this lease has ended")
    if reply.status != 200:
        raise MachineFailed(f"{what}: the guest answered {reply.status}: {reply.body[:500].decode(errors='replace')}")
    return reply


def _request(host: str, port: int, method: str, path: str, body: Body | None, token: str | None) -> bytes:
    if any(character <= " " or character == "\x7f" for character in method + path + (token or "")):
        raise ValueError("a request line cannot have spaces or control characters")
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
    if body is not None:
        lines += [f"Content-Type: {body.kind}", f"Content-Length: {len(body.data)}"]
    if token is not None:
        lines.append(f"{TOKEN_HEADER}: {token}")
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if body is None else body.data)


def ask(
    host: str,
    port: int,
    method: str,
    path: str,
    body: Body | None = None,
    *,
    token: str | None = None,
    timeout: float,
    limit: int = ANSWER_BYTES,
) -> Reply:
    """Send a request and return the answer.

    Raises:
        MachineFailed: the whole answer is not there within `timeout` seconds, it is larger than `limit` bytes or no HTTP, or
            the connection breaks.
    """
    deadline, parser = monotonic() + timeout, _Parser(limit)
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.settimeout(_left(deadline))
            connection.sendall(_request(host, port, method, path, body, token))
            while not parser.done:
                connection.settimeout(_left(deadline))
                parser.feed(connection.recv(_READ_BYTES))
        return parser.reply()
    except (OSError, ValueError) as error:
        raise MachineFailed(f"{method} {path} at {host}:{port}: {_reason(error)}") from error


def _left(deadline: float) -> float:
    """Return the seconds until then; raises `TimeoutError` if there are none."""
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


async def ask_async(
    host: str,
    port: int,
    method: str,
    path: str,
    body: Body | None = None,
    *,
    token: str | None = None,
    timeout: float,
    limit: int = ANSWER_BYTES,
) -> Reply:
    """As `ask`, without holding a thread."""
    try:
        async with asyncio.timeout(timeout):
            return await _exchange(host, port, _request(host, port, method, path, body, token), _Parser(limit))
    except (OSError, ValueError) as error:
        raise MachineFailed(f"{method} {path} at {host}:{port}: {_reason(error)}") from error


async def _exchange(host: str, port: int, request: bytes, parser: _Parser) -> Reply:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        await writer.drain()
        while not parser.done:
            parser.feed(await reader.read(_READ_BYTES))
        return parser.reply()
    finally:
        writer.transport.abort()  # a guest that does not read must not delay the end of the exchange
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class _Parser:
    """Reads one HTTP response from pieces of bytes and keeps at most `limit` bytes of its body.

    Raises:
        ValueError: (`feed`, `reply`) the response is malformed, too large or cut off.
    """

    def __init__(self, limit: int) -> None:
        self.done = False
        self._limit, self._status, self._head = limit, 0, bytearray()
        self._body = bytearray()
        self._left: int | None = None
        """Bytes of the body, or of the present chunk, that are still to come; None: all until the connection ends."""
        self._chunked = False

    def feed(self, data: bytes) -> None:
        """Take what was received; nothing means that the connection has ended."""
        if not data:
            if not self._status or self._chunked or self._left:
                raise ValueError("the connection ended within the answer")
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

    def reply(self) -> Reply:
        """Return the whole response."""
        return Reply(self._status, bytes(self._body))

    def _read_head(self) -> None:
        end = self._head.find(b"\r\n\r\n")
        if end < 0 or end > _HEAD_BYTES:
            if len(self._head) > _HEAD_BYTES:
                raise ValueError(f"the head of the answer has more than {_HEAD_BYTES} bytes")
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
        """Read as many chunks as are there; trailers are not waited for."""
        while self._head:
            if self._left:
                piece = self._head[: self._left]
                self._check(len(self._body) + len(piece))
                self._body += piece
                self._left -= len(piece)
                del self._head[: len(piece)]
                continue
            start = 2 if self._head.startswith(b"\r\n") else 0  # the end of the chunk before
            end = self._head.find(b"\r\n", start)
            if end < 0:
                if len(self._head) > _CHUNK_LINE_BYTES:
                    raise ValueError("the answer has a malformed chunk")
                return
            self._left = _number(self._head[start:end].decode("latin-1").partition(";")[0].strip(), 16)
            self._check(len(self._body) + self._left)
            del self._head[: end + 2]
            if self._left == 0:
                self._chunked, self.done = False, True
                return

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise ValueError(f"the answer is larger than {self._limit} bytes; the limit can be raised")


def _status(line: str) -> int:
    words = line.split()
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal() or len(words[1]) != 3:
        raise ValueError(f"the answer is no HTTP: {line[:100]!r}")
    return int(words[1])


def _number(text: str, base: int) -> int:
    """Read a length; signs, spaces and underscores, which `int` would take, are malformed."""
    if not text or len(text) > 16 or not set(text.lower()) <= set("0123456789abcdef"[:base]):
        raise ValueError(f"the answer has the malformed length {text[:100]!r}")
    return int(text, base)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
