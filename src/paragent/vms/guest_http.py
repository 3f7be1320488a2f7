"""HTTP to the agent inside a machine: one request, one connection, a time limit; sync for holders, async for the pool."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import secrets
import urllib.parse
from typing import Any, NamedTuple

from paragent.errors import LeaseLost, MachineFailed

__all__ = ["TOKEN_HEADER", "Reply", "as_form", "as_json", "as_upload", "ask", "ask_async", "checked"]

TOKEN_HEADER = "X-Paragent-Token"  # noqa: S105 - the name of a header
_STALE = 409
"""What a guest answers to a token that is not its holder's."""


class Reply(NamedTuple):
    """What a guest answered."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the body, which is JSON.

        Raises:
            MachineFailed: it is not.
        """
        try:
            return json.loads(self.body)
        except ValueError:
            raise MachineFailed(f"the guest answered {self.body[:200]!r}, which is no JSON") from None


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


def _headers(body: Body | None, token: str | None) -> dict[str, str]:
    headers = {"Connection": "close"}
    if body is not None:
        headers |= {"Content-Type": body.kind, "Content-Length": str(len(body.data))}
    if token is not None:
        headers[TOKEN_HEADER] = token
    return headers


def ask(
    host: str, port: int, method: str, path: str, body: Body | None = None, *, token: str | None = None, timeout: float
) -> Reply:
    """Send a request and return the answer.

    Raises:
        MachineFailed: nobody answers within `timeout` seconds, or the connection breaks.
    """
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request(method, path, None if body is None else body.data, _headers(body, token))
        response = connection.getresponse()
        return Reply(response.status, response.read())
    except (OSError, http.client.HTTPException) as error:
        raise MachineFailed(f"{method} {path} at {host}:{port}: {_reason(error)}") from error
    finally:
        connection.close()


async def ask_async(
    host: str, port: int, method: str, path: str, body: Body | None = None, *, token: str | None = None, timeout: float
) -> Reply:
    """As `ask`, without holding a thread."""
    try:
        async with asyncio.timeout(timeout):
            return await _exchange(host, port, method, path, body, token)
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        raise MachineFailed(f"{method} {path} at {host}:{port}: {_reason(error)}") from error


async def _exchange(host: str, port: int, method: str, path: str, body: Body | None, token: str | None) -> Reply:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}"]
        lines += [f"{name}: {value}" for name, value in _headers(body, token).items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if body is None else body.data))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        status = int(head[0].split()[1])
        if "content-length" in fields:
            return Reply(status, await reader.readexactly(int(fields["content-length"])))
        return Reply(status, await reader.read())
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
