"""Dialect of OpenAI's Responses API.

Only requests that have the whole conversation are supported: `previous_response_id`, `conversation`, stored prompts, references
to items and background responses need a server that stores responses.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from paragent.errors import RequestRejected
from paragent.models.dialects.base import (
    ChatRequest,
    as_list,
    as_object,
    as_text,
    checked_messages,
    completion_of,
    custom_names,
    identifier,
    kind_of,
    with_custom_calls,
)
from paragent.models.dialects.responses_items import read_items, read_turn, write_message, write_turn
from paragent.models.dialects.responses_stream import events
from paragent.models.replies import MalformedReply

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paragent.models.base import Completion

__all__ = ["read_reply", "read_request", "stream", "write_reply", "write_request"]

_STORED = {
    "previous_response_id": "send the whole conversation in `input`",
    "conversation": "send the whole conversation in `input`",
    "prompt": "send the instructions and the input themselves",
    "background": "request a response without `background`",
}
"""Fields that need stored responses, and what to do instead."""
_SAME = (
    "temperature",
    "top_p",
    "top_logprobs",
    "metadata",
    "user",
    "service_tier",
    "prompt_cache_key",
    "safety_identifier",
    "parallel_tool_calls",
)
"""Options with the same name and meaning in chat completions."""
_OWN = ("include", "truncation", "max_tool_calls", "context_management", "prompt_cache_retention", "store")
"""Options that chat completions do not have."""
_UNSUPPORTED = ("stop", "logit_bias", "frequency_penalty", "presence_penalty")
"""Options of chat completions that change the reply and that this protocol does not have."""


def read_request(body: Any) -> ChatRequest:
    """Read a request; see `Dialect`."""
    given = as_object(body, "request")
    for name, advice in _STORED.items():
        if given.get(name):
            raise RequestRejected(f"`{name}` is not supported, because no responses are stored here: {advice}")
    messages: list[dict[str, Any]] = []
    if given.get("instructions"):
        messages.append({"role": "system", "content": as_text(given["instructions"], "instructions")})
    items = given.get("input")
    if isinstance(items, str):
        messages.append({"role": "user", "content": items})
    else:
        messages += read_items(as_list(items, "input"))
    if not messages:
        raise RequestRejected("the request has neither `input` nor `instructions`")
    tools = [_read_tool(tool, f"tools[{number}]") for number, tool in enumerate(as_list(given.get("tools"), "tools"))]
    return ChatRequest(messages, tools, _read_options(given))


def _read_tool(tool: Any, where: str) -> dict[str, Any]:
    kind = kind_of(tool, where)
    if kind == "function":
        as_text(tool.get("name"), f"{where}.name")
        names = ("name", "description", "parameters", "strict")
        return {"type": kind, "function": {name: tool[name] for name in names if tool.get(name) is not None}}
    if kind == "custom":
        as_text(tool.get("name"), f"{where}.name")
        return {"type": kind, "custom": {name: value for name, value in tool.items() if name != "type"}}
    return {"type": "responses", "responses": tool}


def _read_options(given: dict[str, Any]) -> dict[str, Any]:
    options = {name: given[name] for name in _SAME if given.get(name) is not None}
    own = {name: given[name] for name in _OWN if given.get(name) is not None}
    if given.get("max_output_tokens") is not None:
        options["max_completion_tokens"] = given["max_output_tokens"]
    reasoning = as_object(given.get("reasoning") or {}, "reasoning")
    if reasoning.get("effort"):
        options["reasoning_effort"] = reasoning["effort"]
    if rest := {name: value for name, value in reasoning.items() if name != "effort" and value is not None}:
        own["reasoning"] = rest
    text = as_object(given.get("text") or {}, "text")
    if text.get("verbosity"):
        options["verbosity"] = text["verbosity"]
    if text.get("format"):
        form = as_object(text["format"], "text.format")
        schema = {name: value for name, value in form.items() if name != "type" and value is not None}
        options["response_format"] = {"type": form.get("type")} | ({"json_schema": schema} if schema else {})
    if given.get("tool_choice") is not None:
        options["tool_choice"] = _read_choice(given["tool_choice"])
    return options | ({"responses": own} if own else {})


def _read_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    kind = kind_of(choice, "tool_choice")
    if kind in {"function", "custom"}:
        return {"type": kind, kind: {"name": as_text(choice.get("name"), "tool_choice.name")}}
    if kind == "allowed_tools":
        tools = [_read_choice(tool) for tool in as_list(choice.get("tools"), "tool_choice.tools")]
        return {"type": kind, kind: {"mode": choice.get("mode", "auto"), "tools": tools}}
    return {"type": "responses", "responses": choice}


def write_request(request: ChatRequest) -> dict[str, Any]:
    """Return the body of a request that the endpoint does not store; see `Dialect`."""
    messages = checked_messages(request.messages)
    body: dict[str, Any] = {}
    first = messages[0]
    if first["role"] == "system" and isinstance(first.get("content"), str) and len(messages) > 1:
        body["instructions"] = first["content"]
        messages = messages[1:]
    body["input"] = [item for number, message in enumerate(messages) for item in write_message(message, number)]
    if request.tools:
        body["tools"] = [_write_tool(tool) for tool in request.tools]
    return body | _write_options(request.options)


def _write_tool(tool: dict[str, Any]) -> dict[str, Any]:
    kind = kind_of(tool, "tools", "function")
    described = as_object(tool.get(kind), f"tools.{kind}")
    if kind == "function":
        return {"type": kind, "parameters": None, "strict": False, **described}
    if kind == "custom":
        return {"type": kind, **described}
    if kind == "responses":
        return described
    raise RequestRejected(f"the tool {described.get('type')!r} is not supported by the Responses API: use a function")


def _write_options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in _UNSUPPORTED:
        if options.get(name):
            raise RequestRejected(f"the Responses API does not support `{name}`: leave it out, or use --api chat")
    if options.get("n") not in (None, 1):
        raise RequestRejected("the Responses API returns one reply for a request: leave `n` out")
    body = {name: options[name] for name in _SAME if options.get(name) is not None}
    own = as_object(options.get("responses") or {}, "responses")
    body |= {name: value for name, value in own.items() if name != "reasoning"}
    limit = options.get("max_completion_tokens") or options.get("max_tokens")
    if limit is not None:
        body["max_output_tokens"] = limit
    reasoning = dict(own.get("reasoning") or {})
    if options.get("reasoning_effort"):
        reasoning["effort"] = options["reasoning_effort"]
    if reasoning:
        body["reasoning"] = reasoning
    text = {"verbosity": options["verbosity"]} if options.get("verbosity") else {}
    if form := options.get("response_format"):
        schema = as_object(as_object(form, "response_format").get("json_schema") or {}, "response_format.json_schema")
        text["format"] = {"type": form.get("type"), **schema}
    if text:
        body["text"] = text
    if options.get("tool_choice") is not None:
        body["tool_choice"] = _write_choice(options["tool_choice"])
    return body


def _write_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    kind = kind_of(choice, "tool_choice")
    described = as_object(choice.get(kind), f"tool_choice.{kind}")
    if kind == "allowed_tools":
        tools = [_write_choice(tool) for tool in as_list(described.get("tools"), "tool_choice.tools")]
        return {"type": kind, "mode": described.get("mode", "auto"), "tools": tools}
    return described if kind == "responses" else {"type": kind, **described}


def read_reply(body: Any, headers: Mapping[str, str] | None = None) -> Completion:
    """Read a response; see `Dialect`.

    Raises:
        MalformedReply: it is not a response, or one that failed.
    """
    usage = _read_usage(body.get("usage")) if isinstance(body, dict) else None
    output = body.get("output") if isinstance(body, dict) else None
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise MalformedReply(f"not a response: {str(body)[:200]}", usage)
    if body.get("status") in ("failed", "cancelled"):
        raise MalformedReply(f"the response {body['status']}: {str(body.get('error'))[:200]}", usage)
    try:
        message = read_turn(output, "output")
    except RequestRejected as error:
        raise MalformedReply(f"not a response: {error}", usage) from None
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    if body.get("status") == "incomplete":
        details = body.get("incomplete_details")
        filtered = isinstance(details, dict) and details.get("reason") == "content_filter"
        reason = "content_filter" if filtered else "length"
    return completion_of(body, message, reason, usage, headers)


def _read_usage(usage: Any) -> dict[str, Any] | None:
    if not isinstance(usage, dict):
        return None
    return {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
        "completion_tokens_details": usage.get("output_tokens_details"),
    }


def write_reply(completion: Completion, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response; see `Dialect`. It is not stored."""
    response_id = identifier("resp_", completion)
    message = dict(completion.message)
    if calls := message.get("tool_calls"):
        message["tool_calls"] = with_custom_calls(calls, custom_names(request.get("tools")))
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(completion.finish_reason)
    echoed = (
        "instructions",
        "max_output_tokens",
        "metadata",
        "reasoning",
        "temperature",
        "text",
        "top_p",
        "truncation",
    )
    created = int(time.time())
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "completed_at": None if cut else created,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "model": completion.model or request.get("model") or "",
        "output": write_turn(message, response_id),
        "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "store": False,
        "tool_choice": request.get("tool_choice") or "auto",
        "tools": request.get("tools") or [],
        "usage": _write_usage(completion.usage),
        **{name: request.get(name) for name in echoed},
    }


def _write_usage(usage: Mapping[str, int] | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage.get("cached_tokens", 0), "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage.get("reasoning_tokens", 0)},
        "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
    }


def stream(reply: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Yield the events of a response, each text in one piece."""
    del request
    return events(reply)
