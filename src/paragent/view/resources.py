"""Routes of the API for what runs use: pools and their machines, agent servers, engines."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from paragent.errors import MachineFailed, ParagentError
from paragent.view.encoding import to_json
from paragent.view.engine import engine_detail
from paragent.view.pools import PoolViews
from paragent.view.routes import answer_in_thread
from paragent.view.runs import UnknownRun
from paragent.view.servers import ServerViews

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request

    from paragent.transport import TlsConf
    from paragent.view.runs import RunFolder

__all__ = ["ResourceApi"]

_PNG = b"\x89PNG\r\n\x1a\n"
_THREADS = 4
"""Requests for agent servers at the same time. They have threads of their own: a server that does not answer takes seconds."""


class ResourceApi:
    """The routes of pools, agent servers and engines.

    Args:
        folder: the runs.
        pools: `host:port` of pools besides those of live runs.
        servers: `host:port` of agent servers.
        tls: for pools and servers that use TLS.

    Raises:
        ConfigError: an address is malformed.
    """

    def __init__(
        self,
        folder: RunFolder,
        pools: Sequence[str] = (),
        servers: Sequence[str] = (),
        tls: TlsConf | None = None,
    ) -> None:
        self._folder = folder
        self._pools = PoolViews(folder, pools, tls)
        self._servers = ServerViews(servers, tls)

    def routes(self) -> list[Route]:
        """Return the routes, with paths relative to `/api`."""
        machine = "/pools/{pool}/machines/{machine}"
        on_loop: dict[str, Callable[[Request], Awaitable[Any]]] = {
            "/pools": lambda _: self._pools.pools(),
            "/pools/{pool}": lambda request: self._pools.pool(request.path_params["pool"]),
            f"{machine}/log": self._log,
            f"{machine}/screenshot": self._screenshot,
            "/servers": lambda _: _in_thread(self._servers.servers),
            "/servers/{server}": lambda request: _in_thread(self._servers.server, request.path_params["server"]),
        }
        return [
            *(Route(path, _answer(handler), methods=["GET"]) for path, handler in on_loop.items()),
            Route(f"{machine}/retire", _answer(self._retire), methods=["POST"]),
            Route("/runs/{run}/engine", answer_in_thread(self._engine), methods=["GET"]),
        ]

    def _engine(self, request: Request) -> Any:
        return engine_detail(self._folder.get(request.path_params["run"]))

    async def _log(self, request: Request) -> Response:
        text = await self._pools.log(*_machine_of(request))
        return PlainTextResponse(text.encode(errors="replace"))

    async def _screenshot(self, request: Request) -> Response:
        image = await self._pools.screenshot(*_machine_of(request))
        if not image.startswith(_PNG):
            raise MachineFailed("the pool sent a screenshot that is not a PNG image")
        return Response(image, media_type="image/png")

    async def _retire(self, request: Request) -> Any:
        return await self._pools.retire(*_machine_of(request))


def _machine_of(request: Request) -> tuple[str, str]:
    return request.path_params["pool"], request.path_params["machine"]


def _answer(handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    @functools.wraps(handler)
    async def endpoint(request: Request) -> Response:
        try:
            found = await handler(request)
        except ParagentError as problem:
            return JSONResponse({"error": str(problem)}, 404 if isinstance(problem, UnknownRun) else 503)
        return found if isinstance(found, Response) else Response(to_json(found), media_type="application/json")

    return endpoint


async def _in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(work, *arguments, limiter=_limiter())


@functools.cache
def _limiter() -> anyio.CapacityLimiter:
    return anyio.CapacityLimiter(_THREADS)
