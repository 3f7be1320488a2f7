from __future__ import annotations

import io

import pytest
from PIL import Image
from rich.color import Color

from paragent.cli.demo_desktops import thumbnail


def test_a_character_shows_two_pixels() -> None:
    image = Image.new("RGB", (40, 20), "red")
    image.paste("blue", (0, 10, 40, 20))
    file = io.BytesIO()
    image.save(file, "PNG")
    drawn = thumbnail(file.getvalue(), columns=4)
    assert drawn.plain == "▀▀▀▀"
    colours = {(span.style.color, span.style.bgcolor) for span in drawn.spans if not isinstance(span.style, str)}
    assert colours == {(Color.from_rgb(255, 0, 0), Color.from_rgb(0, 0, 255))}


def test_data_that_is_not_an_image_is_rejected() -> None:
    with pytest.raises(OSError, match="identify"):
        thumbnail(b"not an image")
