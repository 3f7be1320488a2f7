from __future__ import annotations

import io

import pytest
from PIL import Image
from rich.color import Color

from paragent.cli.demo import thumbnail


def test_two_pixels_make_a_character() -> None:
    picture = Image.new("RGB", (40, 20), "red")
    picture.paste("blue", (0, 10, 40, 20))
    file = io.BytesIO()
    picture.save(file, "PNG")
    drawn = thumbnail(file.getvalue(), columns=4)
    assert drawn.plain == "▀▀▀▀"
    colours = {(span.style.color, span.style.bgcolor) for span in drawn.spans if not isinstance(span.style, str)}
    assert colours == {(Color.from_rgb(255, 0, 0), Color.from_rgb(0, 0, 255))}


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(OSError, match="identify"):
        thumbnail(b"no picture")
