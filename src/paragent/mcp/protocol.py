"""The server side of MCP for tools: answers JSON-RPC messages, whatever transports them.

It implements the versions of the protocol that begin with `initialize`. Clients of later versions, which have no sessions, ask
with `server/discover` first and use `initialize` when there is no such method. Only tools are offered, so this is short, and
agents can use the tools of their environment even if the extra `mcp` is not installed.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from paragent._internal.tracebacks import described
from paragent.messages import image_type

if TYPE_CHECKING:
    from paragent.envs import Tool, ToolResult, ToolSource

__all__ = ["INVALID_REQUEST", "PARSE_ERROR", "ToolServer", "rpc_error"]

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
"""Codes of JSON-RPC errors."""
_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The versions of the protocol, the latest first. They do not differ in the messages that are used here."""
ENDS = "paragent/ends"
"""The key in `_meta` of a result with how the call ended the attempt."""


class ToolServer:
    """Answers the messages of one client that uses the tools of one source.

    Args:
        name: the name of the server.
        source: the tools.
        instructions: what the client should know about them.
    """

    def __init__(self, name: str, source: ToolSource, instructions: str = "") -> None:
        self._name, self._source, self._instructions = name, source, instructions

    async def handle(self, message: Any) -> dict[str, Any] | None:
        """Return the response to a message; None if it is a notification, which has none."""
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            if isinstance(message, dict) and ("result" in message or "error" in message):
                return None  # a response, although this server sends no requests
            return rpc_error(None, INVALID_REQUEST, "the message is not a JSON-RPC request")
        if "id" not in message:
            return None
        number, params = message["id"], message.get("params")
        if not isinstance(number, str | int) or not isinstance(params, dict | None):
            return rpc_error(None, INVALID_REQUEST, "`id` must be a text or an integer, and `params` an object")
        try:
            result = await self._result(message["method"], params or {})
        except _Invalid as error:
            return rpc_error(number, error.code, str(error))
        except Exception as error:  # noqa: BLE001 - an error of the environment; the client must get a response
            return rpc_error(number, INTERNAL_ERROR, described(error))
        return {"jsonrpc": "2.0", "id": number, "result": result}

    async def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            return self._initialize(params)
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [_described(tool) for tool in self._source.tools()]}
        if method == "tools/call":
            return await self._call(params)
        raise _Invalid(METHOD_NOT_FOUND, f"this server has no method {method!r}; it offers tools only")

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        asked = params.get("protocolVersion")
        result: dict[str, Any] = {
            "protocolVersion": asked if asked in _VERSIONS else _VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": self._name, "version": "1"},
        }
        return {**result, "instructions": self._instructions} if self._instructions else result

    async def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            raise _Invalid(INVALID_PARAMS, "`name` must be a text, and `arguments` an object")
        return _written(await self._source.call(name, arguments or {}))


class _Invalid(Exception):
    """A request that cannot be answered, with the code of the error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def rpc_error(number: str | int | None, code: int, message: str) -> dict[str, Any]:
    """Return a JSON-RPC error response."""
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def _described(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.parameters}


def _written(result: ToolResult) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": result.text}] if result.text or not result.images else []
    for image in result.images:
        encoded = base64.b64encode(image).decode()
        content.append({"type": "image", "data": encoded, "mimeType": f"image/{image_type(image)}"})
    written: dict[str, Any] = {"content": content, "isError": result.error}
    return {**written, "_meta": {ENDS: result.ends}} if result.ends else written
