"""The content blocks of Anthropic's Messages API as messages of chat completions, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.errors import RequestRejected
from paragent.models.dialects.base import (
    ORIGINALS,
    arguments_of,
    as_list,
    as_object,
    as_text,
    base64_image,
    call_of,
    function_of,
    joined,
    parts_of,
    reasoning_of,
    restore_reasoning,
    same_turn,
    text_of,
)
from paragent.models.dialects.chat import function_call

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "read_parts",
    "read_turn",
    "read_user",
    "without_foreign_thinking",
    "write_parts",
    "write_tool_result",
    "write_turn",
]

_ORIGINAL = ORIGINALS["anthropic"]


def _blocks(content: Any, where: str) -> list[dict[str, Any]]:
    """Return content as blocks, without empty fields and marks of prompt caching."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    given = as_list(content, where)
    return [
        {
            name: value
            for name, value in as_object(block, f"{where}[{number}]").items()
            if value is not None and name != "cache_control"
        }
        for number, block in enumerate(given)
    ]


def read_parts(content: Any, where: str) -> list[dict[str, Any]]:
    """Return content as parts of a chat completion message."""
    return [_read_part(block, f"{where}[{number}]") for number, block in enumerate(_blocks(content, where))]


def _read_part(block: dict[str, Any], where: str) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": as_text(block.get("text"), f"{where}.text")}
    source = block.get("source")
    if kind == "image" and isinstance(source, dict) and source.get("type") in ("base64", "url"):
        if source["type"] == "url":
            url = as_text(source.get("url"), f"{where}.source.url")
        else:
            media = as_text(source.get("media_type"), f"{where}.source.media_type")
            url = f"data:{media};base64,{as_text(source.get('data'), f'{where}.source.data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "anthropic", "anthropic": block}


def read_user(content: Any, where: str) -> list[dict[str, Any]]:
    """Return a user's message as messages: results of tools are messages of their own."""
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    blocks = _blocks(content, where)
    for number, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            parts.append(_read_part(block, f"{where}[{number}]"))
            continue
        if parts:
            messages.append({"role": "user", "content": joined(parts)})
            parts = []
        call_id = as_text(block.get("tool_use_id"), f"{where}[{number}].tool_use_id")
        result = joined(read_parts(block.get("content"), f"{where}[{number}].content"))
        failed = {"is_error": True} if block.get("is_error") else {}
        messages.append({"role": "tool", "tool_call_id": call_id, "content": result, **failed})
    if parts or not blocks:
        messages.append({"role": "user", "content": joined(parts)})
    return messages


def read_turn(content: Any, where: str) -> dict[str, Any]:
    """Return what a model wrote as a message; the blocks themselves are part of it if a message cannot express them."""
    blocks = _blocks(content, where)
    message: dict[str, Any] = {"role": "assistant", "content": None}
    texts, calls, thoughts = [], [], []
    for number, block in enumerate(blocks):
        kind, place = block.get("type"), f"{where}[{number}]"
        if kind == "text":
            texts.append(as_text(block.get("text"), f"{place}.text"))
        elif kind == "tool_use":
            call_id, name = (as_text(block.get(field), f"{place}.{field}") for field in ("id", "name"))
            calls.append(function_of(call_id, name, as_object(block.get("input", {}), f"{place}.input")))
        elif kind == "thinking":
            text = as_text(block.get("thinking"), f"{place}.thinking")
            if not restore_reasoning(message, text, block.get("signature")) and text:
                thoughts.append(text)
    message["content"] = "".join(texts) or None
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "\n\n".join(thoughts)
    if write_turn(message) != blocks:
        message[_ORIGINAL] = blocks
    return message


def write_turn(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an assistant's message as blocks."""
    original = message.get(_ORIGINAL)
    if isinstance(original, list) and same_turn(message, read_turn(original, _ORIGINAL)):
        return original
    blocks: list[dict[str, Any]] = []
    if reasoning := reasoning_of(message, "anthropic"):
        text, opaque = reasoning
        blocks.append({"type": "thinking", "thinking": text, "signature": opaque})
    if text := text_of(message.get("content")):
        blocks.append({"type": "text", "text": text})
    for call in message.get("tool_calls") or ():
        call_id, name, given = call_of(function_call(call), "tool_calls")
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments_of(given)})
    return blocks


def write_parts(content: Any, where: str) -> list[dict[str, Any]]:
    """Return the content of a chat completion message as blocks."""
    return [block for part in parts_of(content, where) for block in _write_part(part, where)]


def _write_part(part: dict[str, Any], where: str) -> list[dict[str, Any]]:
    kind = part["type"]
    if kind in {"text", "refusal"}:
        return [{"type": "text", "text": part[kind]}] if part[kind] else []  # empty blocks are rejected
    if kind == "image_url":
        url = part["image_url"]["url"]
        if found := base64_image(url):
            return [{"type": "image", "source": {"type": "base64", "media_type": found[0], "data": found[1]}}]
        return [{"type": "image", "source": {"type": "url", "url": url}}]
    if kind == "anthropic":
        return [as_object(part.get("anthropic"), where)]
    raise RequestRejected(f"`{where}` has content of the type {kind!r}, which Anthropic's Messages API does not have")


def write_tool_result(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the message of a tool as a block."""
    content = message.get("content")
    written = content if isinstance(content, str) else write_parts(content, where)
    failed = {"is_error": True} if message.get("is_error") else {}
    return {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": written, **failed}


def without_foreign_thinking(messages: Any) -> Any:
    """Return the messages of a request without thinking that no endpoint signed."""
    if not isinstance(messages, list):
        return messages
    kept = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            blocks = [block for block in content if not _is_foreign(block)]
            if len(blocks) < len(content):
                message = {**message, "content": blocks}
        kept.append(message)
    return kept


def _is_foreign(block: Any) -> bool:
    if not isinstance(block, dict) or block.get("type") != "thinking":
        return False
    return not block.get("signature") or restore_reasoning({}, "", block["signature"])
