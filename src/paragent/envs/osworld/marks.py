"""Numbered marks drawn on a screenshot, so that an agent can name what it sees."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.envs.osworld.tree import Widget

__all__ = ["draw_marks"]

_COLOURS = ("#d00000", "#0050d0", "#007a1c", "#9000a0", "#b05000")


def draw_marks(png: bytes, seen: Sequence[Widget]) -> bytes:
    """Return the picture with a frame around each widget and its number, counted from 1, at its upper left corner."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    pen = ImageDraw.Draw(picture)
    for number, widget in enumerate(seen, 1):
        colour = _COLOURS[number % len(_COLOURS)]
        left, top = max(widget.x, 0), max(widget.y, 0)
        right = min(widget.x + widget.width, picture.width) - 1
        bottom = min(widget.y + widget.height, picture.height) - 1
        if right <= left or bottom <= top:
            continue
        pen.rectangle((left, top, right, bottom), outline=colour, width=1)
        x0, y0, x1, y1 = pen.textbbox((left + 1, top), str(number))
        pen.rectangle((x0 - 1, y0 - 1, x1 + 1, y1 + 1), fill=colour)
        pen.text((left + 1, top), str(number), fill="white")
    drawn = io.BytesIO()
    picture.save(drawn, "PNG")
    return drawn.getvalue()
