"""A message between agents."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent._internal.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ActionModel", "Msg", "images_in", "with_images"]


@dataclass(slots=True)
class Msg:
    """One message: who says it, in which role, and what.

    Fields are read as attributes (`msg.content`) or as items (`msg["content"]`). Two messages are equal when they say
    the same thing; id and time of creation do not count.
    """

    name: str
    content: Any = None
    role: str = "assistant"
    metadata: dict[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: new_id("msg"), compare=False)
    timestamp: float = field(default_factory=time.time, compare=False)

    def __getitem__(self, key: str) -> Any:
        if key not in self.__dataclass_fields__:
            raise KeyError(key)
        return getattr(self, key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the field called `key`, or `default` where there is none."""
        return getattr(self, key) if key in self.__dataclass_fields__ else default


@dataclass(slots=True)
class ActionModel:
    """A decision: call a tool with parameters, or, without a tool, an answer in `policy_info`."""

    tool_name: str | None = None
    tool_call_id: str | None = None
    agent_name: str | None = None
    action_name: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    policy_info: Any = None


_OWN = {"images", "kept"}


def images_in(message: dict[str, Any]) -> list[str]:
    """Return the names of all pictures of a message, those first that the model is shown."""
    return [*message.get("images", ()), *message.get("kept", ())]


def with_images(
    messages: Sequence[dict[str, Any]], read: Callable[[str], bytes], shown: int | None = None
) -> list[dict[str, Any]]:
    """Return the conversation as a model is sent it.

    A tool's message may only have text, so the pictures of a turn follow its results as a message of the user.

    Args:
        messages: the conversation as it is kept.
        read: returns the PNG of a name.
        shown: only so many of the last pictures; None: all.
    """
    named = sum(len(message.get("images", ())) for message in messages)
    passing = 0 if shown is None else max(0, named - shown)
    sent: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for message in messages:
        if waiting and message.get("role") != "tool":
            sent.append({"role": "user", "content": waiting})
            waiting = []
        plain = {name: value for name, value in message.items() if name not in _OWN}
        names = message.get("images", [])
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
