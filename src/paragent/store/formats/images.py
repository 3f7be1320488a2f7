"""Images of exported and imported messages: files of a run, data URLs, media types."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from paragent.store.directory import file_name

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["data_url", "image_names", "image_type", "image_urls", "read_data_url", "read_image"]

_LARGEST = 64 << 20
"""Bytes of one image."""
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


def image_type(content: bytes) -> str | None:
    """Return the media type of an image by its first bytes; None if it is not an image that may be shown."""
    for signature, kind in _SIGNATURES.items():
        if content.startswith(signature):
            return kind
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else None


def image_names(message: dict[str, Any], *keys: str) -> list[str]:
    """Return the names of the images of a stored message: of those that the model was shown, unless `keys` names others."""
    lists = [message.get(key) for key in keys or ("images",)]
    return [name for given in lists if isinstance(given, list) for name in given if isinstance(name, str)]


def read_image(folder: Path, name: str) -> bytes | None:
    """Return an image of a run; None if it was deleted, is too large, or the name leads out of the folder."""
    path = folder / name
    if file_name(name) != name or path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST:
        return None
    return path.read_bytes()


def data_url(content: bytes) -> str:
    """Return an image as a data URL."""
    return f"data:{image_type(content) or 'image/png'};base64,{base64.b64encode(content).decode()}"


def read_data_url(url: str) -> bytes | None:
    """Return the image in a data URL; None if it is not an image that may be shown."""
    head, separator, body = url.partition(";base64,")
    if not separator or not head.startswith("data:image/") or len(body) > 2 * _LARGEST:
        return None
    try:
        content = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return None
    return content if image_type(content) else None


def image_urls(content: Any) -> list[str]:
    """Return the URLs of the image parts of a message's content, in the format of chat completions."""
    found = []
    for part in content if isinstance(content, list) else ():
        image = part.get("image_url") if isinstance(part, dict) else None
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(url, str):
            found.append(url)
    return found
