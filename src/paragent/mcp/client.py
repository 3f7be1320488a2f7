"""One session with one MCP server, by the official client. Needs the extra `mcp`.

The client's context managers must be left by the task that entered them, and an error of one of its background tasks cancels
that task. So each session has a task of its own: a rollout that is cancelled does not interrupt the end of a server.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import mcp
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    AudioContent,
    EmbeddedResource,
    ImageContent,
    Implementation,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import ValidationError

from paragent._internal.text import well_formed
from paragent.envs import SchemaArguments, Tool, ToolFailed, ToolResult
from paragent.errors import EnvironmentFailed
from paragent.subprocesses import supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp.client import Transport
    from mcp.types import CallToolResult

    from paragent._internal.redaction import Redactor
    from paragent.mcp.config import McpServer

__all__ = ["McpSession"]

_CLOSE_LIMIT = 10.0
"""Seconds for a server to end. The client closes its input, and sends SIGTERM after 2 s and SIGKILL after 4 s."""
_TAIL = 2000
"""Bytes of a program's error output that are kept for error messages."""
_MOST_PAGES = 100
"""Pages of a list of tools; a server that sends more is broken."""
_HTTP_TIMEOUT = httpx2.Timeout(30.0, read=None)
"""Connecting is limited here. How long a reply may take is limited for each call."""
_MOST_CHARACTERS = 200_000
"""Characters of a result that the agent is shown: about 50,000 tokens, which is more than most models read usefully."""
_MOST_IMAGE_BYTES = 32 << 20
"""Bytes of all images of a result: ten screenshots of 3 MB each."""
_LOST = ("Session terminated", "Server returned an error response")
"""Messages of the client for answers of an HTTP server that do not come from its tools."""


class McpSession:
    """A session with one server, from `open` to `close`."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._redactor = server.redactor()
        self._errors = _ErrorOutput()
        self._closing = asyncio.Event()
        self._opened: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None

    async def open(self) -> list[Tool]:
        """Start the server's program or connect to the server; return its tools, with the server's names.

        Raises:
            EnvironmentFailed: it does not start, does not answer or ends at once.
        """
        self._owner = asyncio.create_task(self._own(), name=f"mcp-{self.server.name}")
        waiting: set[asyncio.Future[Any]] = {self._owner, self._opened}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not self._opened.done():
            raise self._failure("cannot be used")
        client = self._opened.result()
        try:
            return [self._tool(client, one) for one in await _all_tools(client)]
        except (mcp.MCPError, ValidationError) as error:
            raise self._failure(f"does not list its tools: {error}") from error

    async def close(self) -> None:
        """End the session and, if it was started for it, the program. Cannot be interrupted; takes 10 s at most."""
        self._closing.set()
        if (owner := self._owner) is not None:
            if not self._opened.done():
                owner.cancel()
            await asyncio.wait([owner], timeout=_CLOSE_LIMIT)
            owner.cancel()
        self._opened.cancel()
        self._errors.close()

    async def _own(self) -> None:
        """Hold the client's context open until `close`; the exception of this task is the reason of a failure."""
        async with contextlib.AsyncExitStack() as stack:
            transport = await stack.enter_async_context(self._transport())
            client = mcp.Client(transport, client_info=Implementation(name="paragent", version=""), cache=None)
            await stack.enter_async_context(client)
            self._opened.set_result(client)
            await self._closing.wait()

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Transport]:
        server = self.server
        if server.transport == "stdio":
            parameters = mcp.StdioServerParameters(
                command=sys.executable,
                args=["-I", "-S", supervisor.__file__, str(os.getpid()), *server.command],
                env=server.env,
                cwd=server.cwd if Path(server.cwd).is_dir() else None,
            )
            yield stdio_client(parameters, errlog=self._errors.open())
            return
        if server.transport == "sse":
            yield sse_client(server.url, server.headers)
            return
        async with httpx2.AsyncClient(headers=server.headers, timeout=_HTTP_TIMEOUT) as http:
            yield streamable_http_client(server.url, http_client=http)

    def _tool(self, client: mcp.Client, described: mcp.Tool) -> Tool:
        async def call(**arguments: Any) -> ToolResult:
            return await self._call(client, described.name, arguments)

        return Tool(described.name, described.description or "", SchemaArguments(described.input_schema), call)

    async def _call(self, client: mcp.Client, name: str, arguments: dict[str, Any]) -> ToolResult:
        try:
            result = await client.call_tool(name, arguments)
        except mcp.MCPError as error:
            if error.code == CONNECTION_CLOSED or error.message in _LOST or self._has_ended():
                raise self._failure(f"was lost during the call of {name}") from error
            raise ToolFailed(_shortened(f"{name}: {self._redactor.text(error.message)}")) from None
        except (ValidationError, RuntimeError) as error:  # the client's errors for results that violate the protocol
            if self._has_ended():
                raise self._failure(f"was lost during the call of {name}") from error
            problem = self._redactor.text(str(error))
            raise ToolFailed(f"{name}: the server sent a malformed result: {problem}") from None
        return _as_tool_result(result, self._redactor)

    def _has_ended(self) -> bool:
        return self._owner is None or self._owner.done()

    def _failure(self, problem: str) -> EnvironmentFailed:
        owner, reason = self._owner, ""
        if owner is not None and owner.done() and not owner.cancelled() and (error := owner.exception()) is not None:
            reason = f": {_innermost(error)}"
        tail = self._errors.tail()
        output = f"; the end of its error output:\n{tail}" if tail else ""
        described = self._redactor.text(f"{problem}{reason}{output}")
        return EnvironmentFailed(f"the MCP server {self.server.name!r} {described}")


async def _all_tools(client: mcp.Client) -> list[mcp.Tool]:
    """Return the tools of a server; none if it does not offer tools."""
    found: list[mcp.Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        try:
            page = await client.list_tools(cursor=cursor)
        except mcp.MCPError as error:
            if error.code == METHOD_NOT_FOUND and not found:
                return []
            raise
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


def _as_tool_result(result: CallToolResult, redactor: Redactor) -> ToolResult:
    """Return what the agent is shown: texts and images, up to a limit. Other content is named in the text."""
    texts: list[str] = []
    images: list[bytes] = []
    left = _MOST_IMAGE_BYTES
    for block in result.content:
        match block:
            case TextContent():
                texts.append(block.text)
            case ImageContent():
                size = len(block.data) * 3 // 4
                left -= size
                if left < 0:
                    texts.append(
                        f"[an image of {size:,} bytes, which is left out: the images of a result are too large]"
                    )
                    continue
                try:
                    images.append(base64.b64decode(block.data, validate=True))
                except ValueError:
                    texts.append("[an image that cannot be decoded]")
            case EmbeddedResource(resource=TextResourceContents() as resource):
                texts.append(resource.text)
            case EmbeddedResource():
                texts.append(f"[a binary resource: {block.resource.uri}]")
            case ResourceLink():
                texts.append(f"[a link to the resource {block.name}: {block.uri}]")
            case AudioContent():
                texts.append(f"[audio of the type {block.mime_type}, which is not shown]")
    structured = redactor.data(result.structured_content)
    written = "" if structured is None else json.dumps(structured, ensure_ascii=False)
    if not any(texts):
        texts = [written]
    extras = {"structured": structured} if written and len(written) <= _MOST_CHARACTERS else {}
    text = _shortened(well_formed(redactor.data("\n".join(texts))))
    return ToolResult(text, error=result.is_error, extras=extras, images=tuple(images))


def _shortened(text: str) -> str:
    """Return the beginning of a text that is too long for an agent, and how much is missing."""
    missing = len(text) - _MOST_CHARACTERS
    return f"{text[:_MOST_CHARACTERS]}\n[{missing:,} characters are left out]" if missing > 0 else text


def _innermost(error: BaseException) -> str:
    """Return the first error in nested groups of errors, as text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class _ErrorOutput:
    """The end of the error output of a program, read from a pipe."""

    def __init__(self) -> None:
        self._tail = b""
        self._reader: int | None = None
        self._writer: Any = None

    def open(self) -> Any:
        """Return a file for the error output of the program."""
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._writer = os.fdopen(writer, "w")
        asyncio.get_running_loop().add_reader(self._reader, self._read)
        return self._writer

    def _read(self) -> None:
        assert self._reader is not None
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self._reader, 1 << 16)
            self._tail = (self._tail + chunk)[-_TAIL:]

    def tail(self) -> str:
        """Return the end of the output so far."""
        if self._reader is not None:
            self._read()
        return self._tail.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Close the pipe."""
        if self._reader is not None:
            asyncio.get_running_loop().remove_reader(self._reader)
            self._writer.close()
            os.close(self._reader)
            self._reader = None
