"""What the hand-written policy can make out in a picture: patches of one colour, and the text field that has the keyboard."""

from __future__ import annotations

import base64
import importlib
import io
import re
from typing import TYPE_CHECKING, Any

from paragent.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["focused_field", "largest_patch"]

_GRID = 8
"""Pixels between two looks: letters are smaller and do not cut a patch into pieces."""
_FRAME = ((33, 73), (112, 152), (208, 248))
"""Red, green and blue of the frame around a field, about #3584e4 in GTK's own theme: from, to."""
_SHORTEST = 60
"""Pixels of such a frame from left to right; there is no field for words of six letters or less."""
_HEIGHTS = range(20, 60)
"""Pixels from the upper to the lower line of the frame: one line of text and some space around it."""
_INSIDE = 4
"""Pixels from the upper line to where there is neither frame nor text."""


def largest_patch(url: str, matches: Callable[[int, int, int], bool]) -> tuple[int, int] | None:
    """Return a place well inside the largest connected patch of pixels that match; None if there is no picture or no patch.

    Args:
        url: the picture as a data URL.
        matches: of red, green and blue.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    if not url:
        return None
    picture = _decoded(url)
    width, height = picture.size
    pixels = picture.load()
    open_cells = {(x, y) for x in range(0, width, _GRID) for y in range(0, height, _GRID) if matches(*pixels[x, y][:3])}
    largest: list[tuple[int, int]] = []
    while open_cells:
        patch = _flood(open_cells)
        if len(patch) > len(largest):
            largest = patch
    if not largest:
        return None
    middle = (sum(x for x, _ in largest) / len(largest), sum(y for _, y in largest) / len(largest))
    return min(largest, key=lambda cell: (cell[0] - middle[0]) ** 2 + (cell[1] - middle[1]) ** 2)


def focused_field(url: str) -> tuple[int, int] | None:
    """Return the middle of the text field that has the keyboard; None if there is no picture or no such field.

    Args:
        url: the picture as a data URL.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    if not url:
        return None
    picture = _decoded(url)
    matches = [255 * (low <= value <= high) for low, high in _FRAME for value in range(256)]
    width, pixels = picture.width * 3, picture.point(matches).tobytes()
    lines = [
        (found.start() // 3, found.end() // 3, y)
        for y in range(picture.height)
        for found in re.finditer(rb"\xff{%d,}" % (_SHORTEST * 3), pixels[y * width : (y + 1) * width])
    ]
    for left, right, top in lines:
        middle = (left + right) // 2
        empty = pixels[(top + _INSIDE) * width + middle * 3 :][:3] != b"\xff\xff\xff"
        for left_below, right_below, bottom in lines if empty else ():
            if bottom - top in _HEIGHTS and max(abs(left - left_below), abs(right - right_below)) <= 2:
                return middle, (top + bottom) // 2
    return None


def _flood(cells: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Take one connected patch out of the cells."""
    waiting = [cells.pop()]
    patch = []
    while waiting:
        x, y = waiting.pop()
        patch.append((x, y))
        for beside in ((x + _GRID, y), (x - _GRID, y), (x, y + _GRID), (x, y - _GRID)):
            if beside in cells:
                cells.remove(beside)
                waiting.append(beside)
    return patch


def _decoded(url: str) -> Any:
    try:
        image = importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise MissingExtra("the policy `demo` at a screenshot", "osworld", "pillow") from error
    return image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
