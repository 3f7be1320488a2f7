"""The tools of all MCP servers of a run, for one rollout: one session with each server, names that model endpoints accept."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paragent.envs import Tool, ToolResult, call_tool
from paragent.errors import ConfigError, EnvironmentFailed, MissingExtra

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from paragent.mcp.config import McpServer, McpSettings

__all__ = ["McpTools", "check_servers", "unique_name"]

OPEN_LIMIT = 60.0
"""Seconds for all servers to start and to list their tools. A program that `npx` or `uvx` installs first takes longest."""
_LONGEST_NAME = 64
"""Characters of the name of a tool, by the rules of OpenAI and Anthropic."""


class McpTools:
    """The tools of MCP servers; a `ToolSource`.

    ::

        async with McpTools.opened(settings, taken=names) as source:
            result = await source.call("files__read", {"path": "notes.txt"})
    """

    def __init__(self, tools: Iterable[Tool], call_limit: float) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._call_limit = call_limit

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, settings: McpSettings, taken: Iterable[str] = ()) -> AsyncIterator[McpTools]:
        """Open a session with each server, and close them at the end of the block.

        Args:
            settings: the servers.
            taken: names that other tools of the agent have.

        Raises:
            EnvironmentFailed: a server cannot be used.
            MissingExtra: the package `mcp` is not installed.
        """
        session_class = _session_class()
        sessions = [session_class(server) for server in settings.servers]
        try:
            async with asyncio.timeout(OPEN_LIMIT) as limit:
                listed = await asyncio.gather(*(session.open() for session in sessions))
        except TimeoutError as error:
            await _close(sessions)
            if not limit.expired():
                raise
            raise EnvironmentFailed(f"MCP servers did not list their tools within {OPEN_LIMIT:g} s") from error
        except BaseException:
            await _close(sessions)
            raise
        try:
            names = set(taken)
            tools: list[Tool] = []
            for server, found in zip(settings.servers, listed, strict=True):
                tools += _named(server, found, names)
            yield cls(tools, settings.call_limit)
        finally:
            await _close(sessions)

    def tools(self) -> list[Tool]:
        """Return the tools, named `server__tool`. The list is read once, when the sessions are opened."""
        return list(self._tools.values())

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Call a tool; see `Environment.call`.

        Raises:
            EnvironmentFailed: the server was lost.
        """
        tool = self._tools.get(name)
        if tool is None:
            return ToolResult(f"there is no tool {name!r}; there are: {', '.join(self._tools) or 'none'}", error=True)
        return await call_tool(tool, arguments, self._call_limit)


async def check_servers(settings: McpSettings) -> None:
    """Open and close one session with each server, before a run.

    Raises:
        ConfigError: a server cannot be used.
        MissingExtra: the package `mcp` is not installed.
    """
    try:
        async with McpTools.opened(settings):
            pass
    except EnvironmentFailed as error:
        raise ConfigError(f"--mcp-config: {error}. Check the command or url of this server in the file") from error


def unique_name(server: str, tool: str, taken: Iterable[str]) -> str:
    """Return the name of a server's tool for models: `server__tool`, with characters and a length that endpoints accept.

    A name that had to be changed, or that another tool has, ends with a digest, so that it is unique and always the same.
    """
    plain = f"{server}__{tool}"
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", plain)
    if name == plain and len(name) <= _LONGEST_NAME and name not in taken:
        return name
    digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - len(digest) - 1]}_{digest}"


def _named(server: McpServer, tools: Iterable[Tool], taken: set[str]) -> list[Tool]:
    """Return the tools with their names for models, and add these to `taken`."""
    renamed = []
    for tool in tools:
        name = unique_name(server.name, tool.name, taken)
        taken.add(name)
        renamed.append(replace(tool, name=name))
    return renamed


def _session_class() -> Any:
    try:
        from paragent.mcp.client import McpSession
    except ModuleNotFoundError as error:
        raise MissingExtra("--mcp-config", "mcp", str(error.name)) from error
    return McpSession


async def _close(sessions: Iterable[Any]) -> None:
    """Close all sessions, even if this task is cancelled meanwhile."""
    closing = asyncio.gather(*(session.close() for session in sessions), return_exceptions=True)
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        await asyncio.wait([closing])
        raise
