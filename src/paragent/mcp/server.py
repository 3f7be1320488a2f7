"""MCP servers over HTTP (streamable HTTP, with plain JSON as responses): many clients with sessions, or one without."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hmac
import ipaddress
import json
import secrets
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any

from aiohttp import web

from paragent._internal.tracebacks import described
from paragent.errors import ParagentError
from paragent.mcp.protocol import INVALID_REQUEST, PARSE_ERROR, ToolServer, rpc_error

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MOST_BYTES", "McpEndpoint", "McpSessions", "access_control"]

MOST_BYTES = 16 * 2**20
"""The limit of one message."""
_MOST_VALUES = 200_000
"""The limit of values in one message, which take up to 200 bytes each when they are parsed."""
_SESSION = "Mcp-Session-Id"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SWEEP = 10.0
"""Seconds between two searches for sessions that are idle."""
_JSON = "application/json"


class McpEndpoint:
    """Handles the HTTP requests to a server with one client, which needs no sessions. Access is checked before.

    Calls run in the context in which this object is created, so that what they use belongs to its rollout.
    """

    def __init__(self, server: ToolServer) -> None:
        self._session = _Session(contextvars.copy_context())
        self._session.server = server
        self._ended = False

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        if request.method != "POST":
            return _refused(405, "this server sends no streams and has no sessions: use POST")
        message, refusal = await _read(request)
        if self._ended:
            return _refused(410, "the rollout has ended")
        return refusal or _response(await self._session.handle(message))

    async def close(self) -> None:
        """Cancel the calls; later ones are refused."""
        self._ended = True
        await self._session.close()


class McpSessions:
    """Handles the HTTP requests of many clients: each session has an environment of its own.

    Args:
        open_server: opens the environment of a session; leaving the context closes it.
        most: the number of sessions at a time.
        idle: seconds without a request after which a session is closed.
    """

    def __init__(
        self, open_server: Callable[[], AbstractAsyncContextManager[ToolServer]], *, most: int, idle: float
    ) -> None:
        self._open, self._most, self._idle = open_server, most, idle
        self._sessions: dict[str, _Session] = {}
        self._opening = 0

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of an aiohttp application, which checks access before."""
        return [web.route("*", "/mcp", self._answer)]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        known = request.headers.get(_SESSION)
        session = None if known is None else self._sessions.get(known)
        if known is not None and session is None:
            return _refused(404, "this session has ended or never existed")
        if request.method == "DELETE" and session is not None and known is not None:
            del self._sessions[known]
            await session.close()
            return web.Response(status=204)
        if request.method != "POST":
            return _refused(405, "this server sends no streams: use POST")
        message, refusal = await _read(request)
        if refusal is not None:
            return refusal
        if session is not None:
            return _response(await session.handle(message))
        return await self._start(message)

    async def _start(self, message: Any) -> web.Response:
        """Open a session for a client that initializes one."""
        if not isinstance(message, dict) or message.get("method") != "initialize":
            asked = message.get("id") if isinstance(message, dict) else None
            return _response(
                rpc_error(asked, INVALID_REQUEST, "begin with `initialize`; later requests name the session")
            )
        if len(self._sessions) + self._opening >= self._most:
            return _refused(503, f"all {self._most} sessions of this server are in use; try again later")
        session = _Session(contextvars.copy_context())
        self._opening += 1
        try:
            await session.open(self._open())
        except ParagentError as error:
            return _response(rpc_error(message.get("id"), INVALID_REQUEST, described(error)))
        finally:
            self._opening -= 1
        name = secrets.token_urlsafe(24)
        self._sessions[name] = session
        response = _response(await session.handle(message))
        response.headers[_SESSION] = name
        return response

    async def sweep(self) -> None:
        """Close idle sessions, until this is cancelled; then close all."""
        try:
            while True:
                await asyncio.sleep(min(_SWEEP, self._idle))
                late = [name for name, one in self._sessions.items() if one.idle_for() > self._idle]
                for name in late:
                    await self._sessions.pop(name).close()
        finally:
            while self._sessions:
                await self._sessions.popitem()[1].close()


class _Session:
    """The environment of one client, and the calls that it is executing."""

    def __init__(self, context: contextvars.Context) -> None:
        self._context = context
        self._stack = AsyncExitStack()
        self.server: ToolServer | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._last = time.monotonic()

    async def open(self, context: AbstractAsyncContextManager[ToolServer]) -> None:
        self.server = await self._stack.enter_async_context(context)

    def idle_for(self) -> float:
        return 0.0 if self._calls else time.monotonic() - self._last

    async def handle(self, message: Any) -> dict[str, Any] | None:
        """Answer a message. If the client disconnects or the session ends, the call is cancelled."""
        assert self.server is not None
        call = asyncio.create_task(self.server.handle(message), context=self._context.copy())
        self._calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return rpc_error(message.get("id"), INVALID_REQUEST, "the session has ended")
        finally:
            call.cancel()
            self._calls.discard(call)
            self._last = time.monotonic()

    async def close(self) -> None:
        """Cancel the calls and close the environment."""
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        with contextlib.suppress(ParagentError):  # the client is gone; nobody could do anything about it
            await self._stack.aclose()


def access_control(host: str, token: str) -> Any:
    """Return aiohttp middleware that lets requests pass only with the token, and not from web pages of other sites.

    Args:
        host: the address that the server listens on.
        token: clients send it as `Authorization: Bearer`.
    """

    @web.middleware
    async def check(request: web.Request, handler: Any) -> web.StreamResponse:
        named = _name_of(request.headers.get("Host", ""))
        if not (named in _LOOPBACK or named == host or (host not in _LOOPBACK and _is_address(named))):
            return _refused(403, f"this server is not called {named!r}")
        origin = request.headers.get("Origin")
        if origin is not None and _name_of(origin.rpartition("//")[2]) != named:
            return _refused(403, "requests from pages of other sites are refused")
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(errors="surrogateescape"), token.encode())
        if scheme.lower() != "bearer" or not right:
            return _refused(401, "the header `Authorization: Bearer TOKEN` is missing or has the wrong token")
        response: web.StreamResponse = await handler(request)
        return response

    return check


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port and the brackets of IPv6."""
    return (host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]).lower()


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


async def _read(request: web.BaseRequest) -> tuple[Any, web.Response | None]:
    """Return the message of a request, or the response that refuses it."""
    if request.content_type != _JSON:
        return None, _refused(415, f"the content type must be {_JSON}")
    try:
        content = await request.read()
        if sum(map(content.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            return None, _refused(413, f"a message has at most {_MOST_VALUES:,} values")
        return json.loads(content.decode()), None
    except (ValueError, RecursionError) as error:
        return None, _response(rpc_error(None, PARSE_ERROR, str(error)), 400)


def _response(body: dict[str, Any] | None, status: int = 200) -> web.Response:
    if body is None:
        return web.Response(status=202)
    return web.Response(status=status, body=json.dumps(body).encode(), content_type=_JSON)


def _refused(status: int, problem: str) -> web.Response:
    return _response(rpc_error(None, INVALID_REQUEST, problem), status)
