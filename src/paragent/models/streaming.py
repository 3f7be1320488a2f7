"""A streamed answer, put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["assemble"]


async def assemble(stream: AsyncIterator[Any]) -> dict[str, Any]:
    """Return the completion whose pieces `stream` yields, in the form of one that was not streamed.

    Raises:
        ValueError: the stream ended before the answer did.
    """
    text: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    usage: Any = None
    finish_reason = None
    async for chunk in stream:
        if chunk.usage is not None:
            usage = chunk.usage.model_dump()
        for choice in chunk.choices[:1]:
            finish_reason = choice.finish_reason or finish_reason
            if choice.delta.content:
                text.append(choice.delta.content)
            for piece in choice.delta.tool_calls or ():
                _add(calls, piece)
    if finish_reason is None:
        raise ValueError("the stream was cut before the answer ended")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text) or None}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage}


def _add(calls: dict[int, dict[str, Any]], piece: Any) -> None:
    call = calls.setdefault(piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call["id"] = piece.id or call["id"]
    if piece.function:
        call["function"]["name"] += piece.function.name or ""
        call["function"]["arguments"] += piece.function.arguments or ""
