"""The server-sent events of a response of the Responses API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.models.dialects.base import event

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["events"]


def events(response: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the events of a response that is complete: each text is one delta."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "completed_at": None}
    begun["incomplete_details"] = begun["error"] = None
    status = response.get("status")
    end = f"response.{status if status in ('incomplete', 'failed') else 'completed'}"
    numbered = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        *(one for index, item in enumerate(response.get("output") or ()) for one in _item(item, index)),
        (end, {"response": response}),
    ]
    for number, (kind, data) in enumerate(numbered):
        yield event({"type": kind, "sequence_number": number, **data}, kind)


def _item(item: Mapping[str, Any], index: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of an item of the output. Items of other types are sent whole."""
    kind = item.get("type")
    place = {"item_id": item.get("id"), "output_index": index}
    empty = dict(item)
    inner: Iterator[tuple[str, dict[str, Any]]] = iter(())
    if kind == "message":
        empty |= {"content": [], "status": "in_progress"}
        inner = _message(item, place)
    elif kind == "reasoning":
        empty |= {"summary": [], **({"content": []} if item.get("content") else {})}
        inner = _reasoning(item, place)
    elif kind == "function_call":
        empty |= {"arguments": "", "status": "in_progress"}
        inner = _text(
            "response.function_call_arguments", place, "arguments", item.get("arguments") or "", name=item.get("name")
        )
    elif kind == "custom_tool_call":
        empty |= {"input": ""}
        inner = _text("response.custom_tool_call_input", place, "input", item.get("input") or "")
    yield "response.output_item.added", {"output_index": index, "item": empty}
    yield from inner
    yield "response.output_item.done", {"output_index": index, "item": item}


def _message(item: Mapping[str, Any], place: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, part in enumerate(item.get("content") or ()):
        where = place | {"content_index": number}
        name, kind = ("refusal", "refusal") if part.get("type") == "refusal" else ("text", "output_text")
        extra = {} if name == "refusal" else {"logprobs": part.get("logprobs") or []}
        yield "response.content_part.added", {**where, "part": {**part, name: ""}}
        yield from _text(f"response.{kind}", where, name, part.get(name) or "", **extra)
        yield "response.content_part.done", {**where, "part": part}


def _reasoning(item: Mapping[str, Any], place: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, part in enumerate(item.get("summary") or ()):
        where = place | {"summary_index": number}
        yield "response.reasoning_summary_part.added", {**where, "part": {**part, "text": ""}}
        yield from _text("response.reasoning_summary_text", where, "text", part.get("text") or "")
        yield "response.reasoning_summary_part.done", {**where, "part": part}
    for number, part in enumerate(item.get("content") or ()):
        where = place | {"content_index": number}
        yield "response.content_part.added", {**where, "part": {**part, "text": ""}}
        yield from _text("response.reasoning_text", where, "text", part.get("text") or "")
        yield "response.content_part.done", {**where, "part": part}


def _text(
    kind: str, where: dict[str, Any], field: str, text: str, **extra: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the one delta of a text, and its end."""
    if text:
        yield f"{kind}.delta", {**where, "delta": text, **{key: extra[key] for key in extra if key == "logprobs"}}
    yield f"{kind}.done", {**where, field: text, **extra}
