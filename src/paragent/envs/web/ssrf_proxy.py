"""SSRF proxy: resolves every host name itself and refuses addresses of private networks.

All connections of all pages go through it, including those of redirects, scripts and web sockets. It connects to the address
that it checked, so DNS rebinding (a name that changes its address between check and use) does not work.
"""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import socket
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urlsplit

from paragent._internal.networks import PrivateAddress, check_public

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SITE", "AddressRefused", "SsrfProxy"]

SITE = "site.test"
"""The host name of the folder that the proxy serves itself. `.test` is reserved and never resolves."""
_HEAD_LIMIT = 1 << 16
"""Bytes of a request's head; browsers send a few kilobytes."""
_CONNECT_LIMIT = 15.0
"""Seconds to resolve a name and connect."""
_IDLE_LIMIT = 120.0
"""Seconds without a byte in either direction after which a connection is closed."""


class AddressRefused(Exception):
    """An address may not be visited; the message says why."""


class SsrfProxy:
    """A forward proxy on a port of the loopback interface. An async context manager; belongs to one event loop.

    Args:
        allow_private: whether addresses of private networks may be visited.
        site: a folder to serve as `http://site.test/`.
    """

    def __init__(self, *, allow_private: bool, site: Path | None) -> None:
        self._allow_private, self._site = allow_private, site
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_HEAD_LIMIT)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Resolve a host and return its addresses.

        Raises:
            AddressRefused: it has none, or one of them is private and that is not allowed.
        """
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise AddressRefused(f"there is no host {host!r}") from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not self._allow_private:
            try:
                check_public(host, addresses)
            except PrivateAddress as error:
                raise AddressRefused(f"{error}; set the option `allow_private` to allow private addresses") from None
        return addresses

    async def check(self, url: str) -> None:
        """Check whether a page may be opened.

        Raises:
            AddressRefused: it may not.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AddressRefused("only http:// and https:// addresses can be opened")
        if parts.hostname != SITE or self._site is None:
            await self.addresses(parts.hostname, _port(parts.netloc, 443 if parts.scheme == "https" else 80))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server's callback runs in a task"
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            pass  # a side disconnected or did not speak HTTP; the page sees a broken connection
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_IDLE_LIMIT):
            head = await reader.readuntil(b"\r\n\r\n")
        request, _, fields = head.partition(b"\r\n")
        method, target, version = request.decode("latin-1").split(" ", 2)
        tunnel = method == "CONNECT"
        parts = urlsplit(f"//{target}" if tunnel else target)
        host = parts.hostname or ""
        if host == SITE and self._site is not None and not tunnel:
            writer.write(_file(self._site, parts.path))
            return await writer.drain()
        try:
            server_reader, server_writer = await self._connect(host, _port(parts.netloc, 443 if tunnel else 80))
        except (AddressRefused, OSError, TimeoutError) as error:
            writer.write(_response(403 if isinstance(error, AddressRefused) else 502, str(error).encode()))
            return await writer.drain()
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                path = target.partition(parts.netloc)[2] or "/"
                server_writer.write(f"{method} {path} {version}\r\n".encode("latin-1") + _one_request(fields))
            await _relay((reader, server_writer), (server_reader, writer))
        finally:
            server_writer.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(_CONNECT_LIMIT):
            failure: OSError = OSError(f"{host!r} has no address")
            for address in await self.addresses(host, port):
                try:
                    return await asyncio.open_connection(address, port)
                except OSError as error:
                    failure = error
            raise failure


def _port(netloc: str, default: int) -> int:
    return urlsplit(f"//{netloc}").port or default


def _one_request(fields: bytes) -> bytes:
    """Return the header fields with `Connection: close`: the next request may have another destination."""
    kept = [
        line
        for line in fields.split(b"\r\n")
        if line and line.partition(b":")[0].strip().lower() not in (b"connection", b"proxy-connection", b"keep-alive")
    ]
    upgrades = any(line.lower().startswith(b"upgrade:") for line in kept)
    return b"\r\n".join([*kept, b"Connection: " + (b"Upgrade" if upgrades else b"close"), b"", b""])


def _response(status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = f"HTTP/1.1 {status} paragent\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _file(folder: Path, path: str) -> bytes:
    wanted = (folder / unquote(path).lstrip("/")).resolve()
    if wanted.is_dir():
        wanted /= "index.html"
    if not wanted.is_relative_to(folder.resolve()) or not wanted.is_file():
        return _response(404, b"Not found")
    return _response(200, wanted.read_bytes(), mimetypes.guess_type(wanted.name)[0] or "application/octet-stream")


async def _relay(*directions: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    tasks = [asyncio.create_task(_pump(*direction)) for direction in directions]
    try:
        await tasks[-1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        async with asyncio.timeout(_IDLE_LIMIT):
            data = await reader.read(1 << 16)
            if data:
                writer.write(data)
                await writer.drain()
        if not data:
            with contextlib.suppress(OSError):
                writer.write_eof()
            return
