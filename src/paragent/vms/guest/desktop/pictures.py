"""Pictures of the screen as PNG files."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paragent.vms.guest.desktop.x11 import Cursor, Display, Picture

__all__ = ["as_png", "pixmap_as_png", "screenshot"]

_LEVEL = 1
"""Of compression: a screen gets to a fiftieth of its size with any level, and the lowest is four times as fast as the usual."""


def screenshot(display: Display) -> bytes:
    """Return the screen with the pointer on it, as a PNG file."""
    picture, cursor = display.picture(), display.cursor()
    if cursor is not None:
        _paste(picture, cursor)
    return as_png(picture)


def _paste(picture: Picture, cursor: Cursor) -> None:
    for index, pixel in enumerate(cursor.pixels):
        opacity = pixel >> 24
        x, y = cursor.x + index % cursor.width, cursor.y + index // cursor.width
        if not opacity or not (0 <= x < picture.width and 0 <= y < picture.height):
            continue
        at = (y * picture.width + x) * 4
        for channel in range(3):
            below = picture.pixels[at + channel] * (255 - opacity) // 255
            picture.pixels[at + channel] = min(255, below + (pixel >> 8 * channel & 255))


def as_png(picture: Picture) -> bytes:
    """Return a PNG file."""
    colours = bytearray(picture.width * picture.height * 3)
    for channel in range(3):
        colours[channel::3] = picture.pixels[2 - channel :: 4]
    return _file(picture.width, picture.height, memoryview(colours))


def pixmap_as_png(pixmap: bytes) -> bytes:
    """Return a binary portable pixmap (PPM, three bytes a pixel) as a PNG file.

    Raises:
        ValueError: it is none.
    """
    parts = pixmap[:64].split(maxsplit=4)
    if len(parts) < 4 or parts[0] != b"P6" or parts[3] != b"255":
        raise ValueError("this is no binary portable pixmap with 256 shades")
    width, height = int(parts[1]), int(parts[2])
    return _file(width, height, memoryview(pixmap)[len(pixmap) - width * height * 3 :])


def _file(width: int, height: int, colours: memoryview) -> bytes:
    line = width * 3
    rows = b"".join(part for row in range(height) for part in (b"\0", colours[row * line : (row + 1) * line]))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, _LEVEL)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
