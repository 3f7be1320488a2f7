"""Conversations with pictures: kept with the names of files, sent with what is in them.

A message has the names of the pictures that a model is shown with it under `pictures`, and of those that are only kept under
`kept`. Both are our own; `developed` makes OpenAI's form of the first.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["developed", "pictures_in"]

_OWN = {"pictures", "kept"}


def pictures_in(message: dict[str, Any]) -> list[str]:
    """Return the names of all pictures of a message, those first that the model is shown."""
    return [*message.get("pictures", ()), *message.get("kept", ())]


def developed(
    messages: Sequence[dict[str, Any]], read: Callable[[str], bytes], shown: int | None = None
) -> list[dict[str, Any]]:
    """Return the conversation as a model is sent it.

    A tool's message may only have text, so the pictures of a turn follow its results as a message of the user.

    Args:
        messages: the conversation as it is kept.
        read: returns the PNG of a name.
        shown: only so many of the last pictures; None: all.
    """
    named = sum(len(message.get("pictures", ())) for message in messages)
    passing = 0 if shown is None else max(0, named - shown)
    sent: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for message in messages:
        if waiting and message.get("role") != "tool":
            sent.append({"role": "user", "content": waiting})
            waiting = []
        plain = {name: value for name, value in message.items() if name not in _OWN}
        names = message.get("pictures", [])
        parts = [_picture(read(name)) for name in names[passing:]]
        passing = max(0, passing - len(names))
        if message.get("role") == "tool":
            waiting += parts
        elif parts:
            plain["content"] = [{"type": "text", "text": str(message.get("content") or "")}, *parts]
        sent.append(plain)
    if waiting:
        sent.append({"role": "user", "content": waiting})
    return sent


def _picture(png: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(png).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
