"""One connection of the scripted endpoint: HTTP, the three protocols of models, and streams."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paragent.errors import RequestRejected
from paragent.models.dialects import DIALECTS
from paragent.models.dialects.base import ORIGINALS
from paragent.models.replies import MalformedReply, read_reply
from paragent.testing.toy_tokens import with_tokens, word_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.testing.openai_server import Fault, Script

__all__ = ["ScriptedConnection", "Statistics"]

_DIALECTS = {"/chat/completions": "chat", "/responses": "responses", "/messages": "anthropic"}
"""The ends of the paths of requests to the model."""
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


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


class ScriptedConnection(asyncio.Protocol):
    """The connection of one client. Each request is answered before the next is read."""

    def __init__(self, script: Script, statistics: Statistics, keep: bool) -> None:
        self._script = script
        self._statistics = statistics
        self._keep = keep
        self._buffer = bytearray()
        self._busy = False
        self._hanging = False
        """Whether it has a request in flight that is never answered."""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._statistics.in_flight -= self._hanging

    def close(self) -> None:
        """Close the connection without waiting for data that is not sent yet."""
        self._transport.abort()

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
        dialect = next((name for suffix, name in _DIALECTS.items() if path.endswith(suffix)), None)
        if dialect is not None and method == "POST":
            self._ask(json.loads(body), dialect)
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
            self._reply(404, _error(404, "no such path", "not_found"))

    def _ask(self, body: dict[str, Any], dialect: str) -> None:
        seen = self._statistics
        seen.requests += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight + 1)
        if self._keep:
            seen.bodies.append(body)
        fault = self._script.fault(body)
        most = self._script.most_at_once
        if fault is None and most and seen.in_flight >= most:
            seen.refused += 1
            self._reply(429, _error(429, "too many requests at once", "", dialect))  # immediately, as real endpoints do
            return
        seen.in_flight += 1
        if fault is not None and fault.hangs:
            self._hanging = True
            return
        asyncio.get_running_loop().call_later(self._script.latency, self._answer, body, dialect, fault)

    def _answer(self, body: dict[str, Any], dialect: str, fault: Fault | None) -> None:
        seen = self._statistics
        seen.in_flight -= 1
        if self._transport.is_closing():
            return
        try:
            request = body if dialect == "chat" else _as_chat(body, dialect)
        except RequestRejected as error:
            seen.refused += 1
            self._reply(400, _error(400, str(error), "invalid_request", dialect))
            return
        fault = fault or self._script.refusal(request)
        if fault is not None and fault.status:
            seen.refused += 1
            self._reply(fault.status, _error(fault.status, fault.message, fault.code, dialect), fault.retry_after)
            return
        reply = _reply_in(dialect, self._script.reply(request), body, request)
        if body.get("stream"):
            self._stream(body, dialect, reply, cut=fault is not None)
        elif fault is not None:
            seen.refused += 1
            self._cut(json.dumps(reply).encode())
        else:
            self._reply(200, reply, headers=self._request_id(reply))
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

    def _stream(self, body: Mapping[str, Any], dialect: str, reply: Any, *, cut: bool) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{self._request_id(reply)}"
        self._transport.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        if dialect == "chat":
            events = _events(reply, bool((body.get("stream_options") or {}).get("include_usage")))
        else:
            events = list(DIALECTS[dialect].stream(reply, body))
        for data in events[: len(events) // 2] if cut else events:
            self._transport.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        if cut:
            self._statistics.refused += 1
            self._transport.close()
            return
        self._transport.write(b"0\r\n\r\n")
        self._statistics.answered += 1
        self._busy = False
        self._next_request()


def _as_chat(body: dict[str, Any], dialect: str) -> dict[str, Any]:
    """Return a request of another protocol as one of chat completions."""
    read = DIALECTS[dialect].read_request(body)
    named = {"model": body["model"]} if "model" in body else {}
    return {**named, "messages": read.messages, **({"tools": read.tools} if read.tools else {}), **read.options}


def _reply_in(dialect: str, reply: Any, body: Mapping[str, Any], request: Mapping[str, Any]) -> Any:
    """Return the script's reply in the protocol of the request; a body that is not a chat completion is sent as it is."""
    asks_for_tokens = request.get("return_token_ids") or request.get("logprobs")
    if dialect == "chat" and not asks_for_tokens:
        return reply
    try:
        completion = read_reply(reply)
    except MalformedReply:
        return reply
    if dialect == "chat":
        return with_tokens(reply, request)
    message = reply["choices"][0]["message"]
    given = {name: message[name] for name in ORIGINALS.values() if name in message}
    return DIALECTS[dialect].write_reply(replace(completion, message=completion.message | given), body)


def _events(completion: Any, with_usage: bool) -> list[bytes]:
    try:
        chunks = _chunks(completion, with_usage)
    except (TypeError, KeyError, IndexError, AttributeError):
        chunks = [completion]  # not a completion: sent as the only chunk
    return [*(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks), b"data: [DONE]\n\n"]


def _chunks(completion: Mapping[str, Any], with_usage: bool) -> list[Any]:
    """Return the chunks of a streamed completion. Texts, token ids and log probabilities come in pieces."""
    [choice] = completion["choices"]
    message = choice["message"]
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
    events = [{**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({**shared, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    _add_tokens(events, completion)
    if with_usage:
        events.append({**shared, "choices": [], "usage": completion["usage"]})
    return events


def _add_tokens(events: list[dict[str, Any]], completion: Mapping[str, Any]) -> None:
    """Add the tokens to the chunks, as vLLM does: those of the prompt to the first, and those of the answer in pieces."""
    if "prompt_token_ids" in completion:
        events[0]["prompt_token_ids"] = completion["prompt_token_ids"]
    [choice] = completion["choices"]
    ids, content = choice.get("token_ids") or [], (choice.get("logprobs") or {}).get("content") or []
    most = max(len(ids), len(content))
    size = -(-most // max(1, len(events) - 1))
    for number, start in enumerate(range(0, most, size or 1), 1):
        [piece] = events[number]["choices"]
        if ids:
            piece["token_ids"] = ids[start : start + size]
        if content:
            piece["logprobs"] = {"content": content[start : start + size]}


_ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def _error(status: int, message: str, code: str, dialect: str = "chat") -> dict[str, Any]:
    if dialect == "anthropic":
        text = "prompt is too long" if code == "context_length_exceeded" else message
        return {"type": "error", "error": {"type": _ANTHROPIC_ERRORS.get(status, "api_error"), "message": text}}
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
    total = sum(map(word_count, texts))
    return {
        "object": "list",
        "model": request.get("model", "scripted"),
        "data": data,
        "usage": {"prompt_tokens": total, "total_tokens": total},
    }
