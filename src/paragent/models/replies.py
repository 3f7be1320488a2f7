"""Replies of chat completion endpoints: one schema, applied to each reply before anything else sees it.

Servers differ in what they send. What can be read is normalised: content as a list of parts or as a number becomes text, tool
calls may be strings or lack the usual nesting, arguments may be an object. Token counts that are not counts are unknown. A
reply that cannot be read is a `MalformedReply`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from paragent._internal.text import read_json, well_formed
from paragent.models.base import Completion

__all__ = ["MalformedReply", "listed_calls", "read_reply", "text_of"]

_MOST_TOKENS = 10**12
"""Token counts above this are not counts: no model reads a million million tokens, and sums of them must fit in 64 bits."""
_SHOWN = 200
"""Characters of a malformed reply that the error shows."""


class MalformedReply(ValueError):
    """The endpoint's reply is not a chat completion; `usage` has its token counts, zeros where it has none."""

    def __init__(self, message: str, usage: Any = None) -> None:
        super().__init__(message)
        self.usage = _usage(usage) or {"prompt_tokens": 0, "completion_tokens": 0}


def text_of(content: Any) -> str | None:
    """Return the content of a message as text; None if it has none.

    Raises:
        ValueError: it is neither text, nor a number, nor parts of which some may be text.
    """
    if content is None:
        return None
    if isinstance(content, str):
        return well_formed(content)
    if isinstance(content, int | float) and not isinstance(content, bool):
        return str(content)
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise ValueError(f"content is of type {type(content).__name__}")  # noqa: TRY004 - pydantic reads ValueError
    texts = [part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, str | dict)]
    return "".join(well_formed(text) for text in texts if isinstance(text, str)) or None


def _arguments(given: Any) -> str:
    """Return arguments as JSON text; text is passed on as it is, for the tool says what is wrong with it."""
    if given is None:
        return "{}"
    return well_formed(given if isinstance(given, str) else json.dumps(given))


def _name(given: Any) -> str:
    """Return a name or an id as text; what is none is empty."""
    whole = isinstance(given, int) and not isinstance(given, bool)
    return well_formed(str(given)) if isinstance(given, str) or whole else ""


def listed_calls(given: Any) -> list[Any]:
    """Return tool calls as a list of objects; they, or each of them, may be JSON text.

    Raises:
        ValueError: the text is not JSON.
    """
    if isinstance(given, str):
        given = read_json(given) if given.strip() else None
    if not given:
        return []
    calls = given if isinstance(given, list) else [given]
    return [read_json(call) if isinstance(call, str) else call for call in calls]


def _count(given: Any) -> int | None:
    """Return a number of tokens; None if it is not one."""
    if isinstance(given, str) and given.isdecimal() and len(given) < 20:
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= _MOST_TOKENS:
        return None
    return int(given)


class _Function(BaseModel):
    name: Annotated[str, BeforeValidator(_name)] = ""
    arguments: Annotated[str, BeforeValidator(_arguments)] = "{}"


class _Call(BaseModel):
    id: Annotated[str, BeforeValidator(_name)] = ""
    function: _Function

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, call: Any) -> Any:
        """Accept `{"name": ..., "arguments": ...}` without the object `function` around it, and `function` as a name."""
        if not isinstance(call, dict):
            return call
        function = call.get("function")
        if function is None and "name" not in call:
            raise ValueError("a tool call without a function")
        if not isinstance(function, dict):
            name = function if isinstance(function, str) else call.get("name")
            function = {"name": name, "arguments": call.get("arguments", call.get("parameters"))}
        return {"id": call.get("id"), "function": function}


class _Message(BaseModel):
    content: Annotated[str | None, BeforeValidator(text_of)] = None
    tool_calls: Annotated[list[_Call], BeforeValidator(listed_calls)] = []
    function_call: Annotated[list[_Call], BeforeValidator(listed_calls)] = []
    """The form that OpenAI used before `tool_calls`."""


class _Choice(BaseModel):
    message: _Message
    finish_reason: Annotated[str, BeforeValidator(lambda given: _name(given) or "stop")] = "stop"


def _usage(given: Any) -> dict[str, int] | None:
    """Return the token counts; None where the endpoint gave none that can be read. A count left out beside another is 0."""
    names = ("prompt_tokens", "completion_tokens")
    if not isinstance(given, dict) or all(given.get(name) is None for name in names):
        return None
    counts = {name: _count(given.get(name) or 0) for name in names}
    return None if None in counts.values() else {name: count or 0 for name, count in counts.items()}


def _first(given: Any) -> Any:
    return given[:1] if isinstance(given, list) else given


class _Reply(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1), BeforeValidator(_first)]
    usage: Annotated[dict[str, int] | None, BeforeValidator(_usage)] = None


def read_reply(reply: Any) -> Completion:
    """Return what a reply says.

    Raises:
        MalformedReply: it cannot be read; the message has its beginning and the reason.
    """
    try:
        read = _Reply.model_validate(reply)
    except (ValidationError, RecursionError) as error:
        usage = reply.get("usage") if isinstance(reply, dict) else None
        raise MalformedReply(f"not a chat completion ({_reason(error)}): {_beginning(reply)}", usage) from None
    [choice] = read.choices
    message: dict[str, Any] = {"role": "assistant", "content": choice.message.content}
    if calls := choice.message.tool_calls or choice.message.function_call:
        message["tool_calls"] = [{"id": call.id, "type": "function", "function": dict(call.function)} for call in calls]
    return Completion(message, read.usage, choice.finish_reason)


def _reason(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def _beginning(reply: Any) -> str:
    try:
        text = reply if isinstance(reply, str) else json.dumps(reply)
    except (ValueError, TypeError, RecursionError):
        text = f"a {type(reply).__name__}"
    return well_formed(text)[:_SHOWN]
