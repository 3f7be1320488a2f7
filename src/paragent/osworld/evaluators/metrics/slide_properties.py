"""Single properties of a presentation."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from math import dist, sqrt
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent.osworld.evaluators.metrics.reading import open_package
from paragent.osworld.evaluators.metrics.slides import background_fill, presentation

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Placing",
    "check_image_stretch_and_center",
    "check_page_number_colors",
    "check_slide_orientation_Portrait",
    "check_transition",
    "evaluate_presentation_fill_to_rgb_distance",
    "well_placed",
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


_TOLERANCE = 0.005
"""The share by which places and sizes may differ by default."""
_LOWER_HALF, _RIGHT_PART, _UPPER_PART = 3_600_000, 4_320_000, 1_980_000
"""English Metric Units from the top, from the left and from the top, on a slide of 5,143,500 by 9,144,000."""
_FREEFORM, _PICTURE_SHAPE, _TABLE = 5, 13, 19
"""Kinds of shapes, by Microsoft's numbers."""
_TITLE = "Product Comparison"
_PROMPT = "Elaborate on what you want to discuss."


@dataclass(frozen=True, slots=True)
class Placing:
    """What counts about places and sizes, by the names of OSWorld's options without their `examine_`."""

    shape: bool = True
    """Every shape must be where its twin is, and as large; two without text need not."""
    title_bottom_position: bool = False
    """The title must have moved down; every shape with another text must be in place."""
    table_bottom_position: bool = False
    """The table of the third slide must have moved down; everything else must be in place."""
    right_position: bool = False
    """What has no text on the second slide must have moved to the right."""
    top_position: bool = False
    """The picture on the second slide must have moved up."""
    shape_for_shift_size: bool = False
    """Every shape must be in place, except the prompt."""
    image_size: bool = False
    """Pictures must be as large, everything else in place."""
    modify_height: bool = False
    """What has no text must be as high, everything else in place."""
    tolerance: float = _TOLERANCE

    @classmethod
    def of(cls, chosen: Mapping[str, Any], tolerance: float | None) -> Placing:
        """Return what the options say."""
        named = {one.name: chosen[one.name] for one in fields(cls) if one.name in chosen}
        return cls(**{**named, "tolerance": _TOLERANCE if tolerance is None else tolerance})


def well_placed(first: Any, second: Any, number: int, placing: Placing) -> bool:
    """Return whether a shape of the result is where it should be, given its twin and the number of their slide."""
    in_place = all(_near(first, second, side, placing) for side in ("left", "top", "width", "height"))
    kinds = (first.shape_type, second.shape_type)
    texts = [hasattr(shape, "text") for shape in (first, second)]
    if placing.shape and not in_place and not (_blank(first) and _blank(second)):
        return False
    if placing.title_bottom_position and not _title_moved(first, second, in_place, all(texts)):
        return False
    table = number == 3 and kinds == (_TABLE, _TABLE)
    if placing.table_bottom_position and not (_moved_down(first, second) if table else in_place):
        return False
    if placing.right_position and number == 2 and not any(texts) and not _moved_right(first, second):
        return False
    if (
        placing.top_position
        and number == 2
        and kinds == (_PICTURE_SHAPE, _PICTURE_SHAPE)
        and not _moved_up(first, second)
    ):
        return False
    if placing.shape_for_shift_size and not in_place and not (all(texts) and first.text == second.text == _PROMPT):
        return False
    if placing.image_size:
        as_large = _near(first, second, "width", placing) and _near(first, second, "height", placing)
        if not (as_large if kinds == (_PICTURE_SHAPE, _PICTURE_SHAPE) else in_place):
            return False
    if placing.modify_height:
        free = not any(texts) or kinds == (_FREEFORM, _FREEFORM)
        return _near(first, second, "height", placing) if free else in_place
    return True


def _title_moved(first: Any, second: Any, in_place: bool, both_text: bool) -> bool:
    if not (both_text and first.text == second.text):
        return in_place
    return first.text != _TITLE or _moved_down(first, second)


def _moved_down(first: Any, second: Any) -> bool:
    return bool(first.top > second.top and first.top >= _LOWER_HALF)


def _moved_right(first: Any, second: Any) -> bool:
    return bool(first.left > second.left and first.left >= _RIGHT_PART)


def _moved_up(first: Any, second: Any) -> bool:
    return bool(first.top < second.top and first.top <= _UPPER_PART)


def _blank(shape: Any) -> bool:
    return not (getattr(shape, "text", None) or "").strip()


def _near(first: Any, second: Any, side: str, placing: Placing) -> bool:
    """Return whether two shapes have about the same place or size.

    Raises:
        TypeError: only one of them says what it is.
    """
    one, other = getattr(first, side), getattr(second, side)
    if one == other:
        return True
    if 0 in (one, other):
        return False
    return bool(abs(one - other) / max(abs(one), abs(other)) <= placing.tolerance)
