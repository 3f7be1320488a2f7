"""A scripted HTTP server with OpenAI's chat completions protocol, for tests.

In a test: `with OpenAIServer(Script(default="42")) as server: ... server.url`. As a separate process:
`python -m paragent.testing.openai_server --port 8400 --script script.json`, which prints its address and serves until it is
stopped. It supports streaming, latency, refusals with and without `Retry-After`, and truncated answers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.processes import die_with_parent
from paragent.errors import ConfigError

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
    last: int = 0
    every: int = 1
    retry_after: float | str | None = None
    """Value of the header `Retry-After`: seconds, or a text that is sent unchanged."""
    code: str = ""
    """The `code` in the error's body, for example `context_length_exceeded`."""
    message: str = "as the script says"
    """The `message` in the error's body."""

    def hits(self, number: int) -> bool:
        """Return whether the fault affects the request with this number."""
        within = number >= self.first and (not self.last or number <= self.last)
        return within and (number - self.first) % self.every == 0


@dataclass(slots=True)
class Script:
    """The replies of a scripted model.

    A reply is a text (the final answer), `{"tool": name, "arguments": {...}}`, or `{"tools": [...], "content": text}` with
    several such tool calls. If `arguments` is a string, it is sent unchanged; use this for malformed tool calls. The number
    of turns that the model has taken in the conversation chooses the reply; the last reply is repeated.

    To imitate other servers: `{"message": ...}` is sent as the message of the completion, `{"usage": ...}` beside any of
    these as its token counts, and `{"body": ...}` as the whole reply.
    """

    answers: Mapping[str, Any] = field(default_factory=dict)
    """Replies by text of the task: the first key that occurs in the first user message has the reply, or list of replies."""
    default: Any = "42"
    """The reply, or list of replies, for all other conversations."""
    latency: float = 0.0
    """Seconds before an answer begins."""
    faults: Sequence[Fault] = ()
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

    def fault(self) -> Fault | None:
        """Count a request and return the fault that affects it, if any."""
        number = next(self._numbers)
        return next((fault for fault in self.faults if fault.hits(number)), None)

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
    prompt = sum(tokens(str(m.get("content") or "")) for m in request["messages"])
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    said = tokens(str(message.get("content") or "")) if isinstance(message, dict) else 0
    if "message" not in chosen:
        said += sum(tokens(call["function"]["arguments"]) + 5 for call in calls or ())
    counts = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}
    return {
        "id": f"chatcmpl-{next(_completion_numbers)}",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model", "scripted"),
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": chosen.get("usage", counts),
    }


def tokens(text: str) -> int:
    """Return a deterministic number of tokens: words and punctuation marks."""
    return len(re.findall(r"\w+|[^\w\s]", text))


_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}
_START_TIMEOUT = 10.0


@dataclass(slots=True)
class Statistics:
    """Counts of the requests that the server received."""

    requests: int = 0
    answered: int = 0
    refused: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """The request bodies, if the server keeps them."""


class _Connection(asyncio.Protocol):
    """The connection of one client. Each request is answered before the next is read."""

    def __init__(self, script: Script, statistics: Statistics, keep: bool) -> None:
        self._script = script
        self._statistics = statistics
        self._keep = keep
        self._buffer = bytearray()
        self._busy = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next_request()

    def _next_request(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if self._busy or end < 0:
            return
        head = bytes(self._buffer[:end]).decode("latin-1")
        lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", 0))
        if len(self._buffer) < end + 4 + length:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        method, path, _ = lines[0].split(" ", 2)
        self._busy = True
        self._route(method, path.partition("?")[0], body)

    def _route(self, method: str, path: str, body: bytes) -> None:
        if path.endswith("/chat/completions") and method == "POST":
            self._chat(json.loads(body))
        elif path.endswith("/embeddings") and method == "POST":
            self._reply(200, _embeddings(json.loads(body)))
        elif path.endswith("/models"):
            self._reply(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        elif path == "/statistics":
            seen = self._statistics
            self._reply(
                200, {name: getattr(seen, name) for name in ("requests", "answered", "refused", "most_in_flight")}
            )
        else:
            self._reply(404, _error("no such path", "not_found"))

    def _chat(self, request: dict[str, Any]) -> None:
        seen = self._statistics
        seen.requests += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight + 1)
        if self._keep:
            seen.bodies.append(request)
        fault = self._script.fault()
        most = self._script.most_at_once
        if fault is None and most and seen.in_flight >= most:
            seen.refused += 1
            self._reply(429, _error("too many requests at once", ""))  # immediately, as real endpoints do
            return
        seen.in_flight += 1
        asyncio.get_running_loop().call_later(self._script.latency, self._answer, request, fault)

    def _answer(self, request: dict[str, Any], fault: Fault | None) -> None:
        seen = self._statistics
        seen.in_flight -= 1
        if self._transport.is_closing():
            return
        fault = fault or self._script.refusal(request)
        if fault is not None and fault.status:
            seen.refused += 1
            self._reply(fault.status, _error(fault.message, fault.code), fault.retry_after)
            return
        completion = self._script.reply(request)
        if request.get("stream"):
            self._stream(request, completion, cut=fault is not None)
        elif fault is not None:
            seen.refused += 1
            self._cut(json.dumps(completion).encode())
        else:
            self._reply(200, completion, headers=self._request_id(completion))
            seen.answered += 1

    def _request_id(self, completion: Any) -> str:
        return f"x-request-id: req-{completion['id']}\r\n" if self._script.request_ids else ""

    def _reply(self, status: int, body: Any, retry_after: float | str | None = None, headers: str = "") -> None:
        payload = json.dumps(body).encode()
        extra = headers if retry_after is None else f"Retry-After: {retry_after}\r\n"
        head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\nContent-Type: application/json\r\n{extra}"
        self._transport.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        self._busy = False
        self._next_request()

    def _cut(self, payload: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        self._transport.write(head.encode() + payload[: len(payload) // 2])
        self._transport.close()

    def _stream(self, request: Mapping[str, Any], completion: Any, *, cut: bool) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{self._request_id(completion)}"
        self._transport.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        events = _events(completion, bool((request.get("stream_options") or {}).get("include_usage")))
        for event in events[: len(events) // 2] if cut else events:
            data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
            self._transport.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        if cut:
            self._statistics.refused += 1
            self._transport.close()
            return
        self._transport.write(b"0\r\n\r\n")
        self._statistics.answered += 1
        self._busy = False
        self._next_request()


def _events(completion: Any, with_usage: bool) -> list[Any]:
    try:
        return _chunks(completion, with_usage)
    except (TypeError, KeyError, IndexError, AttributeError):
        return [completion, "[DONE]"]  # not a completion: sent as the only chunk


def _chunks(completion: Mapping[str, Any], with_usage: bool) -> list[Any]:
    message = completion["choices"][0]["message"]
    shared = {key: completion[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    others = [name for name in message if name not in {"role", "content", "tool_calls"}]
    for name in (*others, "content"):
        text = message.get(name) or ""
        deltas += [{name: text[start : start + 8]} for start in range(0, len(text), 8)]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        deltas.append(
            {"tool_calls": [{"index": index, **call, "function": {"name": function["name"], "arguments": ""}}]}
        )
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]})
    events: list[Any] = [
        {**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    reason = completion["choices"][0]["finish_reason"]
    events.append({**shared, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    if with_usage:
        events.append({**shared, "choices": [], "usage": completion["usage"]})
    return [*events, "[DONE]"]


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": f"{message} ({code})" if code else message, "type": "scripted", "code": code or None}}


def _embeddings(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return vectors of letter frequencies: texts with the same letters are near to each other."""
    given = request.get("input", "")
    texts: Sequence[str] = [given] if isinstance(given, str) else given
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": [text.lower().count(letter) / (len(text) or 1) for letter in "abcdefghijklmnopqrstuvwxyz"],
        }
        for index, text in enumerate(texts)
    ]
    total = sum(map(tokens, texts))
    return {
        "object": "list",
        "model": request.get("model", "scripted"),
        "data": data,
        "usage": {"prompt_tokens": total, "total_tokens": total},
    }


class OpenAIServer:
    """The server as a context manager, in a thread of this process."""

    def __init__(self, script: Script | None = None, *, port: int = 0, keep_requests: bool = False) -> None:
        self.script = script if script is not None else Script()
        self.seen = Statistics()
        self.port = port
        self._keep = keep_requests
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="openai-server", daemon=True)

    @property
    def url(self) -> str:
        """The value for `OPENAI_BASE_URL`."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await self.listen(self._loop)
        self._ready.set()
        async with server:
            await self._stop.wait()

    async def listen(self, loop: asyncio.AbstractEventLoop) -> asyncio.Server:
        """Start to listen on this event loop and set `port`."""
        server = await loop.create_server(
            lambda: _Connection(self.script, self.seen, self._keep), "127.0.0.1", self.port, backlog=1024
        )
        self.port = server.sockets[0].getsockname()[1]
        return server

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
    parser.add_argument("--script", type=Path, help="a JSON file with the fields of Script")
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
