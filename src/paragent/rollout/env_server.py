"""HTTP server of `paragent env serve`: sessions of MCP or OpenEnv clients, each with an environment of its own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

from paragent.errors import UsageError
from paragent.mcp.protocol import ToolServer
from paragent.mcp.server import MOST_BYTES, McpSessions, access_control
from paragent.rollout.openenv_server import OpenEnvSessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from paragent.rollout.serving import EnvironmentSessions

__all__ = ["served_at"]


@contextlib.asynccontextmanager
async def served_at(
    sessions: EnvironmentSessions, protocol: str, host: str, port: int, token: str, *, most: int, idle: float
) -> AsyncIterator[str]:
    """Serve environments over HTTP; return the address for clients.

    Args:
        sessions: opens the environments.
        protocol: `mcp` or `openenv`.
        host: the address to listen on.
        port: the port; 0: a free one.
        token: clients must send it as `Authorization: Bearer`.
        most: the number of sessions at a time; more are refused.
        idle: seconds without a request after which a session is closed.

    Raises:
        UsageError: the address is in use or not one of this host.
    """

    @contextlib.asynccontextmanager
    async def open_server() -> AsyncIterator[ToolServer]:
        async with sessions.opened() as served:
            yield ToolServer(f"paragent {sessions.environment.name}", served, served.instructions)

    served = (
        McpSessions(open_server, most=most, idle=idle) if protocol == "mcp" else OpenEnvSessions(sessions, most, idle)
    )
    app = web.Application(middlewares=[access_control(host, token)], client_max_size=MOST_BYTES)
    app.add_routes(served.routes())
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    sweeping = asyncio.create_task(served.sweep())
    try:
        await web.TCPSite(runner, host, port).start()
        listening = runner.addresses[0][1]
        yield f"http://{f'[{host}]' if ':' in host else host}:{listening}" + ("/mcp" if protocol == "mcp" else "")
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --port or --host"
        ) from error
    finally:
        await runner.cleanup()
        sweeping.cancel()
        await asyncio.wait([sweeping])
