"""Dialect of Anthropic's Messages API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paragent.errors import RequestRejected
from paragent.models.dialects.anthropic_blocks import (
    read_parts,
    read_turn,
    read_user,
    write_parts,
    write_tool_result,
    write_turn,
)
from paragent.models.dialects.base import (
    ChatRequest,
    as_list,
    as_object,
    as_text,
    checked_messages,
    completion_of,
    event,
    identifier,
    joined,
    kind_of,
    text_of,
)
from paragent.models.dialects.chat import as_function
from paragent.models.replies import MalformedReply

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from paragent.models.base import Completion

__all__ = ["read_reply", "read_request", "stream", "write_reply", "write_request"]

_DEFAULT_MAX_TOKENS = 32_000
"""The required `max_tokens` of requests that have no limit: what all current models of Anthropic accept."""
_SAME = ("temperature", "top_p", "top_k")
_OWN = ("thinking", "container", "context_management", "mcp_servers", "service_tier", "speed", "inference_geo")
"""Options that chat completions do not have, or with other values."""
_UNSUPPORTED = ("logit_bias", "frequency_penalty", "presence_penalty", "logprobs")
"""Options of chat completions that change the reply and that this protocol does not have."""
_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def read_request(body: Any) -> ChatRequest:
    """Read a request; see `Dialect`. Marks of prompt caching are left out."""
    given = as_object(body, "request")
    messages: list[dict[str, Any]] = []
    if given.get("system"):
        messages.append({"role": "system", "content": joined(read_parts(given["system"], "system"))})
    listed = as_list(given.get("messages"), "messages")
    if not listed:
        raise RequestRejected("the request has no messages")
    for number, message in enumerate(listed):
        where = f"messages[{number}]"
        role = as_object(message, where).get("role")
        if role == "user":
            messages += read_user(message.get("content"), f"{where}.content")
        elif role == "assistant":
            messages.append(read_turn(message.get("content"), f"{where}.content"))
        elif role == "system":
            messages.append({"role": role, "content": joined(read_parts(message.get("content"), f"{where}.content"))})
        else:
            raise RequestRejected(f"`{where}.role` is {role!r}; use user, assistant or system")
    tools = [_read_tool(tool, f"tools[{number}]") for number, tool in enumerate(as_list(given.get("tools"), "tools"))]
    return ChatRequest(messages, tools, _read_options(given))


def _read_tool(tool: Any, where: str) -> dict[str, Any]:
    if kind_of(tool, where, "custom") != "custom":
        return {"type": "anthropic", "anthropic": tool}
    function = {"name": as_text(tool.get("name"), f"{where}.name")}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {
        "type": "function",
        "function": {**function, "parameters": as_object(tool.get("input_schema"), f"{where}.input_schema")},
    }


def _read_options(given: dict[str, Any]) -> dict[str, Any]:
    options = {name: given[name] for name in _SAME if given.get(name) is not None}
    own = {name: given[name] for name in _OWN if given.get(name) is not None}
    if given.get("max_tokens") is not None:
        options["max_completion_tokens"] = given["max_tokens"]
    if given.get("stop_sequences"):
        options["stop"] = as_list(given["stop_sequences"], "stop_sequences")
    if user := as_object(given.get("metadata") or {}, "metadata").get("user_id"):
        options["user"] = user
    output = as_object(given.get("output_config") or {}, "output_config")
    if output.get("effort"):
        options["reasoning_effort"] = output["effort"]
    if form := output.get("format") or given.get("output_format"):
        schema = as_object(form, "output_config.format").get("schema")
        described = {"name": "reply", "schema": as_object(schema, "output_config.format.schema"), "strict": True}
        options["response_format"] = {"type": "json_schema", "json_schema": described}
    if given.get("tool_choice") is not None:
        choice = as_object(given["tool_choice"], "tool_choice")
        kind = kind_of(choice, "tool_choice")
        if kind == "tool":
            name = as_text(choice.get("name"), "tool_choice.name")
            options["tool_choice"] = {"type": "function", "function": {"name": name}}
        elif kind in {"auto", "any", "none"}:
            options["tool_choice"] = "required" if kind == "any" else kind
        else:
            raise RequestRejected(f"`tool_choice.type` is {kind!r}; use auto, any, none or tool")
        if choice.get("disable_parallel_tool_use"):
            options["parallel_tool_calls"] = False
    return options | ({"anthropic": own} if own else {})


def write_request(request: ChatRequest) -> dict[str, Any]:
    """Return the body of a request; see `Dialect`."""
    messages = checked_messages(request.messages)
    leading = 0
    while leading < len(messages) and messages[leading]["role"] in {"system", "developer"}:
        leading += 1
    body: dict[str, Any] = {"messages": _write_messages(messages[leading:])}
    system = [part for message in messages[:leading] for part in write_parts(message.get("content"), "system")]
    if system:
        body["system"] = system[0]["text"] if len(system) == 1 else system
    tools, choice = _allowed(request.tools, request.options.get("tool_choice"))
    if tools:
        body["tools"] = [_write_tool(tool) for tool in tools]
    return body | _write_options({**request.options, "tool_choice": choice}, with_tools=bool(tools))


def _write_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages; the results of tools and the user's message after them are one message."""
    written: list[dict[str, Any]] = []
    results: list[dict[str, Any]] | None = None
    for number, message in enumerate(messages):
        role, where = message["role"], f"messages[{number}].content"
        if role == "tool":
            if results is None:
                results = []
                written.append({"role": "user", "content": results})
            results.append(write_tool_result(message, where))
            continue
        if role == "user" and results is not None:
            results += write_parts(message.get("content"), where)
        elif role == "user":
            plain = isinstance(message.get("content"), str)
            written.append(
                {"role": role, "content": message["content"] if plain else write_parts(message.get("content"), where)}
            )
        elif role == "assistant":
            if blocks := write_turn(message):
                written.append({"role": role, "content": blocks})
        elif role == "function":
            raise RequestRejected("a message has the role 'function', which this endpoint does not have: use 'tool'")
        else:
            written.append({"role": "system", "content": text_of(message.get("content"))})
        results = None
    return written


def _write_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") == "anthropic":
        return as_object(tool.get("anthropic"), "tools.anthropic")
    function = as_object(as_function(tool).get("function"), "tools.function")
    written = {"name": as_text(function.get("name"), "tools.function.name")}
    written |= {name: function[name] for name in ("description", "strict") if function.get(name)}
    schema = function.get("parameters") or {}
    return {**written, "input_schema": {"type": "object", "properties": {}} | as_object(schema, "tools.parameters")}


def _allowed(tools: list[dict[str, Any]], choice: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the tools and the choice among them, if the request allows only some of its tools."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools, choice
    allowed = as_object(choice.get("allowed_tools"), "tool_choice.allowed_tools")
    names = {_tool_name(tool) for tool in as_list(allowed.get("tools"), "tool_choice.allowed_tools.tools")}
    return [tool for tool in tools if _tool_name(tool) in names], allowed.get("mode", "auto")


def _tool_name(tool: Any) -> Any:
    described = tool.get(kind_of(tool, "tools", "function")) if isinstance(tool, dict) else None
    name = described.get("name") if isinstance(described, dict) else None
    return name if isinstance(name, str) else None


def _write_options(options: Mapping[str, Any], *, with_tools: bool) -> dict[str, Any]:
    for name in _UNSUPPORTED:
        if options.get(name):
            raise RequestRejected(f"Anthropic's Messages API does not support `{name}`: leave it out")
    if options.get("n") not in (None, 1):
        raise RequestRejected("Anthropic's Messages API returns one reply for a request: leave `n` out")
    body = {name: options[name] for name in _SAME if options.get(name) is not None}
    body |= as_object(options.get("anthropic") or {}, "anthropic")
    body["max_tokens"] = options.get("max_completion_tokens") or options.get("max_tokens") or _DEFAULT_MAX_TOKENS
    if stop := options.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else as_list(stop, "stop")
    if isinstance(options.get("user"), str):
        body["metadata"] = {"user_id": options["user"]}
    effort = options.get("reasoning_effort")
    output: dict[str, Any] = {}
    if effort == "none":
        body.setdefault("thinking", {"type": "disabled"})
    elif effort:
        output["effort"] = "low" if effort == "minimal" else effort
        body.setdefault("thinking", {"type": "adaptive"})
    if form := _write_format(options.get("response_format")):
        output["format"] = form
    if output:
        body["output_config"] = output
    if with_tools and (choice := _write_choice(options.get("tool_choice"), options.get("parallel_tool_calls"))):
        body["tool_choice"] = choice
    return body


def _write_format(form: Any) -> dict[str, Any] | None:
    if form is None or as_object(form, "response_format").get("type") == "text":
        return None
    if form.get("type") != "json_schema":
        raise RequestRejected(
            f"Anthropic's Messages API does not support the response format {form.get('type')!r}: use `json_schema`"
        )
    described = as_object(form.get("json_schema"), "response_format.json_schema")
    return {"type": "json_schema", "schema": as_object(described.get("schema"), "response_format.json_schema.schema")}


def _write_choice(choice: Any, parallel: Any) -> dict[str, Any] | None:
    kinds = {None: "auto", "auto": "auto", "required": "any", "none": "none"}
    written: dict[str, Any]
    if isinstance(choice, dict):
        name = as_text(_tool_name(choice), "tool_choice.function.name")
        written = {"type": "tool", "name": name}
    elif choice is None or (isinstance(choice, str) and choice in kinds):
        written = {"type": kinds[choice]}
    else:
        raise RequestRejected(f"`tool_choice` is {choice!r}; use auto, none, required, or a function")
    if parallel is False and written["type"] != "none":
        return written | {"disable_parallel_tool_use": True}
    return written if choice is not None else None


def read_reply(body: Any, headers: Mapping[str, str] | None = None) -> Completion:
    """Read a message; see `Dialect`."""
    usage = _read_usage(body.get("usage")) if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(body.get("content"), list):
        raise MalformedReply(f"not a message: {str(body)[:200]}", usage)
    try:
        message = read_turn(body["content"], "content")
    except RequestRejected as error:
        raise MalformedReply(f"not a message: {error}", usage) from None
    given = body.get("stop_reason")
    reason = _FINISH_REASONS.get(given, given) if isinstance(given, str) else "stop"
    return completion_of(body, message, reason, usage, headers)


def _read_usage(usage: Any) -> dict[str, Any] | None:
    """Return the token counts as in chat completions, where the input includes what was read from and written to the cache."""
    if not isinstance(usage, dict):
        return None
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    counts = [usage[name] for name in names if isinstance(usage.get(name), int)]
    details = usage.get("output_tokens_details")
    thinking = details.get("thinking_tokens") if isinstance(details, dict) else None
    return {
        "prompt_tokens": sum(counts) if counts else None,
        "completion_tokens": usage.get("output_tokens"),
        "cache_read_input_tokens": usage.get("cache_read_input_tokens"),
        "reasoning_tokens": thinking,
    }


def write_reply(completion: Completion, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message; see `Dialect`."""
    blocks = write_turn(completion.message)
    reason = _STOP_REASONS.get(completion.finish_reason, "end_turn")
    if reason == "end_turn" and any(block.get("type") == "tool_use" for block in blocks):
        reason = "tool_use"
    usage = completion.usage or {}
    cached = usage.get("cached_tokens", 0)
    written: dict[str, Any] = {
        "input_tokens": max(0, usage.get("prompt_tokens", 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens", 0),
    }
    if "reasoning_tokens" in usage:
        written["output_tokens_details"] = {"thinking_tokens": usage["reasoning_tokens"]}
    return {
        "id": identifier("msg_", completion),
        "type": "message",
        "role": "assistant",
        "model": completion.model or request.get("model") or "",
        "content": blocks,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": written,
    }


def stream(reply: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Yield the events of a message, each text in one piece."""
    del request
    usage = reply.get("usage") or {}
    begun = {**reply, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 0}}
    yield event({"type": "message_start", "message": begun}, "message_start")
    for index, block in enumerate(reply.get("content") or ()):
        start, deltas = _pieces(block)
        yield _block_event("content_block_start", index, {"content_block": start})
        for delta in deltas:
            yield _block_event("content_block_delta", index, {"delta": delta})
        yield _block_event("content_block_stop", index, {})
    end = {name: reply.get(name) for name in ("stop_reason", "stop_sequence")}
    yield event({"type": "message_delta", "delta": end, "usage": usage}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def _block_event(kind: str, index: int, data: dict[str, Any]) -> bytes:
    return event({"type": kind, "index": index, **data}, kind)


def _pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the beginning of a block and its deltas. Blocks of other types are sent whole."""
    kind = block.get("type")
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block.get("text") or ""}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block.get("thinking") or ""}]
        deltas.append({"type": "signature_delta", "signature": block.get("signature") or ""})
        return {**block, "thinking": "", "signature": ""}, deltas
    if kind in ("tool_use", "server_tool_use"):
        text = json.dumps(block.get("input") or {}, ensure_ascii=False)
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    return dict(block), []
