"""`paragent env serve`: offer an environment to agents of other programs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.file_errors import unreadable
from paragent.cli.options import add_command, add_setting
from paragent.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from paragent.cli.options import Subparsers
    from paragent.rollout import RolloutConfig
    from paragent.rollout.serving import EnvironmentSessions

__all__ = ["add"]

_SETTINGS = (
    *("mode", "env", "env_option", "kb", "sandbox", "action_space", "observation_type", "pause", "metric"),
    *("judge_model", "data", "task_id", "limit", "skip_unsupported"),
    *("pool_address", "tls_ca", "tls_cert", "tls_key", "tls_server_name"),
)
"""The settings of `paragent rollout` that concern an environment without an agent."""


def add(subparsers: Subparsers) -> None:
    """Add the subcommands."""
    from paragent.rollout.config import all_settings

    parser = add_command(subparsers, "env", "serve an environment to agents of other programs")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve = add_command(
        commands,
        "serve",
        "offer the tools of an environment as an MCP server or an OpenEnv server",
        "Offer the tools of an environment as an MCP server or an OpenEnv server. Each session of a client has an environment "
        "of its own, which is opened with a task of --data, if given, and closed with the session.",
    )
    server = serve.add_argument_group("server")
    server.add_argument("--protocol", choices=("mcp", "openenv"), default="mcp", help="protocol (default: mcp)")
    server.add_argument(
        "--transport", choices=("stdio", "http"), help="mcp: stdio, one session (the default), or http; openenv: http"
    )
    server.add_argument("--host", default="127.0.0.1", help="http: address to listen at (default: 127.0.0.1)")
    server.add_argument("--port", type=int, default=0, help="http: port to listen at (default: any free port)")
    server.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="http: file with the token that clients must send as `Authorization: Bearer` (default: a random one, printed)",
    )
    server.add_argument(
        "--max-sessions", type=int, metavar="N", default=64, help="http: sessions at a time (default: 64)"
    )
    server.add_argument(
        "--idle-timeout",
        type=float,
        metavar="SECONDS",
        default=1800.0,
        help="http: close a session after this time without a request (default: 1800)",
    )
    group = serve.add_argument_group("environment, tasks and machines")
    for setting in all_settings():
        if setting.name in _SETTINGS:
            add_setting(group, setting)
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    from paragent.rollout.serving import EnvironmentSessions

    transport = options.transport or ("http" if options.protocol == "openenv" else "stdio")
    if options.protocol == "openenv" and transport == "stdio":
        raise ConfigError("--protocol openenv needs --transport http")
    if not 0 <= options.port < 1 << 16:
        raise ConfigError(f"--port must be from 0 to 65535, not {options.port}")
    sessions = EnvironmentSessions(_config(options))
    token = _token(options.token_file) if transport == "http" else ""
    serving = _serve_http(options, sessions, token) if transport == "http" else _serve_stdio(sessions)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_until_signalled(serving))
    return 0


def _config(options: argparse.Namespace) -> RolloutConfig:
    from paragent.rollout import RolloutConfig

    given = {name: getattr(options, name) for name in _SETTINGS if getattr(options, name) is not None}
    return RolloutConfig(model="demo", **given)  # no agent runs here, so no model is asked


def _token(path: Path | None) -> str:
    if path is None:
        return secrets.token_urlsafe(32)
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--token-file: {unreadable(path, error)}") from error
    if not token:
        raise ConfigError(f"--token-file: {path} is empty")
    return token


async def _until_signalled(serving: contextlib.AbstractAsyncContextManager[asyncio.Event]) -> None:
    """Serve until the client of standard streams ends, Ctrl-C or SIGTERM."""
    loop = asyncio.get_running_loop()
    async with serving as ended:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        await ended.wait()


@contextlib.asynccontextmanager
async def _serve_stdio(sessions: EnvironmentSessions) -> AsyncIterator[asyncio.Event]:
    from paragent.mcp.protocol import ToolServer
    from paragent.mcp.streams import serve_streams

    ended = asyncio.Event()
    async with sessions, sessions.opened() as served:
        server = ToolServer(f"paragent {sessions.environment.name}", served, served.instructions)
        answering = asyncio.create_task(serve_streams(server))
        answering.add_done_callback(lambda _: ended.set())
        if sys.stdin.isatty():
            print("MCP clients start this command; for clients that connect, use --transport http", file=sys.stderr)
        try:
            yield ended
            if answering.done():
                answering.result()
        finally:
            answering.cancel()


@contextlib.asynccontextmanager
async def _serve_http(
    options: argparse.Namespace, sessions: EnvironmentSessions, token: str
) -> AsyncIterator[asyncio.Event]:
    try:
        from paragent.rollout.env_server import served_at
    except ModuleNotFoundError as error:
        raise MissingExtra("paragent env serve --transport http", "rollout", str(error.name)) from error
    async with (
        sessions,
        served_at(
            sessions,
            options.protocol,
            options.host,
            options.port,
            token,
            most=options.max_sessions,
            idle=options.idle_timeout,
        ) as address,
    ):
        print(f"{sessions.environment.name} is served at {address}", flush=True)
        if options.token_file is None:
            print(f"clients must send the header `Authorization: Bearer {token}`", flush=True)
        sys.stdout.flush()
        yield asyncio.Event()
