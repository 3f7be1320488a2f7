"""What the hand-written policy can make out in a picture: patches of one colour."""

from __future__ import annotations

import base64
import importlib
import io
from typing import TYPE_CHECKING, Any

from manyhands.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["largest_patch"]

_GRID = 8
"""Pixels between two looks: letters are smaller and do not cut a patch into pieces."""


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
