"""Streamed replies, put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.models.replies import MalformedReply, listed_calls, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["assemble"]


async def assemble(stream: AsyncIterator[Any]) -> dict[str, Any]:
    """Return the completion whose chunks, as parsed JSON, `stream` yields, in the form of one that was not streamed.

    Raises:
        MalformedReply: a chunk cannot be read, or the stream ended before the answer did.
    """
    text: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    usage: Any = None
    finish_reason = None
    async for chunk in stream:
        try:
            usage = chunk.get("usage") or usage
            for choice in (chunk.get("choices") or ())[:1]:
                finish_reason = choice.get("finish_reason") or finish_reason
                delta = (
                    choice.get("delta") or choice.get("message") or {}
                )  # a server that does not stream sends the latter
                text.append(text_of(delta.get("content")) or "")
                for position, piece in enumerate(listed_calls(delta.get("tool_calls"))):
                    _add(calls, piece, position)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise MalformedReply(f"a chunk of the stream cannot be read ({error}): {str(chunk)[:200]}", usage) from None
    if finish_reason is None:
        raise MalformedReply("the stream was cut before the answer ended", usage)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text) or None}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage}


def _add(calls: dict[int, dict[str, Any]], piece: dict[str, Any], position: int) -> None:
    """Add a piece to its call; some servers leave the index out, which then is the piece's position in its chunk."""
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
