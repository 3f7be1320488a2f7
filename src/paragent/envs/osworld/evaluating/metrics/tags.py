"""Tags of MP3 files (ID3, versions 2.3 and 2.4)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.metrics.value_rules import matches
from paragent.envs.osworld.evaluating.metrics.vocabulary import NotUnderstood

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_mp3_meta"]

_FRAMES = {
    "title": "TIT2",
    "artist": "TPE1",
    "albumartist": "TPE2",
    "album": "TALB",
    "date": "TDRC",
    "genre": "TCON",
    "tracknumber": "TRCK",
    "composer": "TCOM",
}
"""The tags that rules may name, and the frames that hold them."""
_ENCODINGS = ("latin-1", "utf-16", "utf-16-be", "utf-8")
_HEAD = 10
"""Bytes of the header of the tags, and of each frame."""


def check_mp3_meta(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the tags of a file follow their rules; one that is not there is an empty text.

    Raises:
        NotUnderstood: a rule is about a tag that is not known here.
        ValueError: the file has no tags.
    """
    if unknown := sorted(set(rules) - set(_FRAMES)):
        raise NotUnderstood(f"there is no tag {unknown[0]!r}")
    if result is None:
        return False
    with Path(result).open("rb") as file:
        head = file.read(_HEAD)
        if head[:3] != b"ID3" or head[3] not in (3, 4):
            raise ValueError("the file has no tags of the versions 2.3 or 2.4")
        frames = _frames(file.read(_size(head[6:10], 7)), 7 if head[3] == 4 else 8)
    return all(matches(frames.get(_FRAMES[name], ""), rule) for name, rule in rules.items())


def _size(data: bytes, bits: int) -> int:
    """Return a number of so many bits a byte; with seven, no byte looks like the beginning of a sound."""
    number = 0
    for byte in data:
        number = number << bits | byte
    return number


def _frames(data: bytes, bits: int) -> dict[str, str]:
    """Return the texts of all frames that have one, several joined by commas."""
    found: dict[str, str] = {}
    while len(data) > _HEAD and data[0]:
        name, size = data[:4].decode("latin-1"), _size(data[4:8], bits)
        body, data = data[_HEAD : _HEAD + size], data[_HEAD + size :]
        if name.startswith("T") and body and body[0] < len(_ENCODINGS):
            text = body[1:].decode(_ENCODINGS[body[0]], "replace")
            found[name] = ",".join(part for part in text.split("\0") if part)
    return found
