"""Tags of MP3 files: ID3, versions 1, 2.2, 2.3 and 2.4."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.metrics.value_rules import matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["check_mp3_meta"]

_FRAMES = {
    "title": ("TIT2", "TT2"),
    "artist": ("TPE1", "TP1"),
    "albumartist": ("TPE2", "TP2"),
    "album": ("TALB", "TAL"),
    "date": ("TDRC", "TYER", "TYE"),
    "genre": ("TCON", "TCO"),
    "tracknumber": ("TRCK", "TRK"),
    "discnumber": ("TPOS", "TPA"),
    "composer": ("TCOM", "TCM"),
    "bpm": ("TBPM", "TBP"),
    "copyright": ("TCOP", "TCR"),
    "language": ("TLAN", "TLA"),
    "lyricist": ("TEXT", "TXT"),
}
"""The tags that rules may name, and the frames that hold them."""
_OLD_FIELDS = {"TIT2": slice(3, 33), "TPE1": slice(33, 63), "TALB": slice(63, 93), "TDRC": slice(93, 97)}
"""Where version 1 has its texts in the last bytes of a file, by the frames that replaced them."""
_OLD_SIZE = 128
_ENCODINGS = ("latin-1", "utf-16", "utf-16-be", "utf-8")
_HEAD = 10
"""Bytes of the header of the tags, and of each frame since version 2.3."""
_UNSYNCHRONISED, _EXTENDED = 0x80, 0x40


def check_mp3_meta(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the tags of a file follow their rules; one that is not there, or not known, is an empty text.

    Raises:
        ValueError: the file has no tags.
    """
    if result is None:
        return False
    frames = _frames_of(Path(result))
    found = {tag: next((frames[name] for name in names if name in frames), "") for tag, names in _FRAMES.items()}
    return all(matches(found.get(tag.lower(), ""), rule) for tag, rule in rules.items())


def _frames_of(path: Path) -> dict[str, str]:
    """Return the texts of a file's tags by frame; those of version 1, at the end, count where there are no others."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        tagged = head[:3] == b"ID3" and head[3] in (2, 3, 4)
        frames = _frames(file.read(_number(head[6:10], 7)), head[3], head[5]) if tagged else {}
        file.seek(max(0, path.stat().st_size - _OLD_SIZE))
        old = file.read(_OLD_SIZE)
    if old.startswith(b"TAG"):
        texts = {name: text for name, place in _OLD_FIELDS.items() if (text := _old_text(old[place]))}
        return texts | _old_track(old) | frames
    if not tagged:
        raise ValueError("the file has no tags")
    return frames


def _old_text(data: bytes) -> str:
    return data.split(b"\0")[0].strip().decode("latin-1")


def _old_track(old: bytes) -> dict[str, str]:
    """Return the number of the track, which version 1.1 has at the end of the comment."""
    return {"TRCK": str(old[126])} if old[125] == 0 and old[126] != 0 else {}


def _number(data: bytes, bits: int) -> int:
    """Return a number of so many bits a byte; with seven, no byte looks like the beginning of a sound."""
    number = 0
    for byte in data:
        number = number << bits | byte
    return number


def _frames(data: bytes, version: int, flags: int) -> dict[str, str]:
    """Return the texts of all frames that have one, several joined by commas."""
    if version < 4 and flags & _UNSYNCHRONISED:
        data = data.replace(b"\xff\0", b"\xff")
    if version > 2 and flags & _EXTENDED:
        size = _number(data[:4], 7 if version == 4 else 8)
        data = data[size if version == 4 else size + 4 :]
    found: dict[str, str] = {}
    for name, body in _split(data, version):
        if name.startswith("T") and body and body[0] < len(_ENCODINGS):
            text = body[1:].decode(_ENCODINGS[body[0]], "replace")
            found[name] = ",".join(part for part in text.split("\0") if part)
    return found


def _split(data: bytes, version: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the contents of each frame."""
    letters, head = (3, 6) if version == 2 else (4, _HEAD)
    bits = 7 if version == 4 else 8
    while len(data) > head and data[0]:
        size = _number(data[letters : 2 * letters], bits)
        yield data[:letters].decode("latin-1"), data[head : head + size]
        data = data[head + size :]
