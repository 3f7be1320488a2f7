"""The neutral form of requests, and what all dialects share: checks of bodies, opaque reasoning, images, custom tools."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paragent._internal.ids import new_id
from paragent._internal.text import well_formed
from paragent.errors import RequestRejected
from paragent.models.replies import read_reply

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from paragent.models.base import Completion

__all__ = [
    "ORIGINALS",
    "ChatRequest",
    "arguments_of",
    "as_list",
    "as_object",
    "as_text",
    "base64_image",
    "call_of",
    "checked_messages",
    "completion_of",
    "custom_names",
    "event",
    "function_of",
    "identifier",
    "joined",
    "kind_of",
    "parts_of",
    "reasoning_of",
    "restore_reasoning",
    "same_turn",
    "text_of",
    "with_custom_calls",
]

ORIGINALS = {"anthropic": "anthropic_content", "responses": "responses_output"}
"""The field of an assistant's message with its original form, by dialect. It is there if chat completions cannot express it, for
example because of a signature, and is sent back unchanged to an endpoint of that dialect."""
_REASONING_NAMES = ("reasoning_content", "reasoning")
_DETAILS = "reasoning_details"
"""OpenRouter's reasoning in parts, which it wants back unchanged."""
_SEAL = "paragent:"
"""The beginning of signatures and encrypted reasoning that a dialect wrote, and not an endpoint."""
_INVALID = "invalid_json"
"""The only field of a tool's input whose arguments are not a JSON object."""
_ROLES = {"system", "developer", "user", "assistant", "tool", "function"}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request in the form of chat completions.

    What only one other protocol has is kept under the name of its dialect: a tool `{"type": "anthropic", "anthropic": {...}}`, a
    content part of the same form, and options `{"responses": {...}}`. Other dialects reject such tools and parts, and leave out
    such options. A tool's message may have images in its content, and `is_error`.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    options: dict[str, Any]
    """Further fields of the request, without the model's name and the settings of the stream."""


def as_object(value: Any, where: str) -> dict[str, Any]:
    """Return an object of a body.

    Raises:
        RequestRejected: it is not an object.
    """
    if not isinstance(value, dict):
        raise RequestRejected(f"`{where}` is not an object")
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """Return a list of a body; empty if it is missing.

    Raises:
        RequestRejected: it is not a list.
    """
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise RequestRejected(f"`{where}` is not a list")
    return list(value)


def as_text(value: Any, where: str) -> str:
    """Return a text of a body.

    Raises:
        RequestRejected: it is missing or not a text.
    """
    if not isinstance(value, str):
        raise RequestRejected(f"`{where}` is not a text")
    return value


def kind_of(value: Any, where: str, default: str = "") -> str:
    """Return the `type` of an object.

    Raises:
        RequestRejected: it is not an object, or its type is not a text.
    """
    kind = as_object(value, where).get("type")
    return default if kind is None else as_text(kind, f"{where}.type")


def checked_messages(given: Any) -> list[dict[str, Any]]:
    """Return the messages of a chat completion request.

    Raises:
        RequestRejected: there are none, or their form is not that of chat completions.
    """
    messages = as_list(given, "messages")
    if not messages:
        raise RequestRejected("the request has no messages")
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        role = as_text(as_object(message, where).get("role"), f"{where}.role")
        if role not in _ROLES:
            raise RequestRejected(f"`{where}.role` is {role!r}; use one of {', '.join(sorted(_ROLES))}")
        parts_of(message.get("content"), f"{where}.content")
        for place, call in enumerate(as_list(message.get("tool_calls"), f"{where}.tool_calls")):
            call_of(call, f"{where}.tool_calls[{place}]")
        if role == "tool":
            as_text(message.get("tool_call_id"), f"{where}.tool_call_id")
    return messages


def parts_of(content: Any, where: str) -> list[dict[str, Any]]:
    """Return the content of a message as parts; a text is one part, an empty text none.

    Raises:
        RequestRejected: it is not content.
    """
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = as_list(content, where)
    for number, part in enumerate(parts):
        kind = as_text(as_object(part, f"{where}[{number}]").get("type"), f"{where}[{number}].type")
        if kind in {"text", "refusal"}:
            as_text(part.get(kind), f"{where}[{number}].{kind}")
        elif kind == "image_url":
            url = as_object(part.get(kind), f"{where}[{number}].{kind}").get("url")
            as_text(url, f"{where}[{number}].{kind}.url")
    return parts


def joined(parts: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return parts as the content of a message: a text if they are at most one plain text."""
    if not parts:
        return ""
    if len(parts) == 1 and set(parts[0]) == {"type", "text"}:
        return str(parts[0]["text"])
    return list(parts)


def text_of(content: Any, where: str = "content") -> str:
    """Return the text of a message's content."""
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts_of(content, where))


def call_of(call: Any, where: str) -> tuple[str, str, str]:
    """Return the id, the name and the arguments or input of a tool call of chat completions.

    Raises:
        RequestRejected: it is not a tool call.
    """
    as_object(call, where)
    kind, field = ("custom", "input") if call.get("type") == "custom" else ("function", "arguments")
    function = as_object(call.get(kind), f"{where}.{kind}")
    name = as_text(function.get("name"), f"{where}.{kind}.name")
    given = function.get(field, "")
    text = json.dumps(given) if isinstance(given, dict) else as_text(given, f"{where}.{kind}.{field}")
    return as_text(call.get("id"), f"{where}.id"), name, text


def arguments_of(text: str) -> dict[str, Any]:
    """Return arguments as an object; arguments that are not a JSON object are its only field `invalid_json`."""
    try:
        read = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {_INVALID: text}
    return read if isinstance(read, dict) else {_INVALID: text}


def function_of(call_id: str, name: str, given: Any) -> dict[str, Any]:
    """Return a tool call of chat completions with arguments from an object."""
    invalid = isinstance(given, dict) and set(given) == {_INVALID} and isinstance(given[_INVALID], str)
    text = given[_INVALID] if invalid else json.dumps(given, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def custom_names(tools: Any) -> set[str]:
    """Return the names of the custom tools, which take a text, among the tools of a chat completion or Responses request."""
    listed = tools if isinstance(tools, list) else []
    custom = [tool for tool in listed if isinstance(tool, dict) and tool.get("type") == "custom"]
    described = [tool.get("custom", tool) for tool in custom]
    names = [one.get("name") for one in described if isinstance(one, dict)]
    return {name for name in names if isinstance(name, str)}


def with_custom_calls(calls: Iterable[Mapping[str, Any]], custom: set[str]) -> list[dict[str, Any]]:
    """Return tool calls in which those of custom tools have their input as a text again.

    Endpoints without custom tools get them as functions with the parameter `input`.
    """
    written = []
    for call in calls:
        call_id, name, text = call_of(call, "tool_calls")
        if call.get("type") != "custom" and name in custom:
            given = arguments_of(text).get("input")
            value = given if isinstance(given, str) else text
            written.append({"id": call_id, "type": "custom", "custom": {"name": name, "input": value}})
        else:
            written.append(dict(call))
    return written


def reasoning_of(message: Mapping[str, Any], dialect: str) -> tuple[str, str] | None:
    """Return the reasoning of a message, as text and in an opaque form for `restore_reasoning`; None if there is none.

    Args:
        message: an assistant's message.
        dialect: the dialect that sends the reasoning.
    """
    name = next((name for name in _REASONING_NAMES if isinstance(message.get(name), str) and message[name]), None)
    carried = [field for other, field in ORIGINALS.items() if other != dialect] + [_DETAILS]
    kept: dict[str, Any] = {field: message[field] for field in carried if message.get(field)}
    if name is None and not kept:
        return None
    if name is not None and name != _REASONING_NAMES[0]:
        kept["name"] = name
    sealed = json.dumps(kept, separators=(",", ":")).encode()
    return message[name] if name else "", _SEAL + base64.b64encode(sealed).decode()


def restore_reasoning(message: dict[str, Any], text: str, opaque: Any) -> bool:
    """Restore the reasoning of a message; return whether `reasoning_of` wrote the opaque form, and not an endpoint."""
    if not isinstance(opaque, str) or not opaque.startswith(_SEAL):
        return False
    try:
        kept = json.loads(base64.b64decode(opaque.removeprefix(_SEAL)))
    except (ValueError, RecursionError):
        return False
    if not isinstance(kept, dict):
        return False
    if text:
        message[kept["name"] if kept.get("name") in _REASONING_NAMES else _REASONING_NAMES[0]] = text
    for field in (*ORIGINALS.values(), _DETAILS):
        if isinstance(kept.get(field), list) and all(isinstance(one, dict) for one in kept[field]):
            message[field] = kept[field]
    return True


def same_turn(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two assistant's messages have the same text and tool calls."""

    def said(message: Mapping[str, Any]) -> tuple[str, list[Any]]:
        calls = [call_of(call, "tool_calls") for call in message.get("tool_calls") or ()]
        return text_of(message.get("content")), [(key, name, arguments_of(given)) for key, name, given in calls]

    return said(one) == said(other)


def base64_image(url: str) -> tuple[str, str] | None:
    """Return the media type and the data of an image in a data URL; None if it is not one.

    Raises:
        RequestRejected: it is a data URL that is not in base64.
    """
    if not url.startswith("data:"):
        return None
    kind, comma, data = url[len("data:") :].partition(",")
    if not comma or not kind.endswith(";base64"):
        raise RequestRejected("an image has a data URL that is not in base64: use `data:image/png;base64,...`")
    return kind.partition(";")[0], data


def completion_of(
    body: Mapping[str, Any], message: dict[str, Any], reason: str, usage: Any, headers: Mapping[str, str] | None
) -> Completion:
    """Return the completion of a reply in another protocol, checked in the form of a chat completion.

    Raises:
        MalformedReply: the message is not valid.
    """
    calls = message.get("tool_calls") or []
    functions = [call for call in calls if call.get("type") != "custom"]
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    choice = {"message": plain | {"tool_calls": functions}, "finish_reason": reason}
    read = read_reply({"id": body.get("id"), "model": body.get("model"), "choices": [choice], "usage": usage}, headers)
    kept = {field: message[field] for field in ORIGINALS.values() if field in message}
    spoken = {name: value for name, value in read.message.items() if name not in _REASONING_NAMES}
    kept |= {name: well_formed(message[name]) for name in _REASONING_NAMES if message.get(name)}
    if len(functions) < len(calls):
        kept["tool_calls"] = calls
    model = body.get("model")
    return replace(
        read, message=spoken | kept, response=body, model=read.model or (model if isinstance(model, str) else "")
    )


def identifier(prefix: str, completion: Completion) -> str:
    """Return the id of a reply: the endpoint's, with the prefix of the protocol."""
    response = completion.response
    given = response.get("id") if isinstance(response, dict) else None
    known = given if isinstance(given, str) and given else new_id("reply")
    return known if known.startswith(prefix) else prefix + known


def event(data: Any, name: str = "") -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
