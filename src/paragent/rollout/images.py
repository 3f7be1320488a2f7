"""`ImageStore`: the images and other files of one rollout."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paragent.messages import image_type, with_images

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["ImageStore", "timestamp"]

_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The media types of images that are stored as files; an image of another type stays in its message."""


def timestamp() -> str:
    """Return the current time in the form used in file names."""
    return f"{datetime.now(UTC):%Y%m%d@%H%M%S%f}"


class ImageStore:
    """The images of a rollout: named after their step, stored once, inserted into the messages for the model."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._names: dict[bytes, str] = {}
        self.files: dict[str, bytes] = {}
        """By file name. The time in the name distinguishes the executions of one rollout."""

    def add(self, images: Iterable[bytes], step: int) -> list[str]:
        """Store images and return their names; identical images are stored once."""
        names = []
        for image in images:
            digest = hashlib.sha256(image).digest()
            if digest not in self._names:
                name = f"step_{step}_{timestamp()}.{image_type(image)}"
                self._names[digest], self.files[name] = name, image
            names.append(self._names[digest])
        return names

    def add_files(self, files: Mapping[str, bytes]) -> None:
        """Store other files of the rollout, such as recordings."""
        for name, content in files.items():
            stem, dot, suffix = name.rpartition(".")
            self.files[f"{stem}_{timestamp()}{dot}{suffix}"] = content

    def move(self, message: dict[str, Any], step: int) -> dict[str, Any]:
        """Return a message of an agent in which names replace the content of images."""
        content = message.get("content")
        if not isinstance(content, list):
            return message
        rest, names = [], list(message.get("images") or ())
        for part in content:
            image = _image_in(part)
            if image is None:
                rest.append(part)
            else:
                names += self.add([image], step)
        if not names:
            return message
        texts = [part["text"] for part in rest if isinstance(part, dict) and isinstance(part.get("text"), str)]
        return {**message, "content": "\n".join(texts) if len(texts) == len(rest) else rest, "images": names}

    def insert(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages for the model, with the content of the last images."""
        return with_images(messages, self.files.__getitem__, self._shown) if self.files else list(messages)


def _image_in(part: Any) -> bytes | None:
    """Return the content of the image in a part of a message; None if it has none."""
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    if not isinstance(url, str) or not url.startswith("data:"):
        return None
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    try:
        return base64.b64decode(data, validate=True) if kind in _TYPES and data else None
    except ValueError:
        return None
