"""Parsing of chat completion replies, streamed or not, with one schema.

Servers differ in what they send. Replies are normalised: content given as a list of parts or as a number becomes text; tool
calls may be strings or lack the usual nesting; arguments may be an object; reasoning has several names. Invalid token counts are
treated as unknown. A reply that cannot be parsed raises `MalformedReply`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from paragent._internal.text import read_json, well_formed, well_formed_data
from paragent.messages import REASONING
from paragent.models.base import Completion
from paragent.models.tokens import read_tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

__all__ = ["MalformedReply", "NoReply", "assemble_stream", "read_reply"]

_MOST_TOKENS = 10**12
"""Higher token counts are invalid: no model reads that many tokens, and sums of counts must fit in 64 bits."""
_SHOWN = 200
"""Characters of a malformed reply that the error shows."""
_REQUEST_ID_HEADERS = ("x-request-id", "request-id", "apim-request-id")
"""Where endpoints send their id of a request: OpenAI, vLLM and others; Anthropic; Azure."""
_LONGEST_ID = 200
_REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
"""The names of the reasoning in messages: DeepSeek, SGLang and older versions of vLLM; OpenRouter, Groq, Ollama and newer
versions of vLLM; proxies for Anthropic's models."""
_DETAILS = "reasoning_details"
_DETAIL_TEXTS = ("text", "summary", "data")
_TOKEN_LISTS = ("token_ids", "response_token_ids")
"""Fields of a streamed choice whose lists are joined."""
_CACHED_NAMES = (
    ("prompt_tokens_details", "cached_tokens"),
    ("input_tokens_details", "cached_tokens"),
    ("prompt_cache_hit_tokens",),
    ("cache_read_input_tokens",),
    ("cached_tokens",),
)
"""The names of the cached part of the input tokens: OpenAI and vLLM; Responses API; DeepSeek; Anthropic; Moonshot, Together."""
_REASONING_TOKENS_NAMES = (
    ("completion_tokens_details", "reasoning_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
    ("reasoning_tokens",),
)
"""The names of the reasoning part of the output tokens: OpenAI, DeepSeek and others; Responses API; Perplexity."""


class MalformedReply(ValueError):
    """The reply is not a chat completion. `usage` has its token counts, zeros if there are none.

    Args:
        message: what is wrong.
        usage: the token counts of the reply.
        is_json: whether it is JSON; a web page, for example, is not.
    """

    def __init__(self, message: str, usage: Any = None, *, is_json: bool = True) -> None:
        super().__init__(message)
        self.is_json = is_json
        self.usage = _usage(usage) or {"prompt_tokens": 0, "completion_tokens": 0}


class NoReply(ValueError):
    """There is no complete reply within a time limit; the message says which."""


def _text_of(content: Any) -> str | None:
    """Return the content of a message as text; None if it is empty.

    Raises:
        ValueError: it is neither a text, a number, nor a list of parts.
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
        raise ValueError(f"content is of type {type(content).__name__}")  # noqa: TRY004 - pydantic catches ValueError
    texts = [part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, str | dict)]
    return "".join(well_formed(text) for text in texts if isinstance(text, str)) or None


def _arguments(given: Any) -> str:
    """Return arguments as JSON text. A text is not checked here: the tool reports what is wrong with it."""
    if given is None:
        return "{}"
    return well_formed(given if isinstance(given, str) else json.dumps(given))


def _name(given: Any) -> str:
    """Return a name or an id as text; empty if it is neither text nor an integer."""
    whole = isinstance(given, int) and not isinstance(given, bool)
    return well_formed(str(given)) if isinstance(given, str) or whole else ""


def _listed_calls(given: Any) -> list[Any]:
    """Return tool calls as a list of objects. The list, or each call, may be given as JSON text.

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
    """Return a number of tokens; None if it is invalid."""
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
        """Accept `{"name": ..., "arguments": ...}` without the enclosing `function`, and `function` as a name."""
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
    content: Annotated[str | None, BeforeValidator(_text_of)] = None
    tool_calls: Annotated[list[_Call], BeforeValidator(_listed_calls)] = []
    function_call: Annotated[list[_Call], BeforeValidator(_listed_calls)] = []
    """OpenAI's format before `tool_calls`."""
    reasoning: dict[str, Any] = {}
    """What the model wrote before its answer, by the name of the field."""

    @model_validator(mode="before")
    @classmethod
    def _find_reasoning(cls, message: Any) -> Any:
        return {**message, "reasoning": _reasoning_of(message)} if isinstance(message, dict) else message


def _reasoning_of(message: Any) -> dict[str, Any]:
    """Return what the model wrote before its answer, under the name that the endpoint uses, so that it can be sent back.

    What has a name that endpoints do not accept in requests gets the most common one. `reasoning_details` of OpenRouter is
    returned unchanged. Empty if there is nothing, or nothing that can be read.
    """
    details = message.get(_DETAILS)
    kept: dict[str, Any] = {_DETAILS: well_formed_data(details)} if isinstance(details, list) and details else {}
    for name in _REASONING_NAMES:
        if text := _texts_in(message.get(name)):
            return {name if name in REASONING else REASONING[0]: text, **kept}
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    thoughts = [part.get("thinking") for part in parts if isinstance(part, dict) and part.get("type") == "thinking"]
    text = "".join(map(_texts_in, thoughts))
    return {REASONING[0]: text, **kept} if text else kept


def _texts_in(given: Any) -> str:
    """Return a text, or the texts of a list of parts; empty for everything else."""
    try:
        return _text_of(given) or ""
    except ValueError:
        return ""


class _Choice(BaseModel):
    message: _Message
    finish_reason: Annotated[str, BeforeValidator(lambda given: _name(given) or "stop")] = "stop"


def _usage(given: Any) -> dict[str, int] | None:
    """Return the token counts; None if there are no valid ones. If only one of the two main counts is missing, it is 0."""
    names = ("prompt_tokens", "completion_tokens")
    if not isinstance(given, dict) or all(given.get(name) is None for name in names):
        return None
    counts = {name: _count(given.get(name) or 0) for name in names}
    if None in counts.values():
        return None
    counts["cached_tokens"] = _found_count(given, _CACHED_NAMES)
    counts["reasoning_tokens"] = _found_count(given, _REASONING_TOKENS_NAMES)
    return {name: count for name, count in counts.items() if count is not None}


def _found_count(usage: dict[str, Any], paths: Iterable[tuple[str, ...]]) -> int | None:
    """Return the first valid count at one of the paths; None if there is none."""
    for path in paths:
        found: Any = usage
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        if (count := _count(found)) is not None:
            return count
    return None


def _first(given: Any) -> Any:
    return given[:1] if isinstance(given, list) else given


class _Reply(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1), BeforeValidator(_first)]
    usage: Annotated[dict[str, int] | None, BeforeValidator(_usage)] = None


def read_reply(reply: Any, headers: Mapping[str, str] | None = None) -> Completion:
    """Parse a reply.

    Args:
        reply: the parsed JSON.
        headers: the headers of the response, which may have the id of the request.

    Raises:
        MalformedReply: it cannot be parsed; the message has the reason and the beginning of the reply.
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
    message |= choice.message.reasoning
    named = (headers[name] for name in _REQUEST_ID_HEADERS if headers and headers.get(name))
    request_id = well_formed(next(named, None) or _name(reply.get("id")))[:_LONGEST_ID]
    return Completion(
        message,
        read.usage,
        choice.finish_reason,
        reply,
        request_id,
        model=_name(reply.get("model"))[:_LONGEST_ID],
        tokens=read_tokens(reply),
    )


async def assemble_stream(stream: AsyncIterator[Any]) -> dict[str, Any]:
    """Return a streamed completion in the form of one that was not streamed.

    Args:
        stream: yields the chunks as parsed JSON.

    Raises:
        MalformedReply: a chunk cannot be read, or the stream ended before the answer did.
    """
    assembly = _Assembly()
    async for chunk in stream:
        try:
            assembly.add(chunk)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            shown = str(chunk)[:_SHOWN]
            raise MalformedReply(f"a chunk of the stream cannot be read ({error}): {shown}", assembly.usage) from None
    if not assembly.choice.get("finish_reason"):
        raise MalformedReply("the stream ended before the answer did", assembly.usage)
    return assembly.completion()


class _Assembly:
    """A completion that is put together from the chunks of a stream."""

    def __init__(self) -> None:
        self.usage: Any = None
        self.choice: dict[str, Any] = {}
        self._reply: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant"}
        self._texts: dict[str, list[str]] = {"content": []}
        """The pieces of each text of the message, by name."""
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Any) -> None:
        """Add a chunk."""
        self.usage = chunk.get("usage") or self.usage
        given = {name: value for name, value in chunk.items() if name not in {"choices", "usage", "object"}}
        self._reply |= {name: value for name, value in given.items() if value is not None}
        for choice in (chunk.get("choices") or ())[:1]:
            # Servers that do not stream send `message`.
            delta = choice.get("delta") or choice.get("message") or {}
            rest = {name: value for name, value in choice.items() if name not in {"delta", "message"}}
            for name, value in rest.items():
                self._add_to_choice(name, value)
            self._texts["content"].append(_text_of(delta.get("content")) or "")
            for position, piece in enumerate(_listed_calls(delta.get("tool_calls"))):
                _add_piece(self._calls, piece, position)
            for name, value in delta.items():
                if name not in {"role", "content", "tool_calls"}:
                    self._add_to_message(name, value)

    def _add_to_choice(self, name: str, value: Any) -> None:
        """Add a part of the choice. Token ids and log probabilities come in pieces; of all other parts the last one counts."""
        earlier = self.choice.get(name)
        if name in _TOKEN_LISTS and isinstance(value, list) and isinstance(earlier, list):
            self.choice[name] = earlier + value
        elif name == "logprobs" and isinstance(value, dict) and isinstance(earlier, dict):
            lists = {key: (earlier.get(key) or []) + given for key, given in value.items() if isinstance(given, list)}
            self.choice[name] = {**earlier, **lists}
        elif value not in (None, ""):
            self.choice[name] = value

    def _add_to_message(self, name: str, value: Any) -> None:
        """Add a part of the message that only some servers send, such as the reasoning: texts and lists come in pieces."""
        if isinstance(value, str):
            self._texts.setdefault(name, []).append(value)
        elif isinstance(value, list) and isinstance(earlier := self._message.setdefault(name, []), list):
            for piece in value:
                _add_detail(earlier, piece)
        elif value is not None:
            self._message[name] = value

    def completion(self) -> dict[str, Any]:
        """Return the completion."""
        message = self._message | {name: "".join(pieces) or None for name, pieces in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return {**self._reply, "choices": [{**self.choice, "message": message}], "usage": self.usage}


def _add_detail(earlier: list[Any], piece: Any) -> None:
    """Add an element of a list that is streamed. Pieces of one element have the same `index` and `type`; texts are joined."""
    last = earlier[-1] if earlier else None
    if not isinstance(last, dict) or not isinstance(piece, dict) or _element(last) != _element(piece):
        earlier.append(piece)
    else:
        joined = {name: value for name, value in piece.items() if value is not None}
        for name in _DETAIL_TEXTS:
            if isinstance(piece.get(name), str) and isinstance(last.get(name), str):
                joined[name] = last[name] + piece[name]
        earlier[-1] = {**last, **joined}


def _element(piece: dict[str, Any]) -> Any:
    """Return what identifies the element of a piece; something unique if nothing does."""
    return (piece["index"], piece.get("type")) if isinstance(piece.get("index"), int) else object()


def _add_piece(calls: dict[int, dict[str, Any]], piece: dict[str, Any], position: int) -> None:
    """Add a piece to its tool call. Some servers leave the index out; then it is the piece's position in its chunk."""
    index = piece.get("index")
    index = index if isinstance(index, int) else position
    call = calls.setdefault(index, {"id": "", "function": {"name": "", "arguments": ""}})
    call["id"] = piece.get("id") or call["id"]
    function = piece.get("function") or piece
    if isinstance(function.get("arguments"), dict):
        call["function"]["arguments"] = function["arguments"]
    else:
        call["function"]["arguments"] += function.get("arguments") or ""
    call["function"]["name"] += function.get("name") or ""


def _reason(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field}: {first['msg']}" if field else str(first["msg"])


def _beginning(reply: Any) -> str:
    try:
        text = reply if isinstance(reply, str) else json.dumps(reply)
    except (ValueError, TypeError, RecursionError):
        text = f"a {type(reply).__name__}"
    return well_formed(text)[:_SHOWN]
