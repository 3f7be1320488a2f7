"""A scripted HTTP server of a model, for tests: chat completions, Responses and Anthropic Messages.

In a test: `with OpenAIServer(Script(default="42")) as server: ... server.url`. As a separate process:
`python -m paragent.testing.openai_server --port 8400 --script script.json`, which prints its address and serves until it is
stopped. It supports streaming, latency, refusals with and without `Retry-After`, truncated answers, and the token ids
and log probabilities of a toy tokenizer if a chat completion request asks for them (`return_token_ids`, `logprobs`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import sys
import threading
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.processes import die_with_parent
from paragent.errors import ConfigError
from paragent.testing.scripted_connection import ScriptedConnection, Statistics
from paragent.testing.toy_tokens import word_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = ["Fault", "OpenAIServer", "Script", "Statistics", "main"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of the endpoint, and the requests that it affects.

    It affects every `every`-th of the requests number `first` to `last` (counted from 1; `last` 0: no end).
    """

    status: int = 500
    """The HTTP status, such as 429 or 500; 0: the connection is closed in the middle of the answer."""
    first: int = 1
    """The first request that fails, counted from 1."""
    last: int = 0
    """The last one; 0: no end."""
    every: int = 1
    """Only every n-th request of these fails."""
    retry_after: float | str | None = None
    """Value of the header `Retry-After`: seconds, or a text that is sent unchanged."""
    code: str = ""
    """The `code` in the error's body, for example `context_length_exceeded`."""
    message: str = "as the script says"
    """The `message` in the error's body."""
    contains: str = ""
    """Only requests with this text fail."""
    hangs: bool = False
    """Whether the request gets no answer at all; the connection stays open."""

    def hits(self, number: int, request: str = "") -> bool:
        """Return whether the fault affects the request with this number and this body."""
        within = number >= self.first and (not self.last or number <= self.last)
        return within and (number - self.first) % self.every == 0 and self.contains in request


@dataclass(slots=True)
class Script:
    """The replies of a scripted model.

    A reply is a text (the final answer), `{"tool": name, "arguments": {...}}`, or `{"tools": [...], "content": text}` with
    several such tool calls. If `arguments` is a string, it is sent unchanged; use this for malformed tool calls. The number
    of turns that the model has taken in the conversation chooses the reply; the last reply is repeated.

    To imitate other servers: `{"message": ...}` is sent as the message of the completion, `{"usage": ...}` beside any of
    these as its token counts, and `{"body": ...}` as the whole reply. `anthropic_content` or `responses_output` in a message is
    the turn in that protocol, for example with signatures.
    """

    answers: Mapping[str, Any] = field(default_factory=dict)
    """Replies by text of the task: the first key that occurs in the first user message has the reply, or list of replies."""
    default: Any = "42"
    """The reply, or list of replies, for all other conversations."""
    latency: float = 0.0
    """Seconds before an answer begins."""
    faults: Sequence[Fault] = ()
    """Requests that fail, and how."""
    most_at_once: int = 0
    """Concurrent requests above which the endpoint returns status 429; 0: no limit."""
    context_limit: int = 0
    """Characters of conversation above which the endpoint returns `context_length_exceeded`; 0: no limit."""
    rejects_tools: bool = False
    """Whether requests with `tools` get status 400."""
    rejects: Mapping[str, str] = field(default_factory=dict)
    """Fields of requests that get status 400, and the message."""
    rejects_reasoning: bool = False
    """Whether turns of the assistant with `reasoning_content` get status 400, as from older reasoning models."""
    demands_reasoning: bool = False
    """Whether turns of the assistant without `reasoning_content` get status 400, as from DeepSeek V4 and Kimi."""
    request_ids: bool = False
    """Whether responses have the header `x-request-id`, with the id of the completion after `req-`."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def from_json(cls, text: str) -> Script:
        """Parse a script from a JSON object with the fields of this class.

        Raises:
            ConfigError: the text is not a JSON object with these fields.
        """
        try:
            settings = json.loads(text)
            settings["faults"] = [Fault(**fault) for fault in settings.get("faults", ())]
            return cls(**settings)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"this is not a valid script: {error}") from error

    def fault(self, request: Mapping[str, Any]) -> Fault | None:
        """Count a request and return the fault that affects it, if any."""
        number = next(self._numbers)
        text = json.dumps(request, ensure_ascii=False) if any(fault.contains for fault in self.faults) else ""
        return next((fault for fault in self.faults if fault.hits(number, text)), None)

    def refusal(self, request: Mapping[str, Any]) -> Fault | None:
        """Return the error for a request that the endpoint rejects because of its content, if any."""
        limit = self.context_limit
        if limit and sum(len(str(message.get("content"))) for message in request["messages"]) > limit:
            return Fault(400, code="context_length_exceeded")
        if self.rejects_tools and request.get("tools"):
            return Fault(400, message="tools are not supported by this model")
        for name, message in self.rejects.items():
            if name in request:
                return Fault(400, message=message)
        return self._reasoning_refusal(request["messages"])

    def _reasoning_refusal(self, messages: Sequence[Mapping[str, Any]]) -> Fault | None:
        turns = [bool(message.get("reasoning_content")) for message in messages if message.get("role") == "assistant"]
        if self.rejects_reasoning and any(turns):
            return Fault(400, message="messages must not contain `reasoning_content`")
        if self.demands_reasoning and not all(turns):
            return Fault(400, message="The `reasoning_content` in the thinking mode must be passed back to the API.")
        return None

    def reply(self, request: Mapping[str, Any]) -> Any:
        """Return the response body: a completion, or the script's own `body`."""
        conversation = request.get("messages", [])
        turn = sum(1 for message in conversation if message.get("role") == "assistant")
        replies = self._replies(_text(next((m for m in conversation if m.get("role") == "user"), {})))
        chosen = replies[min(turn, len(replies) - 1)]
        if isinstance(chosen, str):
            chosen = {"content": chosen}
        if "body" in chosen:
            return chosen["body"]
        if "message" in chosen:
            message = chosen["message"]
        else:
            message = {"role": "assistant", "content": chosen.get("content")}
            if calls := chosen.get("tools") or ([chosen] if "tool" in chosen else []):
                named = enumerate(calls)
                message["tool_calls"] = [_tool_call(call, f"call_{turn}_{index}") for index, call in named]
        return _completion(request, message, chosen)

    def _replies(self, question: str) -> list[Any]:
        chosen = next((replies for key, replies in self.answers.items() if key in question), self.default)
        return chosen if isinstance(chosen, list) else [chosen]


def _tool_call(call: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": call["tool"], "arguments": text}}


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content)


_completion_numbers = itertools.count(1)


def _completion(request: Mapping[str, Any], message: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    prompt = sum(word_count(str(m.get("content") or "")) for m in request["messages"])
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    said = word_count(str(message.get("content") or "")) if isinstance(message, dict) else 0
    if "message" not in chosen:
        said += sum(word_count(call["function"]["arguments"]) + 5 for call in calls or ())
    counts = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}
    return {
        "id": f"chatcmpl-{next(_completion_numbers)}",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model", "scripted"),
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": chosen.get("usage", counts),
    }


_START_TIMEOUT = 10.0


class OpenAIServer:
    """The server as a context manager, in a thread of this process."""

    def __init__(self, script: Script | None = None, *, port: int = 0, keep_requests: bool = False) -> None:
        self.script = script if script is not None else Script()
        """What the server answers."""
        self.seen = Statistics()
        """What it has received."""
        self.port = port
        """The port on which it listens."""
        self._keep = keep_requests
        self._connections: weakref.WeakSet[ScriptedConnection] = weakref.WeakSet()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="openai-server", daemon=True)

    @property
    def url(self) -> str:
        """The value for `OPENAI_BASE_URL`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def anthropic_url(self) -> str:
        """The value for `ANTHROPIC_BASE_URL`."""
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await self.listen(self._loop)
        self._ready.set()
        async with server:
            await self._stop.wait()
        for connection in self._connections:
            connection.close()
        await asyncio.sleep(0)  # closed transports release their sockets in the next cycle of the loop

    async def listen(self, loop: asyncio.AbstractEventLoop) -> asyncio.Server:
        """Start to listen on this event loop and set `port`."""
        server = await loop.create_server(self._connection, "127.0.0.1", self.port, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def _connection(self) -> ScriptedConnection:
        connection = ScriptedConnection(self.script, self.seen, self._keep)
        self._connections.add(connection)
        return connection

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_START_TIMEOUT):
            raise TimeoutError(f"the server did not start within {_START_TIMEOUT} s")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_TIMEOUT)


async def _serve_until_stopped(server: OpenAIServer) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with await server.listen(loop):
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await stopped.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C; the first line printed is the address."""
    parser = argparse.ArgumentParser(prog="python -m paragent.testing.openai_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="the port; 0 (default): any free port")
    replies = (
        'a JSON file with the fields of Script, such as {"default": "Answer: 42"}; docs/guide/models.md has an example'
    )
    parser.add_argument("--script", type=Path, help=replies)
    parser.add_argument("--latency", type=float, help="seconds before each answer; overrides the script")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the process that started this ends")
    options = parser.parse_args(arguments)
    if options.die_with_parent:
        die_with_parent()
    try:
        script = Script.from_json(options.script.read_text()) if options.script else Script()
        if options.latency is not None:
            script.latency = options.latency
        asyncio.run(_serve_until_stopped(OpenAIServer(script, port=options.port)))
    except (ConfigError, OSError, OverflowError) as error:  # missing or invalid script, invalid or used port
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
