"""Dialect of chat completions."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paragent.errors import RequestRejected
from paragent.models import replies
from paragent.models.dialects.base import (
    ORIGINALS,
    ChatRequest,
    as_list,
    as_object,
    as_text,
    call_of,
    checked_messages,
    custom_names,
    event,
    identifier,
    joined,
    kind_of,
    parts_of,
    text_of,
    with_custom_calls,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paragent.models.base import Completion

__all__ = [
    "as_function",
    "function_call",
    "read_reply",
    "read_request",
    "stream",
    "tool_result_text",
    "write_reply",
    "write_request",
]

_NOT_OPTIONS = {"model", "messages", "tools", "stream", "stream_options"}
_OTHERS = tuple(ORIGINALS)
_DONE = b"data: [DONE]\n\n"


def read_request(body: Any) -> ChatRequest:
    """Read a request. The messages are checked and not changed."""
    given = as_object(body, "request")
    messages = checked_messages(given.get("messages"))
    tools = as_list(given.get("tools"), "tools")
    for number, tool in enumerate(tools):
        kind = kind_of(tool, f"tools[{number}]", "function")
        if kind in {"function", "custom"}:
            described = as_object(tool.get(kind), f"tools[{number}].{kind}")
            as_text(described.get("name"), f"tools[{number}].{kind}.name")
    options = {name: value for name, value in given.items() if name not in _NOT_OPTIONS and value is not None}
    return ChatRequest(messages, tools, options)


def write_request(request: ChatRequest) -> dict[str, Any]:
    """Return a request that any chat completion endpoint accepts.

    Images in results of tools follow in a message of the user; custom tools become functions.
    """
    messages: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    for number, message in enumerate(checked_messages(request.messages)):
        if images and message["role"] != "tool":
            messages.append({"role": "user", "content": images})
            images = []
        messages.append(_message(message, images, f"messages[{number}]"))
    if images:
        messages.append({"role": "user", "content": images})
    body: dict[str, Any] = {"messages": messages}
    if request.tools:
        body["tools"] = [as_function(tool) for tool in request.tools]
    return body | {name: value for name, value in request.options.items() if name not in _OTHERS}


def _message(message: dict[str, Any], images: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """Return a message without what only other protocols have; the images of a tool's result are added to `images`."""
    written = {
        name: value for name, value in message.items() if name not in {*ORIGINALS.values(), "is_error", "tool_calls"}
    }
    parts = parts_of(message.get("content"), f"{where}.content")
    for part in parts:
        if part["type"] in _OTHERS:
            kind = as_object(part.get(part["type"]), where).get("type")
            raise RequestRejected(f"`{where}` has content of the type {kind!r}, which chat completions do not have")
    if message["role"] == "tool":
        images += [part for part in parts if part["type"] == "image_url"]
        written["content"] = tool_result_text(message)
    elif isinstance(message.get("content"), list):
        written["content"] = joined(parts)
    if calls := message.get("tool_calls"):
        written["tool_calls"] = [function_call(call) for call in calls]
    return written


def tool_result_text(message: Mapping[str, Any]) -> str:
    """Return the text of a tool's message. Only Anthropic's protocol marks errors; in others the text begins with `Error`."""
    text = text_of(message.get("content"))
    if not message.get("is_error") or text.lower().startswith("error"):
        return text
    return f"Error: {text}" if text else "Error"


def as_function(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as a function; a custom tool, which takes a text, becomes one with the parameter `input`.

    Raises:
        RequestRejected: only the endpoints of one protocol have this tool.
    """
    kind = kind_of(tool, "tools", "function")
    if kind == "function":
        return tool
    if kind == "custom":
        custom = as_object(tool.get("custom"), "tools.custom")
        schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
        described = {name: custom[name] for name in ("name", "description") if custom.get(name)}
        return {"type": "function", "function": described | {"parameters": schema}}
    foreign = as_object(tool.get(kind), "tools") if kind in _OTHERS else tool
    raise RequestRejected(
        f"the tool {foreign.get('type')!r} is part of another protocol, and this endpoint does not have it: use tools of the "
        "type `function`"
    )


def function_call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call as one of a function; the input of a custom tool becomes the argument `input`."""
    if call.get("type") != "custom":
        return call
    call_id, name, given = call_of(call, "tool_calls")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps({"input": given})}}


def read_reply(body: Any, headers: Mapping[str, str] | None = None) -> Completion:
    """Read a reply with `models.replies`."""
    completion = replies.read_reply(body, headers)
    model = body.get("model")
    return replace(completion, model=completion.model or (model if isinstance(model, str) else ""))


def write_reply(completion: Completion, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat completion. Its message has the original form of the turn, if that is needed to send it back."""
    message = dict(completion.message)
    if calls := message.get("tool_calls"):
        message["tool_calls"] = with_custom_calls(calls, custom_names(request.get("tools")))
    choice = {"index": 0, "message": message, "finish_reason": completion.finish_reason, "logprobs": None}
    return {
        "id": identifier("chatcmpl-", completion),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": completion.model or request.get("model") or "",
        "choices": [choice],
        "usage": _usage(completion.usage),
    }


def _usage(usage: Mapping[str, int] | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    written: dict[str, Any] = {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}
    written["total_tokens"] = sum(written.values())
    if "cached_tokens" in usage:
        written["prompt_tokens_details"] = {"cached_tokens": usage["cached_tokens"]}
    if "reasoning_tokens" in usage:
        written["completion_tokens_details"] = {"reasoning_tokens": usage["reasoning_tokens"]}
    return written


def stream(reply: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Yield the chunks of a reply, each text in one piece. Token counts follow if the request asks for them."""
    shared = {name: value for name, value in reply.items() if name not in {"choices", "usage", "object"}}
    shared["object"] = "chat.completion.chunk"
    for choice in reply.get("choices") or ():
        index = choice.get("index", 0)
        rest = {name: value for name, value in choice.items() if name not in {"index", "message", "finish_reason"}}
        for delta in _deltas(choice.get("message") or {}):
            yield event({**shared, "choices": [{"index": index, "delta": delta, **rest, "finish_reason": None}]})
            rest = {}
            shared = {name: shared[name] for name in ("id", "created", "model", "object") if name in shared}
        end = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}
        yield event({**shared, "choices": [end]})
    options = (request or {}).get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield event({**shared, "choices": [], "usage": reply.get("usage")})
    yield _DONE


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a message: reasoning and other fields, the text, each tool call."""
    yield {name: value for name, value in message.items() if name not in {"content", "tool_calls"}} | {
        "role": "assistant"
    }
    if message.get("content"):
        yield {"content": message["content"]}
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": index, **call}]}
