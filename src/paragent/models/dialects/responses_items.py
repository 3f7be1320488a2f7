"""The items of the Responses API as messages of chat completions, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.errors import RequestRejected
from paragent.models.dialects.base import (
    ORIGINALS,
    as_list,
    as_object,
    as_text,
    call_of,
    joined,
    kind_of,
    parts_of,
    reasoning_of,
    restore_reasoning,
    same_turn,
    text_of,
)
from paragent.models.dialects.chat import tool_result_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["read_items", "read_turn", "write_message", "write_turn"]

_ORIGINAL = ORIGINALS["responses"]
_OUTPUT_ITEMS = {"function_call_output", "custom_tool_call_output"}
_ID_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}


def read_items(items: list[Any]) -> list[dict[str, Any]]:
    """Return items as messages. Adjacent items that a model wrote are one message."""
    messages: list[dict[str, Any]] = []
    turn: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        where = f"input[{number}]"
        kind = kind_of(item, where, "message")
        role = item.get("role")
        if kind == "item_reference":
            raise RequestRejected(f"`{where}` refers to a stored item, and none are stored here: send the item itself")
        if (kind == "message" and role == "assistant") or (kind != "message" and not str(kind).endswith("_output")):
            turn.append(item)
            continue
        if turn:
            messages.append(read_turn(turn, f"input[{number - len(turn)}:{number}]"))
            turn = []
        messages.append(_read_item(item, kind, where))
    if turn:
        messages.append(read_turn(turn, f"input[{len(items) - len(turn)}:]"))
    return messages


def _read_item(item: dict[str, Any], kind: Any, where: str) -> dict[str, Any]:
    """Return a message that is not the model's."""
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "system", "developer"):
            raise RequestRejected(f"`{where}.role` is {role!r}; use user, assistant, system or developer")
        return {"role": role, "content": joined(_read_parts(item.get("content"), f"{where}.content"))}
    call_id = as_text(item.get("call_id") or item.get("id"), f"{where}.call_id")
    if kind in _OUTPUT_ITEMS:
        content = joined(_read_parts(item.get("output"), f"{where}.output"))
    else:
        content = [{"type": "responses", "responses": item}]
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _read_parts(content: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return parts_of(content, where)
    return [_read_part(part, f"{where}[{number}]") for number, part in enumerate(as_list(content, where))]


def _read_part(part: Any, where: str) -> dict[str, Any]:
    kind = kind_of(part, where)
    if kind in {"input_text", "output_text", "text", "refusal"}:
        return {"type": "text", "text": as_text(part.get("refusal" if kind == "refusal" else "text"), f"{where}.text")}
    if kind == "input_image" and part.get("image_url"):
        image = {"url": as_text(part["image_url"], f"{where}.image_url")}
        if part.get("detail") not in (None, "auto"):
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image}
    if kind == "input_file" and not part.get("file_url"):
        return {
            "type": "file",
            "file": {name: part[name] for name in ("file_data", "file_id", "filename") if part.get(name)},
        }
    return {"type": "responses", "responses": part}


def read_turn(items: Sequence[dict[str, Any]], where: str) -> dict[str, Any]:
    """Return what a model wrote as one message; the items themselves are part of it if a message cannot express them."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    texts, calls, thoughts = [], [], []
    for item in items:
        kind = item.get("type") or "message"
        if kind == "message":
            texts += [text_of(_read_parts(item.get("content"), f"{where}.content"))]
        elif kind == "function_call":
            call = {"name": as_text(item.get("name"), f"{where}.name"), "arguments": item.get("arguments") or "{}"}
            as_text(call["arguments"], f"{where}.arguments")
            calls.append({"id": as_text(item.get("call_id"), f"{where}.call_id"), "type": "function", "function": call})
        elif kind == "custom_tool_call":
            custom = {name: as_text(item.get(name), f"{where}.{name}") for name in ("name", "input")}
            calls.append({"id": as_text(item.get("call_id"), f"{where}.call_id"), "type": "custom", "custom": custom})
        elif kind == "reasoning":
            text = _thoughts(item, where)
            if not restore_reasoning(message, text, item.get("encrypted_content")) and text:
                thoughts.append(text)
    message["content"] = "".join(texts) or None
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "\n\n".join(thoughts)
    if _plain(write_turn(message)) != _plain(items):
        message[_ORIGINAL] = list(items)
    return message


def _thoughts(item: dict[str, Any], where: str) -> str:
    """Return the text of a reasoning item: its content or, if there is none, its summary."""
    for name in ("content", "summary"):
        parts = as_list(item.get(name), f"{where}.{name}")
        texts = [as_object(part, f"{where}.{name}").get("text") for part in parts]
        if text := "\n\n".join(text for text in texts if isinstance(text, str) and text):
            return text
    return ""


def _plain(items: Sequence[dict[str, Any]]) -> list[Any]:
    """Return items without what their content does not depend on: ids of messages and calls, the state, empty fields."""
    plain: list[Any] = []
    for item in items:
        kind = item.get("type") or "message"
        dropped = {"status", "id"} if kind != "reasoning" else {"status", "id"} if _own_seal(item) else {"status"}
        kept = {name: value for name, value in item.items() if value is not None and name not in dropped}
        if kind == "message":
            content = item.get("content")
            kept |= {"type": kind, "content": text_of(_read_parts(content, "content"))}
            kept["refused"] = isinstance(content, list) and any(part.get("type") == "refusal" for part in content)
        plain.append(kept)
    return plain


def _own_seal(item: Mapping[str, Any]) -> bool:
    return restore_reasoning({}, "", item.get("encrypted_content"))


def write_message(message: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Return a message as items; `number` is its place in the request."""
    role, where = message["role"], f"messages[{number}].content"
    if role == "assistant":
        return write_turn(message)
    parts = parts_of(message.get("content"), where)
    if role == "function":
        raise RequestRejected(f"`messages[{number}].role` is 'function', which this endpoint does not have: use 'tool'")
    if role != "tool":
        content = message["content"] if isinstance(message.get("content"), str) else [_write_part(one) for one in parts]
        return [{"type": "message", "role": role, "content": content}]
    if len(parts) == 1 and parts[0]["type"] == "responses" and kind_of(parts[0].get("responses"), where):
        return [parts[0]["responses"]]
    text = tool_result_text(message)
    output: Any = text
    if isinstance(message.get("content"), list):
        output = [_write_part(part) for part in parts]
        if text != text_of(parts):  # an error, which the text must say
            output = [{"type": "input_text", "text": "Error:"}, *output]
    return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": output}]


def _write_part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part["type"]
    if kind in {"text", "refusal"}:
        return {"type": "input_text", "text": part[kind]}
    if kind == "image_url":
        image = part["image_url"]
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
    if kind == "file":
        return {"type": "input_file", **as_object(part.get("file"), "content.file")}
    if kind == "responses":
        return as_object(part.get("responses"), "content")
    raise RequestRejected(f"content of the type {kind!r} is not supported by the Responses API")


def write_turn(message: Mapping[str, Any], response_id: str = "") -> list[dict[str, Any]]:
    """Return an assistant's message as items; those of a response, unlike those of a request, have ids."""
    original = message.get(_ORIGINAL)
    if isinstance(original, list) and same_turn(message, read_turn(original, _ORIGINAL)):
        return original
    items: list[dict[str, Any]] = []
    if reasoning := reasoning_of(message, "responses"):
        text, opaque = reasoning
        summary = [{"type": "summary_text", "text": text}] if text else []
        items.append({"type": "reasoning", "summary": summary, "encrypted_content": opaque})
    if text := text_of(message.get("content")):
        content = [{"type": "output_text", "text": text, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "content": content})
    for call in message.get("tool_calls") or ():
        call_id, name, given = call_of(call, "tool_calls")
        if call.get("type") == "custom":
            items.append({"type": "custom_tool_call", "call_id": call_id, "name": name, "input": given})
        else:
            items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": given})
    for number, item in enumerate(items if response_id else ()):
        item["id"] = f"{_ID_PREFIXES[item['type']]}_{response_id}_{number}"
        item["status"] = "completed"
    return items
