"""Contents of spans: messages, arguments and results in the JSON form of the GenAI semantic conventions, limited in size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from paragent.messages import reasoning_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MOST_CONTENT", "Conversation", "cut", "tool_names"]

MOST_CONTENT = 64 * 1024
"""Characters of one attribute. Every model call has the conversation so far, so without a limit the spans of an execution would
grow with the square of its length."""
_LONGEST_TEXT = MOST_CONTENT // 4
"""Characters of one text, so that a long observation does not displace all other messages."""


class Conversation:
    """The messages of an execution, read in the order of its steps. Agents can change both, so they may be anything."""

    def __init__(self, trajectory: Mapping[str, Any]) -> None:
        messages, tools = trajectory.get("messages"), trajectory.get("tools")
        self._messages = [_mapping(one) for one in messages] if isinstance(messages, list) else []
        self._tools = tools if isinstance(tools, list) else []
        self._next = 0
        """The position after the reply of the last turn that was read."""
        self._written: dict[int, str] = {}
        """Messages as JSON, by position."""

    def of_execution(self, answer: str | None) -> dict[str, str]:
        """Return the contents of an execution: what the agent was given, its tools and its answer."""
        roles = [message.get("role") for message in self._messages]
        begin = roles.index("assistant") if "assistant" in roles else len(roles)
        given = {"gen_ai.input.messages": self._last_messages(begin)} if begin else {}
        if self._tools:
            given["gen_ai.tool.definitions"] = _limited_list([_dumps(_definition(tool)) for tool in self._tools])
        if answer is not None:
            said = {"role": "assistant", "parts": [_text(answer)], "finish_reason": "stop"}
            given["gen_ai.output.messages"] = _dumps([said])
        return given

    def of_step(self, step: Mapping[str, Any]) -> dict[str, str | int]:
        """Return the contents of the next step."""
        kind = step.get("kind")
        if kind == "model":
            return self._of_model_call(step)
        if kind == "judge":
            return _of_judge_call(step)
        if kind == "tool":
            return dict(self._of_tool_call(step.get("call")))
        if kind == "agent":
            self._take_reply(0)
        return {}

    def _of_model_call(self, step: Mapping[str, Any]) -> dict[str, str | int]:
        """Return the messages of a model call. Older messages are left out if all of them are too long."""
        recorded = step.get("messages")
        sent = min(max(recorded, 0), len(self._messages)) if isinstance(recorded, int) else 0
        given: dict[str, str | int] = {
            "gen_ai.input.messages": self._last_messages(sent),
            "paragent.messages": sent,
        }
        position = None if step.get("error") else self._take_reply(sent)
        if position is not None:
            given["gen_ai.output.messages"] = _output(self._messages[position], step)
        return given

    def _take_reply(self, sent: int) -> int | None:
        """Return the position of the reply of the next turn, for which `sent` messages were sent; None if there is none."""
        positions = range(max(sent, self._next), len(self._messages))
        position = next((one for one in positions if self._messages[one].get("role") == "assistant"), None)
        if position is not None:
            self._next = position + 1
        return position

    def _of_tool_call(self, call: Any) -> dict[str, str]:
        """Return the arguments and the result of a tool call of the last reply that was taken, or of an earlier one."""
        for position in range(self._next - 1, -1, -1):
            for one in _calls(self._messages[position]):
                if one.get("id") == call:
                    return self._call_contents(one, call, position)
        return {}

    def _call_contents(self, made: Mapping[str, Any], call: Any, position: int) -> dict[str, str]:
        arguments = _mapping(made.get("function")).get("arguments")
        given = {"gen_ai.tool.call.arguments": cut(arguments if isinstance(arguments, str) else _dumps(arguments))}
        later = self._messages[position + 1 :]
        result = next((one for one in later if one.get("tool_call_id") == call), None)
        if result is not None:
            given["gen_ai.tool.call.result"] = cut(_plain(result.get("content")))
        return given

    def _last_messages(self, end: int) -> str:
        """Return the last of the first `end` messages as a JSON list, as many as fit."""
        chosen: list[str] = []
        room = MOST_CONTENT
        for position in range(min(end, len(self._messages)) - 1, -1, -1):
            if position not in self._written:
                self._written[position] = _dumps(_message(self._messages[position]))
            room -= len(self._written[position]) + 1
            if room < 0:
                break
            chosen.append(self._written[position])
        return f"[{','.join(reversed(chosen))}]"


def tool_names(trajectory: Mapping[str, Any]) -> set[str]:
    """Return the names of the environment's tools."""
    tools = trajectory.get("tools")
    functions = [_mapping(_mapping(tool).get("function")) for tool in tools] if isinstance(tools, list) else []
    return {function["name"] for function in functions if isinstance(function.get("name"), str)}


def _definition(tool: Any) -> dict[str, Any]:
    """Return the definition of a tool in the form of the conventions, which has no inner `function`."""
    return {"type": _mapping(tool).get("type"), **_mapping(_mapping(tool).get("function"))}


def _of_judge_call(step: Mapping[str, Any]) -> dict[str, str | int]:
    """Return the messages of a judge's call, which are not messages of the conversation."""
    request = step.get("request")
    asked = [_dumps(_message(_mapping(one))) for one in request] if isinstance(request, list) else []
    given: dict[str, str | int] = {"gen_ai.input.messages": _limited_list(asked)}
    choices = _mapping(step.get("response")).get("choices")
    if isinstance(choices, list) and choices:
        given["gen_ai.output.messages"] = _output(_mapping(_mapping(choices[0]).get("message")), step)
    return given


def _output(message: Mapping[str, Any], step: Mapping[str, Any]) -> str:
    """Return the reply of a model call, as the list that the conventions require."""
    return _limited_list([_dumps(_message(message) | {"finish_reason": step.get("finish_reason") or "stop"})])


def cut(text: str, longest: int = MOST_CONTENT) -> str:
    """Return the first characters of a text; a cut text ends with the number of characters that were left out."""
    if len(text) <= longest:
        return text
    note = f"… ({len(text) - longest:,} characters left out)"
    return text[: max(0, longest - len(note))] + note


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of OpenAI's format in the form of the conventions."""
    role = message.get("role")
    parts: list[dict[str, Any]] = []
    if reasoning := reasoning_of(message):
        parts.append({"type": "reasoning", "content": cut(reasoning, _LONGEST_TEXT)})
    content = message.get("content")
    if role == "tool":
        text = cut(_plain(content), _LONGEST_TEXT)
        parts.append({"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text})
    elif isinstance(content, list):
        parts += [_part(one) for one in content]
    elif content is not None:
        parts.append(_text(_plain(content)))
    images = message.get("images")
    for name in images if isinstance(images, list) else ():
        parts.append({"type": "file", "modality": "image", "mime_type": "image/png", "file_id": name})
    for call in _calls(message):
        function = _mapping(call.get("function"))
        arguments = _arguments(function.get("arguments"))
        parts.append({"type": "tool_call", "id": call.get("id"), "name": function.get("name"), "arguments": arguments})
    return {"role": role, "parts": parts}


def _part(part: Any) -> dict[str, Any]:
    """Return a part of a message; of parts that are not text, such as images, only the type."""
    found = _mapping(part)
    if found.get("type") == "text":
        return _text(_plain(found.get("text")))
    return {"type": str(found.get("type") or "unknown")}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": cut(text, _LONGEST_TEXT)}


def _plain(value: Any) -> str:
    """Return a text, or any other value as JSON."""
    return value if isinstance(value, str) else "" if value is None else _dumps(value)


def _arguments(value: Any) -> Any:
    """Return the arguments of a tool call as an object, if the model wrote valid JSON of moderate size, else as text."""
    text = _plain(value)
    if len(text) > _LONGEST_TEXT:
        return cut(text, _LONGEST_TEXT)
    try:
        parsed = json.loads(text, parse_constant=_reject_constant)
        json.dumps(parsed)
    except (ValueError, RecursionError):
        return text
    return parsed


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    return [_mapping(call) for call in calls] if isinstance(calls, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _limited_list(values: Sequence[str]) -> str:
    """Return a JSON list of the first values that fit."""
    chosen: list[str] = []
    room = MOST_CONTENT
    for value in values:
        room -= len(value) + 1
        if room < 0:
            break
        chosen.append(value)
    return f"[{','.join(chosen)}]"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
