"""`Gateway`: HTTP server on loopback and on a Unix socket. Each rollout has a path and a key of its own."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from paragent._internal.networks import names_loopback
from paragent.errors import EnvironmentFailed
from paragent.gateway.calls import ENDED, MOST_TOOL_BYTES, GatewayHandler, RegisteredRollout
from paragent.gateway.connections import ConnectionServer
from paragent.gateway.errors import Refusal
from paragent.gateway.socket_folder import SocketFolder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Gateway", "GatewayAddress"]

_IDLE_TIMEOUT = 75.0
"""Seconds after which a connection without a request is closed. SDKs keep theirs for less."""
_CLOSE_TIMEOUT = 1.0
"""Seconds for connections to end when the gateway closes; their calls are cancelled before."""
_MOST_ENDED = 10_000
"""Rollouts that have ended and are remembered, so that their late calls get 410 instead of 401."""
_DIALECTS = {"v1/chat/completions": "chat", "v1/responses": "responses", "v1/messages": "anthropic"}
_http_log = logging.getLogger(f"{__name__}.http")
_http_log.setLevel(logging.CRITICAL + 1)  # aiohttp logs malformed requests, and a program could fill the worker's log


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """The address of the model for the agent of one rollout."""

    url: str
    """`http://127.0.0.1:PORT/ROLLOUT/`; the others are below it."""
    key: str

    @property
    def openai_url(self) -> str:
        """The value for `OPENAI_BASE_URL`."""
        return f"{self.url}v1"

    @property
    def anthropic_url(self) -> str:
        """The value for `ANTHROPIC_BASE_URL`, to which SDKs add `/v1/messages`."""
        return self.url.rstrip("/")

    @property
    def mcp_url(self) -> str:
        """The address of the MCP server with the tools of the environment."""
        return f"{self.url}mcp"

    @property
    def path(self) -> str:
        """The part of the address that identifies the rollout."""
        return self.url.rstrip("/").rpartition("/")[2]

    def __repr__(self) -> str:
        return f"GatewayAddress(url={self.url!r})"  # never the key


class Gateway:
    """The gateway of one worker, an async context manager. Belongs to one event loop.

    ::

        async with Gateway() as gateway:
            address = gateway.register(handler)
            ...  # an agent calls address.openai_url with address.key
            await gateway.end(address)
    """

    def __init__(self) -> None:
        self._rollouts: dict[str, RegisteredRollout] = {}
        self._ended: OrderedDict[str, bytes] = OrderedDict()
        """The keys of the rollouts that have ended, the oldest first."""
        self._server: ConnectionServer
        self._runner: web.ServerRunner | None = None
        self._folder = SocketFolder()
        self._port = 0

    async def __aenter__(self) -> Self:
        """Start to listen.

        Raises:
            EnvironmentFailed: the host has no free port, or the socket cannot be created.
        """
        server = self._server = ConnectionServer(
            self._handle,
            request_factory=_make_request,
            handler_cancellation=True,
            access_log=None,
            logger=_http_log,
            keepalive_timeout=_IDLE_TIMEOUT,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=_CLOSE_TIMEOUT)
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
            self._port = self._runner.addresses[0][1]
            await web.UnixSite(self._runner, self._folder.open(), backlog=1024).start()
            self._folder.protect()
        except OSError as error:
            await self.close()
            raise EnvironmentFailed(f"the model gateway cannot be started: {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def register(
        self,
        handler: GatewayHandler,
        mcp: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] | None = None,
    ) -> GatewayAddress:
        """Return a new address, whose calls `handler` answers in the caller's context.

        Args:
            handler: answers the calls to the model.
            mcp: answers the requests to `mcp`, whose key is checked before; None: the rollout has no MCP server.
        """
        path, key = secrets.token_urlsafe(12), f"sk-paragent-{secrets.token_urlsafe(32)}"
        self._rollouts[path] = RegisteredRollout(key, handler, mcp)
        return GatewayAddress(f"http://127.0.0.1:{self._port}/{path}/", key)

    async def end(self, address: GatewayAddress) -> None:
        """Cancel the calls of a rollout and wait for them; its later calls get 410. Idempotent."""
        rollout = self._rollouts.pop(address.path, None)
        if rollout is not None:
            self._ended[address.path] = rollout.key
            if len(self._ended) > _MOST_ENDED:
                self._ended.popitem(last=False)
            await rollout.end()

    def unix_path(self, address: GatewayAddress) -> str:  # noqa: ARG002 - all rollouts of a worker have the same socket
        """Return the path of a Unix socket with the same server, for programs without a network."""
        return self._folder.socket

    async def close(self) -> None:
        """Cancel all calls and stop listening. Idempotent."""
        while self._rollouts:
            _, rollout = self._rollouts.popitem()
            await rollout.end()
        if self._runner is not None:
            await self._runner.cleanup()
        self._folder.remove()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, route = request.raw_path.partition("?")[0].removeprefix("/").partition("/")
        dialect = _DIALECTS.get(route)
        try:
            rollout = self._authenticated(request, path)
            with self._server.serving(request.protocol, path):
                if dialect is not None:
                    if request.method != "POST":
                        raise Refusal(405, "wrong_method", "use POST")
                    return await rollout.answer(request, dialect)
                if route == "mcp" and rollout.mcp is not None:
                    return await rollout.mcp(request)
                return _models(rollout.handler.model_name, route)
        except Refusal as refusal:
            return refusal.response(dialect or ("anthropic" if route.startswith("v1/messages/") else "chat"))

    def _authenticated(self, request: web.BaseRequest, path: str) -> RegisteredRollout:
        """Return the rollout that sent a request.

        Raises:
            Refusal: the key is wrong, the rollout has ended, or the request is for another host.
        """
        headers = request.headers
        if not names_loopback(headers.get("Host", "")):
            raise Refusal(403, "wrong_host", "the gateway answers requests to 127.0.0.1 and localhost only")
        rollout = self._rollouts.get(path)
        expected = self._ended.get(path, b"") if rollout is None else rollout.key
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        given = (token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", ""))
        right = [hmac.compare_digest(one.encode(errors="surrogateescape"), expected) for one in given]
        if not expected or not any(right):
            raise Refusal(401, "wrong_key", "there is no such rollout, or the key is wrong")
        if rollout is None:
            raise Refusal(*ENDED)
        return rollout


def _make_request(message: Any, payload: Any, protocol: web.RequestHandler, writer: Any, task: Any) -> web.BaseRequest:
    """Return a request with the limit that MCP servers use to read it, instead of aiohttp's."""
    loop = task.get_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MOST_TOOL_BYTES)


def _models(name: str, route: str) -> web.Response:
    """Return the list of models, or the model whose name the route has.

    Raises:
        Refusal: the route is another one.
    """
    model = {"id": name, "object": "model", "created": 0, "owned_by": "paragent"}
    found = {"v1/models": {"object": "list", "data": [model]}, f"v1/models/{name}": model}.get(route)
    if found is None:
        raise Refusal(
            404, "unknown_path", "the gateway has v1/chat/completions, v1/responses, v1/messages and v1/models"
        )
    return web.Response(body=json.dumps(found).encode(), content_type="application/json")
