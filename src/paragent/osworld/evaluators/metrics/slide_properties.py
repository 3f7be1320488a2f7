"""Single properties of a presentation."""

from __future__ import annotations

import re
from math import dist, sqrt
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent.osworld.evaluators.metrics.reading import open_package
from paragent.osworld.evaluators.metrics.slides import background_fill, presentation

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "check_image_stretch_and_center",
    "check_page_number_colors",
    "check_slide_orientation_Portrait",
    "check_transition",
    "evaluate_presentation_fill_to_rgb_distance",
]

_NAMES = {
    "a": "http://schemas.openxmlformats.org/drawingml/2006/main",
    "p": "http://schemas.openxmlformats.org/presentationml/2006/main",
}
_FARTHEST = sqrt(3 * 255**2)
"""From black to white."""
_HALF_INCH = 457_200
"""In English Metric Units."""
_PICTURE = 13
_COLOUR = re.compile("#*[0-9a-fA-F]{6}")
_CLEARLY = 50
"""By how much one part of a colour must exceed the others to give it its name; below that, all of black are."""


def _part(path: str, name: str) -> ET.Element | None:
    with open_package(path) as package:
        if name not in package.namelist():
            return None
        return ET.fromstring(package.read(name))


def check_slide_orientation_Portrait(result: str, **_: Any) -> bool:
    """Return whether the slides are higher than wide."""
    found: Any = presentation(result)
    return bool(found.slide_width < found.slide_height)


def check_transition(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a slide comes with the expected transition."""
    slide = _part(result, f"ppt/slides/slide{rules['slide_idx'] + 1}.xml")
    transition = None if slide is None else slide.find(".//p:transition", _NAMES)
    return transition is not None and transition.find(f".//p:{rules['transition_type']}", _NAMES) is not None


def evaluate_presentation_fill_to_rgb_distance(result: str, rules: Mapping[str, Any], **_: Any) -> float:
    """Return how near the backgrounds of the slides are, on average, to a colour; one that was not changed is far away."""

    def distance(slide: Any) -> float:
        fill = background_fill(slide)
        colour = None if fill is None else getattr(fill.fore_color, "rgb", None)
        if colour is None or list(colour) == rules.get("original_rgb"):
            return 1.0
        return dist(colour, rules["rgb"]) / _FARTHEST

    slides = presentation(result).slides
    return 1 - sum(distance(slide) for slide in slides) / len(slides)


def check_image_stretch_and_center(result: str, expected: str, **_: Any) -> bool:
    """Return whether the first picture of the original's first slide now fills the slide, give or take half an inch."""
    found, original = presentation(result), presentation(expected)
    pictures: Any = [shape for shape in original.slides[0].shapes if shape.shape_type == _PICTURE]
    if not pictures:
        return False
    candidates: Any = [shape for shape in found.slides[0].shapes if shape.shape_type == _PICTURE]
    twins = [shape for shape in candidates if shape.image.blob == pictures[0].image.blob]
    if not twins:
        return False
    twin, width, height = twins[-1], original.slide_width or 0, original.slide_height or 0
    offsets = (
        twin.width - width,
        twin.height - height,
        twin.left - (width - twin.width) / 2,
        twin.top - (height - twin.height) / 2,
    )
    return all(abs(offset) <= _HALF_INCH for offset in offsets)


def check_page_number_colors(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the slide numbers, by their master, are red, green, blue or black.

    The last colour of the master's text that is not black is taken for theirs, then the last such colour at all.
    """
    master = _part(result, "ppt/slideMasters/slideMaster1.xml")
    if master is None:
        return False
    shown = [_colours(master, path) for path in (".//a:rPr//a:solidFill//a:srgbClr", ".//a:solidFill//a:srgbClr")]
    bright = [[colour for colour in colours if colour not in {"", "000000"}] for colours in shown]
    candidates = bright[0] or bright[1] or shown[1]
    if not candidates or not _COLOUR.fullmatch(candidates[-1]):
        return False
    red, green, blue = bytes.fromhex(candidates[-1].lstrip("#"))
    named = {
        "red": red > max(green, blue) + _CLEARLY,
        "green": green > max(red, blue) + _CLEARLY,
        "blue": blue > max(red, green) + _CLEARLY,
        "black": max(red, green, blue) < _CLEARLY,
    }
    return named.get(rules["color"], True)


def _colours(master: ET.Element, path: str) -> list[str]:
    return [found.get("val", "") for found in master.findall(path, _NAMES)]
