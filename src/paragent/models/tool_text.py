"""Tool calls as text, for models and servers without tool support. No I/O.

`as_text` describes the tools in the system message and turns calls and results into text. `calls_in` parses the calls that a
model wrote, in these common formats:

- Hermes, Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
- Qwen Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`
- Llama 3: `<|python_tag|>{"name": ..., "parameters": {...}}`, `<function=name>{...}</function>`, `[name(key=value)]`
- Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`
- a message that is one JSON object with a tool's name and arguments, optionally in a code block
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paragent._internal.text import well_formed_data
from paragent.messages import REASONING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paragent.models.base import Completion

__all__ = ["as_text", "calls_in", "with_calls"]

_RULES = """You can call tools. To call one, write a block of this form:
<tool_call>
{"name": "the tool", "arguments": {"an argument": "its value"}}
</tool_call>
Write one block for each call and end your message after the last. The results follow in the next message, in the same order,
each between <tool_response> and </tool_response>. Give your final answer in a message without such a block.

The tools, with a JSON schema of the arguments of each:
"""
_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?(?:</parameter>|\Z)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
_MARKS = ("<|python_tag|>", "[TOOL_CALLS]")
_FENCE = re.compile(r"\A```\w*\n(.*)\n```\Z", re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)

ToolCall = tuple[str, str]
"""The name of a tool and its arguments as JSON text."""


def calls_in(text: str, tools: Sequence[dict[str, Any]]) -> list[ToolCall]:
    """Return the tool calls in the text of a message.

    A block in one of the formats with markers is always a call, even of an unknown tool, so that the model can be told what
    is wrong. A message without markers is a call only if it consists of nothing but calls of known tools.
    """
    text = _THOUGHTS.sub("", text).partition("<tool_response>")[0].strip()
    marked = [call for block in _BLOCK.findall(text) for call in _in_block(block)]
    if marked:
        return marked
    if functions := list(_functions(text)):
        return functions
    for mark in _MARKS:
        if mark in text:
            return _objects(text.partition(mark)[2].strip())
    known = {tool["function"]["name"] for tool in tools}
    fence = _FENCE.match(text)
    bare = (fence[1] if fence else text).strip()
    calls = _objects(bare) if bare.startswith(("{", "[{")) else _expressions(bare)
    return calls if all(name in known for name, _ in calls) else []


def with_calls(completion: Completion, tools: Sequence[dict[str, Any]]) -> Completion:
    """Return the completion with the calls of its text as `tool_calls`; the text before the first call stays the content."""
    text = completion.message.get("content") or ""
    calls = calls_in(text, tools)
    if not calls:
        return completion
    starts = [text.find(mark) for mark in ("<tool_call>", "<function=", *_MARKS) if mark in text]
    said = text[: min(starts)].strip() if starts else ""
    made = [{"id": "", "type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
    message = {**completion.message, "content": said or None, "tool_calls": made}
    return replace(completion, message=message, finish_reason="tool_calls")


def as_text(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the conversation with tools, calls and results as text; consecutive user messages are joined."""
    described = _RULES + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    given = list(messages)
    if given and given[0].get("role") == "system":
        sent = [{**given.pop(0), "content": f"{messages[0]['content']}\n\n{described}"}]
    else:
        sent = [{"role": "system", "content": described}]
    for message in given:
        plain = _plain(message)
        if plain["role"] == "user" and sent[-1]["role"] == "user":
            sent[-1] = {"role": "user", "content": _joined(sent[-1]["content"], plain["content"])}
        else:
            sent.append(plain)
    return sent


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    blocks = [message.get("content") or "", *(_block(call["function"]) for call in message["tool_calls"])]
    reasoning = {name: message[name] for name in REASONING if name in message}
    return {"role": "assistant", "content": "\n".join(block for block in blocks if block), **reasoning}


def _block(function: dict[str, Any]) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = function["arguments"]
    written = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n{second}"
    parts = [[{"type": "text", "text": one}] if isinstance(one, str) else list(one or ()) for one in (first, second)]
    return parts[0] + parts[1]


def _in_block(block: str) -> list[ToolCall]:
    if functions := list(_functions(block)):
        return functions
    if calls := _objects(block.strip()):
        return calls
    name = _NAME.search(block)
    return [(name[1] if name else "", block.strip())]  # the environment reports to the model what is wrong


def _functions(text: str) -> Iterator[ToolCall]:
    """Yield the calls in the format `<function=name>...</function>`, with parameters in tags or as one JSON object."""
    for name, body in _FUNCTION.findall(text):
        if parameters := _PARAMETER.findall(body):
            yield name, json.dumps({key: _value(value) for key, value in parameters})
        else:
            yield name, body.strip() or "{}"


def _value(text: str) -> Any:
    """Return the value of a parameter: parsed JSON if it is valid JSON, otherwise the text."""
    try:
        return well_formed_data(json.loads(text))
    except ValueError:
        return text


def _objects(text: str) -> list[ToolCall]:
    """Return the calls written as JSON objects, consecutive or in a list; empty if the text has anything else."""
    calls: list[ToolCall] = []
    while text := text.lstrip(" \t\r\n;,"):
        try:
            found, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return []
        text = text[end:].removeprefix("</s>").removeprefix("<|eom_id|>").removeprefix("<|eot_id|>")
        for one in found if isinstance(found, list) else [found]:
            if (call := _call(one)) is None:
                return []
            calls.append(call)
    return calls


def _call(given: Any) -> ToolCall | None:
    if isinstance(given, dict) and isinstance(given.get("function"), dict):
        given = given["function"]
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return None
    arguments = given.get("arguments", given.get("parameters"))
    if isinstance(arguments, str):
        return given["name"], arguments
    return (given["name"], json.dumps(well_formed_data(arguments))) if isinstance(arguments, dict) else None


def _expressions(text: str) -> list[ToolCall]:
    """Return the calls in the format `[name(key=value), ...]` of Llama 3.2; empty if the text has anything else."""
    if not (text.startswith("[") and text.endswith("]")):
        return []
    try:
        listed = ast.parse(text, mode="eval").body
        nodes = listed.elts if isinstance(listed, ast.List) else []
        return [_expression(node) for node in nodes]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return []


def _expression(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise ValueError("not a call with named arguments")
    given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return node.func.id, json.dumps(well_formed_data(given))
