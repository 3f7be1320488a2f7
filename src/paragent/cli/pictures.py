"""Pictures in a terminal: two pixels to a character, in colour."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["thumbnail"]

_UPPER_HALF = "▀"


def thumbnail(png: bytes, columns: int = 64) -> Text:
    """Return a picture as coloured half blocks, `columns` wide.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
        OSError: `png` is no picture.
    """
    from PIL import Image
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    with Image.open(io.BytesIO(png)) as picture:
        rows = max(1, round(picture.height / picture.width * columns / 2))
        small = picture.convert("RGB").resize((columns, rows * 2), Image.Resampling.BOX)
    pixels = small.tobytes()

    def colour(column: int, row: int) -> Color:
        start = 3 * (row * columns + column)
        return Color.from_rgb(*pixels[start : start + 3])

    text = Text(no_wrap=True)
    for row in range(0, rows * 2, 2):
        for column in range(columns):
            text.append(_UPPER_HALF, Style(color=colour(column, row), bgcolor=colour(column, row + 1)))
        text.append("\n")
    text.rstrip()
    return text
