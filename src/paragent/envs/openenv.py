"""Environment `openenv`: an environment that a server of OpenEnv (or `paragent env serve --protocol openenv`) offers.

One WebSocket connection is one session of the server. The tools are the server's MCP tools, if its actions are calls of them;
otherwise there is one tool, `step`, whose arguments are the server's actions.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout, WSMsgType

from paragent._internal.text import read_json
from paragent.envs.base import Environment
from paragent.envs.tools import SchemaArguments, Tool, ToolFailed, ToolResult, call_tool
from paragent.errors import ConfigError, EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiohttp import ClientWebSocketResponse

    from paragent.tasks import BenchmarkTask

__all__ = ["OpenEnvEnvironment"]

_CONNECT_LIMIT = 30.0
"""Seconds to connect and to read the descriptions of the server."""
_RESET_LIMIT = 300.0
"""Seconds for a reset, in which a server may start an application."""
_MOST_BYTES = 100 * 2**20
"""The limit of one message, as in OpenEnv's own client."""
_OF_THE_CALL = ("EXECUTION_ERROR", "VALIDATION_ERROR")
"""Codes of errors that concern one action; others concern the session."""
_STEP = "step"


@dataclass(frozen=True, slots=True)
class OpenEnvOptions:
    """The options of the environment `openenv`."""

    url: Annotated[str, "address of the server, such as http://127.0.0.1:8000"] = ""
    token: Annotated[str | None, "sent as `Authorization: Bearer`"] = None
    reset: Annotated[str, "JSON object: parameters of every reset, besides those of the task"] = "{}"


class OpenEnvEnvironment(Environment):
    """An environment of a server of OpenEnv.

    Task metadata: `reset`, an object with the parameters of the reset. Own scores: `reward`, the last reward that the server
    gave, and `total_reward`, the sum of all.
    """

    name = "openenv"
    metric = "reward"
    own_scores = ("total_reward",)
    options_type = OpenEnvOptions
    one_at_a_time = True
    call_limit = 300.0
    server_url: ClassVar[str] = ""
    """The address in `openenv:URL`."""
    options: OpenEnvOptions

    def __init__(self, options: Mapping[str, Any] | None = None, **given: Any) -> None:
        super().__init__(options, **given)
        self._url = (self.options.url or self.server_url).rstrip("/")
        self._session: _Connection | None = None
        self._served: dict[str, Tool] = {}
        self._takes_answers = False
        self._rewards: list[float] = []
        self._done = False

    @classmethod
    @functools.cache
    def at(cls, url: str) -> type[OpenEnvEnvironment]:
        """Return the class for `--env openenv:URL`."""
        return type(cls.__name__, (cls,), {"server_url": url, "__doc__": cls.__doc__})

    async def check(self) -> None:
        if urlsplit(self._url).scheme not in {"http", "https"}:
            raise ConfigError(
                f"the environment 'openenv' needs the address of a server, not {self._url!r}: --env openenv:URL"
            )
        self._reset_parameters(None)
        try:
            async with asyncio.timeout(_CONNECT_LIMIT), self._http() as http:
                await _described(http, self._url, "schema")
        except (EnvironmentFailed, TimeoutError) as error:
            reason = str(error).removeprefix(f"{self._url} cannot be reached: ") or "it does not answer"
            raise ConfigError(
                f"there is no OpenEnv server at {self._url}: {reason}. Start the server, or correct the address"
            ) from error

    def tools(self) -> list[Tool]:
        return list(self._served.values())

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        question = await super().open(task, machine)
        try:
            async with asyncio.timeout(_CONNECT_LIMIT):
                self._session = session = await _Connection.open(self._http(), self._url)
                schema = (await _described(session.http, self._url, "schema")).get("action") or {}
        except TimeoutError as error:
            raise EnvironmentFailed(f"{self._url} did not answer within {_CONNECT_LIMIT:g} s") from error
        first = await self._exchange("reset", self._reset_parameters(task), _RESET_LIMIT)
        await self._find_tools(schema)
        shown = _text_of(first)
        return "\n\n".join(part for part in (question, shown) if part)

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        tool = self._served.get(name)
        if tool is None:
            return ToolResult(f"there is no tool {name!r}; there are: {', '.join(self._served) or 'none'}", error=True)
        return await call_tool(tool, arguments, self.call_limit)

    async def score(
        self, task: BenchmarkTask, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        if self._takes_answers and not self._done and self._session is not None:
            await self._exchange("step", {"type": "answer", "answer": answer}, self.call_limit)
        return {"reward": self._rewards[-1], "total_reward": sum(self._rewards)} if self._rewards else None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        await super().close()

    def _http(self) -> ClientSession:
        headers = {"Authorization": f"Bearer {self.options.token}"} if self.options.token else {}
        return ClientSession(headers=headers, timeout=ClientTimeout(total=None))

    def _reset_parameters(self, task: BenchmarkTask | None) -> dict[str, Any]:
        try:
            given = read_json(self.options.reset)
        except ValueError as error:
            raise ConfigError(f"the environment 'openenv': the option 'reset' is not valid JSON: {error}") from None
        of_task = {} if task is None else task.metadata.get("reset") or {}
        if not isinstance(given, dict) or not isinstance(of_task, dict):
            raise ConfigError("the environment 'openenv': `reset` must be a JSON object, in the option and in tasks")
        return {**given, **of_task}

    async def _find_tools(self, schema: dict[str, Any]) -> None:
        """Set the tools: the server's, if its actions call tools, else one that takes its actions."""
        properties = schema.get("properties") or {}
        self._takes_answers = "answer" in properties and "tool_name" in properties
        if "tool_name" in properties or not set(properties) - {"metadata"}:
            listed = await self._exchange("step", {"type": "list_tools"}, _RESET_LIMIT)
            self._served = {tool["name"]: self._tool(tool) for tool in listed.get("tools") or ()}
            return
        arguments = {name: one for name, one in properties.items() if name != "metadata"}
        about = schema.get("description") or "Act in the environment and get the next observation."
        own = SchemaArguments({**schema, "properties": arguments})
        self._served = {_STEP: Tool(_STEP, about, own, lambda **action: self._step(action))}

    def _tool(self, described: dict[str, Any]) -> Tool:
        name = described["name"]
        arguments = SchemaArguments(described.get("input_schema") or described.get("inputSchema") or {})
        action = {"type": "call_tool", "tool_name": name}
        return Tool(
            name,
            described.get("description") or "",
            arguments,
            lambda **given: self._step({**action, "arguments": given}),
        )

    async def _step(self, action: dict[str, Any]) -> ToolResult:
        if self._done:
            raise ToolFailed("the episode is done; answer now")
        observation = await self._exchange("step", action, self.call_limit)
        error = observation.get("error")
        if isinstance(error, dict) and error.get("message"):
            return ToolResult(str(error["message"]), error=True, ends="done" if self._done else "")
        extras = {"reward": self._rewards[-1]} if self._rewards else {}
        return ToolResult(_text_of(observation), extras=extras, ends="done" if self._done else "")

    async def _exchange(self, kind: str, data: dict[str, Any], limit: float) -> dict[str, Any]:
        """Send a message and return the observation of the reply; rewards and the end are noted.

        Raises:
            ToolFailed: the server rejects the action, or it fails.
            EnvironmentFailed: the connection is lost, or the server ends the session.
        """
        if self._session is None:
            raise EnvironmentFailed("the connection to the OpenEnv server is closed")
        try:
            async with asyncio.timeout(limit):
                reply = await self._session.exchange({"type": kind, "data": data})
        except TimeoutError as error:
            raise EnvironmentFailed(f"{self._url} did not answer within {limit:g} s") from error
        answered = reply.get("data") or {}
        if reply.get("type") == "error":
            message = f"{answered.get('message')} {answered.get('errors') or ''}".strip()
            if kind == "step" and answered.get("code") in _OF_THE_CALL:
                raise ToolFailed(message)
            raise EnvironmentFailed(f"{self._url} answers {kind} with {answered.get('code')}: {message}")
        if kind == "step" and (reward := answered.get("reward")) is not None:
            self._rewards.append(float(reward))
        self._done = self._done or bool(answered.get("done"))
        observation = answered.get("observation")
        return observation if isinstance(observation, dict) else {"observation": observation}


class _Connection:
    """A WebSocket connection to a server. Replies come in the order of the messages."""

    def __init__(self, http: ClientSession, socket: ClientWebSocketResponse) -> None:
        self.http, self._socket = http, socket
        self._unread = 0
        """Replies to messages whose sender was cancelled; they come first."""
        self._turn = asyncio.Lock()
        """Serialises messages."""

    @classmethod
    async def open(cls, http: ClientSession, url: str) -> _Connection:
        """Connect; closes `http` if that fails.

        Raises:
            EnvironmentFailed: the server cannot be reached.
        """
        try:
            socket = await http.ws_connect(f"{url}/ws", max_msg_size=_MOST_BYTES, heartbeat=30.0)
        except BaseException as error:
            await http.close()
            if isinstance(error, ClientError | OSError):
                raise EnvironmentFailed(f"{url} cannot be reached: {error}") from error
            raise
        return cls(http, socket)

    async def exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return its reply.

        Raises:
            EnvironmentFailed: the connection is lost, or the reply is malformed.
        """
        async with self._turn:
            try:
                await self._socket.send_json(message)
                self._unread += 1
                while True:
                    received = await self._socket.receive()
                    if received.type is not WSMsgType.TEXT:
                        raise EnvironmentFailed("the OpenEnv server closed the connection")
                    self._unread -= 1
                    if not self._unread:
                        reply = json.loads(received.data)
                        break
            except (ClientError, OSError, ValueError) as error:
                raise EnvironmentFailed(f"the connection to the OpenEnv server failed: {error}") from error
        if not isinstance(reply, dict):
            raise EnvironmentFailed("the OpenEnv server sent a malformed reply")
        return reply

    async def close(self) -> None:
        """Say that the session ends, and close the connection."""
        with contextlib.suppress(ClientError, OSError, TimeoutError):
            async with asyncio.timeout(5.0):
                await self._socket.send_json({"type": "close"})
                await self._socket.close()
        await self.http.close()


async def _described(http: ClientSession, url: str, what: str) -> dict[str, Any]:
    """Return a description that a server offers at a path of its own.

    Raises:
        EnvironmentFailed: it offers none.
    """
    try:
        async with http.get(f"{url}/{what}", allow_redirects=False) as response:
            body = await response.json() if response.status == 200 else None
    except (ClientError, OSError, ValueError) as error:
        raise EnvironmentFailed(f"{url} cannot be reached: {error}") from error
    if not isinstance(body, dict):
        raise EnvironmentFailed(f"{url}/{what} answers with status {response.status}")
    return body


def _text_of(observation: dict[str, Any]) -> str:
    """Return what the agent is shown of an observation: the text of a tool's result, or all fields as JSON."""
    shown = {name: value for name, value in observation.items() if name not in {"metadata", "done", "reward"} and value}
    result = shown.get("result") if "tool_name" in shown else None
    if isinstance(result, dict) and result.get("data") is not None:
        result = result["data"]
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        blocks = [block for block in result["content"] if isinstance(block, dict)]
        texts = [str(block["text"]) for block in blocks if block.get("text")]
        result = "\n".join(texts) or result
    if result is None:
        if "tool_name" in shown:
            return ""
        values = list(shown.values())
        result = values[0] if len(values) == 1 else shown or ""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
