"""Image search for the scripted policy: areas of one colour, and the focused text field."""

from __future__ import annotations

import base64
import importlib
import io
import re
from typing import TYPE_CHECKING, Any

from paragent.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["focused_field", "largest_area"]

_GRID = 8
"""Pixels between two samples: larger than letters, so that text does not split an area."""
_FRAME = ((33, 73), (112, 152), (208, 248))
"""Ranges of red, green and blue of the frame around a focused field, about #3584e4 in GTK's default theme."""
_SHORTEST = 60
"""Minimum width of such a frame in pixels; no field is narrower than six letters."""
_HEIGHTS = range(20, 60)
"""Heights of the frame in pixels: one line of text with padding."""
_INSIDE = 4
"""Pixels below the upper line where there is neither frame nor text."""


def largest_area(url: str, matches: Callable[[int, int, int], bool]) -> tuple[int, int] | None:
    """Return a point inside the largest connected area of matching pixels; None if there is no image or no such area.

    Args:
        url: the image as a data URL; empty: none.
        matches: takes red, green and blue.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    if not url:
        return None
    image = _decoded(url)
    width, height = image.size
    pixels = image.load()
    open_cells = {(x, y) for x in range(0, width, _GRID) for y in range(0, height, _GRID) if matches(*pixels[x, y][:3])}
    largest: list[tuple[int, int]] = []
    while open_cells:
        area = _flood(open_cells)
        if len(area) > len(largest):
            largest = area
    if not largest:
        return None
    middle = (sum(x for x, _ in largest) / len(largest), sum(y for _, y in largest) / len(largest))
    return min(largest, key=lambda cell: (cell[0] - middle[0]) ** 2 + (cell[1] - middle[1]) ** 2)


def focused_field(url: str) -> tuple[int, int] | None:
    """Return the centre of the focused text field; None if there is no image or no such field.

    Args:
        url: the image as a data URL; empty: none.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    if not url:
        return None
    image = _decoded(url)
    matches = [255 * (low <= value <= high) for low, high in _FRAME for value in range(256)]
    width, pixels = image.width * 3, image.point(matches).tobytes()
    lines = [
        (found.start() // 3, found.end() // 3, y)
        for y in range(image.height)
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
    """Remove one connected area from the cells and return it."""
    waiting = [cells.pop()]
    area = []
    while waiting:
        x, y = waiting.pop()
        area.append((x, y))
        for beside in ((x + _GRID, y), (x - _GRID, y), (x, y + _GRID), (x, y - _GRID)):
            if beside in cells:
                cells.remove(beside)
                waiting.append(beside)
    return area


def _decoded(url: str) -> Any:
    try:
        image = importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise MissingExtra("the model `demo` with screenshots", "osworld", "pillow") from error
    return image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
