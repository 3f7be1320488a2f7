"""Messages between agents, and conversations with images as model endpoints expect them."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent._internal.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "REASONING",
    "ActionModel",
    "Msg",
    "image_type",
    "images_in",
    "reasoning_of",
    "with_images",
    "without_reasoning",
]

REASONING = ("reasoning_content", "reasoning", "reasoning_details")
"""The key of a message with what a model wrote before its answer."""


@dataclass(slots=True)
class Msg:
    """One message: its sender, role and content.

    Fields are read as attributes (`msg.content`) or as items (`msg["content"]`). Two messages are equal if all fields but the
    id and the timestamp are equal.
    """

    name: str
    """Who sent it."""
    content: Any = None
    """What is said: a text or any other value."""
    role: str = "assistant"
    """The role in a conversation: "user", "assistant" or "system"."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Anything else that belongs to the message."""
    id: str = field(default_factory=lambda: new_id("msg"), compare=False)
    """Unique; made at random."""
    timestamp: float = field(default_factory=time.time, compare=False)
    """When the message was made, in seconds since the epoch."""

    def __getitem__(self, key: str) -> Any:
        if key not in self.__dataclass_fields__:
            raise KeyError(key)
        return getattr(self, key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the field called `key`, or `default` if there is none."""
        return getattr(self, key) if key in self.__dataclass_fields__ else default


@dataclass(slots=True)
class ActionModel:
    """An action of an agent: a tool call with parameters, or, without a tool, an answer in `policy_info`."""

    tool_name: str | None = None
    """The tool to call."""
    tool_call_id: str | None = None
    """The id that the model gave the call."""
    agent_name: str | None = None
    """The agent that acts."""
    action_name: str | None = None
    """The action of the tool, if it has several."""
    params: dict[str, Any] = field(default_factory=dict)
    """The arguments of the action."""
    policy_info: Any = None
    """The answer, or what the agent says about its decision. It is the `answer` of the task."""


_IMAGE_KEYS = {"images", "kept"}
"""Keys of a message that name images: those that the model is shown, and those that are only stored."""


def images_in(message: dict[str, Any]) -> list[str]:
    """Return the names of all images of a message; those that the model is shown come first."""
    return [*message.get("images", ()), *message.get("kept", ())]


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return what the model wrote before the answer of a message; empty if there is nothing."""
    texts = (message.get(name) for name in REASONING)
    return next((text for text in texts if isinstance(text, str) and text), "")


def without_reasoning(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation without what models wrote before their answers."""
    return [
        {name: value for name, value in message.items() if name not in REASONING}
        if isinstance(message, dict) and any(name in message for name in REASONING)
        else message
        for message in messages
    ]


def with_images(
    messages: Sequence[dict[str, Any]], read: Callable[[str], bytes], shown: int | None = None
) -> list[dict[str, Any]]:
    """Return a conversation in the format of a model endpoint, with the images inserted.

    The message of a tool can contain only text, so the images of a turn follow its results in a message of the user.

    Args:
        messages: the conversation, with names of images.
        read: returns the content of a name.
        shown: how many images to insert, the last ones; None: all.
    """
    named = sum(len(message.get("images", ())) for message in messages)
    skipped = 0 if shown is None else max(0, named - shown)
    sent: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    for message in messages:
        if images and message.get("role") != "tool":
            sent.append({"role": "user", "content": images})
            images = []
        plain = {name: value for name, value in message.items() if name not in _IMAGE_KEYS}
        names = message.get("images", [])
        parts = [_image_part(read(name)) for name in names[skipped:]]
        skipped = max(0, skipped - len(names))
        if message.get("role") == "tool":
            images += parts
        elif parts:
            plain["content"] = [{"type": "text", "text": str(message.get("content") or "")}, *parts]
        sent.append(plain)
    if images:
        sent.append({"role": "user", "content": images})
    return sent


def _image_part(image: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(image).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{image_type(image)};base64,{encoded}"}}


def image_type(image: bytes) -> str:
    """Return the type of an image by its first bytes: jpeg, gif or webp; else png, as the images of environments are."""
    if image.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if image.startswith(b"GIF8"):
        return "gif"
    return "webp" if image[:4] == b"RIFF" and image[8:12] == b"WEBP" else "png"
