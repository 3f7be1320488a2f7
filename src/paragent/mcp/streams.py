"""MCP servers over standard streams: one JSON message in each line."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

from paragent.errors import ProtocolError
from paragent.mcp.protocol import PARSE_ERROR, rpc_error

if TYPE_CHECKING:
    from paragent.mcp.protocol import ToolServer

__all__ = ["serve_streams"]

_LONGEST = 16 * 2**20
"""Bytes of one message."""


async def serve_streams(server: ToolServer) -> None:
    """Answer the messages on standard input until it ends; calls that are not finished then are cancelled.

    Output of tools and of programs that they start does not get between the messages: descriptor 1 becomes standard error.

    Raises:
        ProtocolError: a message is too long.
    """
    reader = await _standard_input()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    with output:
        calls = _Calls(server, output)
        try:
            while line := await reader.readline():
                calls.receive(line)
        except ValueError as error:
            raise ProtocolError(f"the client sent a message with more than {_LONGEST:,} bytes") from error
        finally:
            await calls.cancel()


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_LONGEST)
    source = os.fdopen(os.dup(0), "rb")
    mode = os.fstat(0).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or source.isatty():
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    else:  # a file or /dev/null, which event loops cannot wait for
        with source:
            reader.feed_data(await asyncio.to_thread(source.read))
        reader.feed_eof()
    return reader


class _Calls:
    """The requests of the client that are being answered."""

    def __init__(self, server: ToolServer, output: Any) -> None:
        self._server, self._output = server, output
        self._running: dict[Any, asyncio.Task[None]] = {}

    def receive(self, line: bytes) -> None:
        """Begin to answer a message."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            self._send(rpc_error(None, PARSE_ERROR, str(error)))
            return
        number = message.get("id") if isinstance(message, dict) else None
        if isinstance(message, dict) and message.get("method") == "notifications/cancelled":
            params = message.get("params")
            call = self._running.get(str(params.get("requestId"))) if isinstance(params, dict) else None
            if call is not None:
                call.cancel()
            return
        call = asyncio.create_task(self._answer(message))
        self._running[str(number)] = call
        call.add_done_callback(lambda done: self._forget(str(number), done))

    async def cancel(self) -> None:
        """Cancel all calls and wait for them."""
        running = list(self._running.values())
        for call in running:
            call.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _forget(self, number: str, done: asyncio.Task[None]) -> None:
        if self._running.get(number) is done:
            del self._running[number]

    async def _answer(self, message: Any) -> None:
        self._send(await self._server.handle(message))

    def _send(self, response: dict[str, Any] | None) -> None:
        if response is not None:
            self._output.write(json.dumps(response).encode() + b"\n")
            self._output.flush()
