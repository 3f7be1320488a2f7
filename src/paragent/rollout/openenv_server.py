"""OpenEnv server: our environments for clients of OpenEnv, by its protocol of WebSocket messages.

A client resets, which opens an environment with a task, steps with tool calls, and ends with the action `answer`, whose reward
is our score. Actions: `{"type": "list_tools"}`, `{"type": "call_tool", "tool_name": ..., "arguments": {...}}` and
`{"type": "answer", "answer": ...}`. `MCPToolClient` of OpenEnv opens its session by a POST to `/mcp` and calls tools there,
without rewards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web

from paragent._internal.tracebacks import described
from paragent.errors import ParagentError, UsageError
from paragent.mcp.protocol import INVALID_REQUEST, PARSE_ERROR, ToolServer, rpc_error
from paragent.mcp.server import MOST_BYTES

if TYPE_CHECKING:
    from paragent.rollout.serving import EnvironmentSessions, ServedEnvironment

__all__ = ["OpenEnvSessions"]

_SWEEP = 10.0
"""Seconds between two searches for sessions that are idle."""
_PING = 30.0
"""Seconds between pings, by which a connection that is lost is noticed."""
_ACTION_SCHEMA = {
    "type": "object",
    "description": "lists the tools, calls one, or gives the final answer, which is scored and ends the episode",
    "properties": {
        "type": {"type": "string", "enum": ["list_tools", "call_tool", "answer"]},
        "tool_name": {"type": "string", "description": "for call_tool"},
        "arguments": {"type": "object", "description": "for call_tool"},
        "answer": {"type": "string", "description": "for answer"},
    },
    "required": ["type"],
}


class _Refused(Exception):
    """A message that cannot be answered; `code` is one of OpenEnv's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class OpenEnvSessions:
    """Handles the requests of OpenEnv clients: each connection, or session of `/mcp`, has an environment of its own."""

    def __init__(self, sessions: EnvironmentSessions, most: int, idle: float) -> None:
        self._sessions, self._most, self._idle = sessions, most, idle
        self._open: dict[str, _Session] = {}

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of an aiohttp application, which checks access before."""
        return [
            web.get("/ws", self._connection),
            web.post("/mcp", self._mcp),
            web.get("/health", _health),
            web.get("/metadata", self._metadata),
            web.get("/schema", _schema),
        ]

    async def sweep(self) -> None:
        """Close idle sessions, until this is cancelled; then close all."""
        try:
            while True:
                await asyncio.sleep(min(_SWEEP, self._idle))
                for name in [name for name, one in self._open.items() if one.idle_for() > self._idle]:
                    await self._open.pop(name).close()
        finally:
            while self._open:
                await self._open.popitem()[1].close()

    async def _connection(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(heartbeat=_PING, max_msg_size=MOST_BYTES)
        await socket.prepare(request)
        asked = request.query.get("session_id")
        name = asked or ""
        try:
            name = name or self._new()
            session = self._open.get(name)
            if session is None:
                raise _Refused("SESSION_ERROR", f"there is no session {asked!r}")
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    continue
                reply = await session.answer(message.data)
                if reply is None:
                    break
                await socket.send_json(reply)
        except _Refused as error:
            await socket.send_json(_error(error.code, str(error)))
        finally:
            if asked is None and name in self._open:
                await asyncio.shield(self._open.pop(name).close())
            await socket.close()
        return socket

    def _new(self) -> str:
        if len(self._open) >= self._most:
            raise _Refused("CAPACITY_REACHED", f"all {self._most} sessions of this server are in use; try again later")
        name = secrets.token_urlsafe(24)
        self._open[name] = _Session(self._sessions)
        return name

    async def _mcp(self, request: web.Request) -> web.Response:
        try:
            message = json.loads((await request.read()).decode())
        except (ValueError, RecursionError) as error:
            return web.json_response(rpc_error(None, PARSE_ERROR, str(error)))
        if not isinstance(message, dict):
            return web.json_response(rpc_error(None, INVALID_REQUEST, "the message is not a JSON-RPC request"))
        try:
            return web.json_response(await self._mcp_reply(message))
        except (_Refused, ParagentError) as error:
            return web.json_response(rpc_error(message.get("id"), INVALID_REQUEST, described(error)))

    async def _mcp_reply(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a request of OpenEnv's `MCPToolClient`, whose sessions are parameters."""
        method, given = message.get("method"), message.get("params")
        params = given if isinstance(given, dict) else {}
        if method == "openenv/session/create":
            return {"jsonrpc": "2.0", "id": message.get("id"), "result": {"session_id": self._new()}}
        session = self._open.get(str(params.get("session_id")))
        if session is None:
            raise _Refused("SESSION_ERROR", "there is no such session; create one with openenv/session/create")
        if method == "openenv/session/close":
            await self._open.pop(str(params["session_id"])).close()
            return {"jsonrpc": "2.0", "id": message.get("id"), "result": {"closed": True}}
        return await session.call_mcp(message)

    async def _metadata(self, _: web.Request) -> web.Response:
        kind = self._sessions.environment
        described_as = (kind.__doc__ or kind.name).strip().splitlines()[0]
        return web.json_response({"name": kind.name, "description": described_as})


class _Session:
    """The environment of one client; it handles one message at a time, as OpenEnv's servers do."""

    def __init__(self, sessions: EnvironmentSessions) -> None:
        self._sessions = sessions
        self._stack = AsyncExitStack()
        self._served: ServedEnvironment | None = None
        self._episode: str | None = None
        self._steps = 0
        self._done = False
        self._turn = asyncio.Lock()
        """Serialises messages."""
        self._last = time.monotonic()

    def idle_for(self) -> float:
        return 0.0 if self._turn.locked() else time.monotonic() - self._last

    async def answer(self, text: str) -> dict[str, Any] | None:
        """Return the reply to a message; None if the client closes the session."""
        try:
            message = json.loads(text)
            kind, data = message["type"], message.get("data") or {}
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return _error("INVALID_JSON", "the message must be a JSON object with a `type`")
        if kind == "close":
            return None
        handlers = {"reset": self._reset, "step": self._step, "state": self._state, "mcp": self._mcp}
        if kind not in handlers or not isinstance(data, dict):
            return _error("UNKNOWN_TYPE", f"there is no message type {kind!r}")
        try:
            async with self._turn:
                return await handlers[kind](data)
        except _Refused as error:
            return _error(error.code, str(error))
        except UsageError as error:
            return _error("VALIDATION_ERROR", described(error))
        except Exception as error:  # noqa: BLE001 - an error of the environment; the client must get a reply
            return _error("EXECUTION_ERROR", described(error))
        finally:
            self._last = time.monotonic()

    async def call_mcp(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a JSON-RPC message; the environment is opened with the next task if the client did not reset it."""
        async with self._turn:
            reply = (await self._mcp(message))["data"]
        self._last = time.monotonic()
        return reply if isinstance(reply, dict) else None

    async def close(self) -> None:
        with contextlib.suppress(ParagentError):  # the client is gone
            await self._stack.aclose()
        self._served = None

    async def _reset(self, data: dict[str, Any]) -> dict[str, Any]:
        index, task_id, seed = (data.get(name) for name in ("index", "task_id", "seed"))
        benchmark = self._sessions.benchmark
        if index is None and task_id is None and isinstance(seed, int) and benchmark is not None:
            index = seed % benchmark.size
        if not isinstance(index, int | None) or not isinstance(task_id, str | None):
            raise _Refused("VALIDATION_ERROR", "`index` must be an integer and `task_id` a text")
        task = self._sessions.task(task_id=task_id, index=index)
        await self.close()
        self._steps, self._done = 0, False
        self._episode = str(data["episode_id"]) if data.get("episode_id") else secrets.token_hex(8)
        self._served = served = await self._stack.enter_async_context(self._sessions.opened(task))
        shown = {"question": served.question, "instructions": served.instructions, "task_id": task.id}
        return _observation({**shown, "tools": _tools(served)})

    async def _opened(self) -> ServedEnvironment:
        if self._served is None:
            await self._reset({})
        assert self._served is not None
        return self._served

    async def _step(self, action: dict[str, Any]) -> dict[str, Any]:
        kind = action.get("type") or ("answer" if "answer" in action else "call_tool")
        served = await self._opened()
        if kind == "list_tools":
            return _observation({"tools": _tools(served)})
        if self._done:
            raise _Refused("VALIDATION_ERROR", "the episode is done: reset it first")
        self._steps += 1
        if kind == "answer":
            return await self._end(served, str(action.get("answer", "")), {})
        if kind != "call_tool" or not isinstance(action.get("tool_name"), str):
            raise _Refused(
                "VALIDATION_ERROR", "an action has the type list_tools, call_tool with `tool_name`, or answer"
            )
        name = action["tool_name"]
        result = await served.call(name, action.get("arguments") or {})
        error = {"error_type": "execution_error", "message": result.text} if result.error else None
        shown = {"tool_name": name, "result": None if error else {"data": result.text}, "error": error}
        return await self._end(served, "", shown) if served.ended else _observation(shown)

    async def _end(self, served: ServedEnvironment, answer: str, shown: dict[str, Any]) -> dict[str, Any]:
        self._done = True
        scored = await served.score(answer)
        return _observation({**shown, "scores": scored.scores}, reward=scored.value, done=True)

    async def _state(self, _: dict[str, Any]) -> dict[str, Any]:
        task = self._served.task.id if self._served else None
        state = {"episode_id": self._episode, "step_count": self._steps, "task_id": task}
        return {"type": "state", "data": state}

    async def _mcp(self, message: dict[str, Any]) -> dict[str, Any]:
        served = await self._opened()
        if message.get("method") == "tools/call":
            self._steps += 1
        return {"type": "mcp", "data": await ToolServer(self._sessions.environment.name, served).handle(message)}


def _tools(served: ServedEnvironment) -> list[dict[str, Any]]:
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in served.tools()
    ]


def _observation(shown: dict[str, Any], reward: float | None = None, *, done: bool = False) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": shown, "reward": reward, "done": done}}


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "healthy"})


async def _schema(_: web.Request) -> web.Response:
    return web.json_response({"action": _ACTION_SCHEMA, "observation": {"type": "object"}, "state": {"type": "object"}})
