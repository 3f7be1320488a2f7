"""Metrics of presentations: the comparison of two, and checks of single properties."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from math import dist, sqrt
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.reading import check_package, open_package

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pptx.presentation import Presentation

__all__ = [
    "check_image_stretch_and_center",
    "check_page_number_colors",
    "check_slide_orientation_Portrait",
    "check_transition",
    "compare_pptx_files",
    "evaluate_presentation_fill_to_rgb_distance",
    "presentation",
]

require("pptx")
_SOLID, _INHERITED = 1, 5
"""Types of fills, by Microsoft's numbers."""


def presentation(path: str) -> Presentation:
    """Return a presentation.

    Raises:
        TooLarge: it unpacks to more than the limit.
        zipfile.BadZipFile: it is not a presentation.
    """
    from pptx import Presentation

    return Presentation(check_package(path))


def _background_fill(slide: Any) -> Any:
    """Return the solid fill of a slide's background, its own or its master's; None if there is none."""
    fill = slide.background.fill
    if fill.type == _INHERITED:
        fill = slide.slide_layout.slide_master.background.fill
    return fill if fill.type == _SOLID else None


_NAMESPACES = {
    "a": "http://schemas.openxmlformats.org/drawingml/2006/main",
    "p": "http://schemas.openxmlformats.org/presentationml/2006/main",
}
_SAME_LEVELS = {0, 1}
"""Paragraph levels that count as equal."""


@dataclass(frozen=True, slots=True)
class _ExaminedProperties:
    """Which properties are compared, by the names of OSWorld's options without `examine_`."""

    number_of_slides: bool = True
    text: bool = True
    indent: bool = True
    font_name: bool = True
    font_size: bool = True
    font_bold: bool = True
    font_italic: bool = True
    color_rgb: bool = True
    font_underline: bool = True
    strike_through: bool = True
    alignment: bool = True
    bullets: bool = True
    background_color: bool = True
    note: bool = True
    run_count: bool = True


def compare_pptx_files(result: str, expected: str, **options: Any) -> bool:
    """Return whether two presentations are equal in all examined properties.

    Each option of `_ExaminedProperties` and `_LayoutRules` is called `examine_...`; `approximately_tolerance` is the relative
    tolerance of positions and sizes. Other options are ignored, as in OSWorld.
    """
    chosen = {name.removeprefix("examine_"): value for name, value in options.items() if name.startswith("examine_")}
    examined = _ExaminedProperties(
        **{one.name: chosen[one.name] for one in fields(_ExaminedProperties) if one.name in chosen}
    )
    layout = _LayoutRules.of(chosen, options.get("approximately_tolerance"))
    first, second = presentation(result).slides, presentation(expected).slides
    if examined.number_of_slides and len(first) != len(second):
        return False
    pairs = zip(first, second, strict=False)
    return all(_same_slide(one, other, number, examined, layout) for number, (one, other) in enumerate(pairs, 1))


def _same_slide(first: Any, second: Any, number: int, examined: _ExaminedProperties, layout: _LayoutRules) -> bool:
    """Compare two slides. As in OSWorld, colours and notes are read even if they do not count, because reading may fail."""
    colours, notes = [_background(slide) for slide in (first, second)], [_notes(slide) for slide in (first, second)]
    if examined.background_color and colours[0] != colours[1]:
        return False
    if examined.note and notes[0] != notes[1]:
        return False
    shapes, others = list(first.shapes), list(second.shapes)
    if len(shapes) != len(others):
        return False
    for shape, other in zip(shapes, others, strict=True):
        if not _layout_matches(shape, other, number, layout) or not _same_shape(shape, other, examined):
            return False
    if examined.bullets and _has_runs(shapes, others) and not _same_bullets(_bullets(first), _bullets(second)):
        return False
    return _same_text_shapes(first, second, examined)


def _background(slide: Any) -> Any:
    """Return the solid background colour of a slide; None if there is none.

    Raises:
        AttributeError: it is a colour of the theme.
    """
    fill = _background_fill(slide)
    return None if fill is None else fill.fore_color.rgb


def _notes(slide: Any) -> str:
    """Return the notes of a slide; python-pptx adds an empty notes page if there is none.

    Raises:
        AttributeError: the notes page has no text placeholder.
    """
    return str(slide.notes_slide.notes_text_frame.text.strip())


def _same_shape(first: Any, second: Any, examined: _ExaminedProperties) -> bool:
    if first.shape_type == _TABLE and not _same_table(first, second, examined):
        return False
    if not (hasattr(first, "text") and hasattr(second, "text")):
        return True
    if examined.text and first.text.strip() != second.text.strip():
        return False
    lines, others = first.text_frame.paragraphs, second.text_frame.paragraphs
    if len(lines) != len(others):
        return False
    return all(_same_paragraph(line, other, examined) for line, other in zip(lines, others, strict=True))


def _same_table(first: Any, second: Any, examined: _ExaminedProperties) -> bool:
    """Return whether two tables have the same shape, and their runs the same formats; the texts do not count."""
    if not getattr(second, "has_table", False):
        return False
    one, other = first.table, second.table
    if (len(one.rows), len(one.columns)) != (len(other.rows), len(other.columns)):
        return False
    for cell, twin in zip(one.iter_cells(), other.iter_cells(), strict=True):
        lines, others = cell.text_frame.paragraphs, twin.text_frame.paragraphs
        if len(lines) != len(others):
            return False
        for line, their in zip(lines, others, strict=True):
            runs, twins = _runs(line, their)
            if examined.run_count and len(runs) != len(twins):
                return False
            if not all(_same_cell_run(a, b, examined) for a, b in zip(runs, twins, strict=False)):
                return False
    return True


def _runs(first: Any, second: Any) -> tuple[list[Any], list[Any]]:
    """Return the runs of two paragraphs; empty lists for empty paragraphs, even if they have empty runs."""
    if not (first.text or "").strip() and not (second.text or "").strip():
        return [], []
    return list(first.runs), list(second.runs)


def _same_cell_run(first: Any, second: Any, examined: _ExaminedProperties) -> bool:
    one, other = first.font, second.font
    if examined.color_rgb and not _same_colour(one, other):
        return False
    return _same_flag(one.bold, other.bold) and _same_flag(one.italic, other.italic) and _same_underline(one, other)


def _same_paragraph(first: Any, second: Any, examined: _ExaminedProperties) -> bool:
    if examined.alignment and _alignment(first) != _alignment(second):
        return False
    if examined.text and first.text != second.text:
        return False
    if examined.indent and first.level != second.level and not {first.level, second.level} <= _SAME_LEVELS:
        return False
    runs, others = _runs(first, second)
    if examined.run_count and len(runs) != len(others):
        return False
    return all(_same_run(run, other, examined) for run, other in zip(runs, others, strict=False))


def _alignment(paragraph: Any) -> Any:
    """Return the alignment of a paragraph; left by default."""
    from pptx.enum.text import PP_ALIGN

    return PP_ALIGN.LEFT if paragraph.alignment is None else paragraph.alignment


def _same_run(first: Any, second: Any, examined: _ExaminedProperties) -> bool:
    one, other = first.font, second.font
    differs = (
        (examined.font_name and one.name != other.name)
        or (examined.font_size and one.size != other.size)
        or (examined.font_bold and not _same_flag(one.bold, other.bold))
        or (examined.font_italic and not _same_flag(one.italic, other.italic))
        or (examined.color_rgb and not _same_colour(one, other))
        or (examined.font_underline and not _same_underline(one, other))
        or (examined.strike_through and _strike(one) != _strike(other))
    )
    return not differs


def _same_flag(first: bool | None, second: bool | None) -> bool:
    """Return whether both are set or neither; None counts as not set."""
    return bool(first) == bool(second)


def _same_underline(first: Any, second: Any) -> bool:
    """Return whether two fonts have the same underline. An unspecified one differs only from an explicit underline."""
    one, other = first.underline, second.underline
    if one is None or other is None:
        return one is other or (one is not True and other is not True)
    return bool(one == other)


def _same_colour(first: Any, second: Any) -> bool:
    """Return whether two fonts have the same colour; it counts only if neither is a theme colour."""
    one, other = first.color, second.color
    if not (hasattr(one, "rgb") and hasattr(other, "rgb")):
        return True
    return bool(one.rgb == other.rgb)


def _strike(font: Any) -> str:
    # python-pptx has no public access to the attributes of a font
    return str(font._element.attrib.get("strike", "noStrike"))


def _has_runs(first: list[Any], second: list[Any]) -> bool:
    """Return whether any pair of shapes has text runs; without them OSWorld does not compare bullets."""
    for shape, other in zip(first, second, strict=True):
        if not (hasattr(shape, "text") and hasattr(other, "text")):
            continue
        lines = zip(shape.text_frame.paragraphs, other.text_frame.paragraphs, strict=False)
        if any(all(_runs(line, their)) for line, their in lines):
            return True
    return False


def _bullets(slide: Any) -> list[tuple[str | None, str, str]] | None:
    """Return the bullet, text and level of every paragraph of a slide that has text; colours do not count.

    None if any run of the slide is empty: OSWorld cannot read the bullets of such a slide and ignores them.
    """
    found: list[tuple[str | None, str, str]] = []
    for paragraph in slide.element.iterfind(".//a:p", _NAMESPACES):
        parts = [part.text for part in paragraph.iterfind(".//a:t", _NAMESPACES)]
        if not all(parts):
            return None
        text = "".join(parts)
        if not text.strip():
            continue
        properties = paragraph.find("a:pPr", _NAMESPACES)
        bullet = None if properties is None else properties.find("a:buChar", _NAMESPACES)
        # Without a bullet, the level does not count.
        found.append((None, text, "") if bullet is None else (bullet.get("char"), text, properties.get("lvl") or "0"))
    return found


def _same_bullets(first: list[Any] | None, second: list[Any] | None) -> bool:
    return first is None or second is None or first == second


def _same_text_shapes(first: Any, second: Any, examined: _ExaminedProperties) -> bool:
    """Compare all shapes with text, including those in groups."""
    shapes, others = list(_text_shapes(first.shapes)), list(_text_shapes(second.shapes))
    if len(shapes) != len(others):
        return False
    if not examined.alignment:
        return True
    for shape, other in zip(shapes, others, strict=True):
        if examined.text and shape.text.strip() != other.text.strip():
            return False
        lines, their = shape.text_frame.paragraphs, other.text_frame.paragraphs
        if [_alignment(line) for line in lines] != [_alignment(line) for line in their]:
            return False
    return True


def _text_shapes(shapes: Any) -> Iterator[Any]:
    for shape in shapes:
        if hasattr(shape, "text") and hasattr(shape, "text_frame"):
            yield shape
        if hasattr(shape, "shapes"):
            yield from _text_shapes(shape.shapes)


_TOLERANCE = 0.005
"""Default relative tolerance of positions and sizes."""
_LOWER_HALF, _RIGHT_PART, _UPPER_PART = 3_600_000, 4_320_000, 1_980_000
"""English Metric Units from the top, from the left and from the top, on a slide of 5,143,500 by 9,144,000."""
_FREEFORM, _PICTURE, _TABLE = 5, 13, 19
"""Types of shapes, by Microsoft's numbers."""
_TITLE = "Product Comparison"
_PROMPT = "Elaborate on what you want to discuss."


@dataclass(frozen=True, slots=True)
class _LayoutRules:
    """Which positions and sizes are compared, by the names of OSWorld's options without `examine_`. OSWorld has some options for
    one task each.
    """

    shape: bool = True
    """Each shape must have the position and size of its counterpart; two shapes without text need not."""
    title_bottom_position: bool = False
    """The title must have moved down; every shape with another text must have kept its position."""
    table_bottom_position: bool = False
    """The table of the third slide must have moved down; everything else must have kept its position."""
    right_position: bool = False
    """Shapes without text on the second slide must have moved to the right."""
    top_position: bool = False
    """The picture on the second slide must have moved up."""
    shape_for_shift_size: bool = False
    """Every shape except the prompt must have kept its position and size."""
    image_size: bool = False
    """Pictures must have the same size; other shapes the same position too."""
    modify_height: bool = False
    """Shapes without text must have the same height; other shapes the same position and size."""
    tolerance: float = _TOLERANCE

    @classmethod
    def of(cls, chosen: Mapping[str, Any], tolerance: float | None) -> _LayoutRules:
        """Return the rules that the options select."""
        named = {one.name: chosen[one.name] for one in fields(cls) if one.name in chosen}
        return cls(**{**named, "tolerance": _TOLERANCE if tolerance is None else tolerance})


def _layout_matches(first: Any, second: Any, number: int, layout: _LayoutRules) -> bool:
    """Return whether a shape of the result matches its counterpart, given the number of their slide."""
    in_place = all(_near(first, second, side, layout) for side in ("left", "top", "width", "height"))
    kinds = (first.shape_type, second.shape_type)
    texts = [hasattr(shape, "text") for shape in (first, second)]
    if layout.shape and not in_place and not (_blank(first) and _blank(second)):
        return False
    if layout.title_bottom_position and not _title_moved(first, second, in_place, all(texts)):
        return False
    table = number == 3 and kinds == (_TABLE, _TABLE)
    if layout.table_bottom_position and not (_moved_down(first, second) if table else in_place):
        return False
    if layout.right_position and number == 2 and not any(texts) and not _moved_right(first, second):
        return False
    if layout.top_position and number == 2 and kinds == (_PICTURE, _PICTURE) and not _moved_up(first, second):
        return False
    if layout.shape_for_shift_size and not in_place and not (all(texts) and first.text == second.text == _PROMPT):
        return False
    if layout.image_size:
        as_large = _near(first, second, "width", layout) and _near(first, second, "height", layout)
        if not (as_large if kinds == (_PICTURE, _PICTURE) else in_place):
            return False
    if layout.modify_height:
        free = not any(texts) or kinds == (_FREEFORM, _FREEFORM)
        return _near(first, second, "height", layout) if free else in_place
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


def _near(first: Any, second: Any, side: str, layout: _LayoutRules) -> bool:
    """Return whether two shapes have about the same position or size.

    Raises:
        TypeError: only one of them has this property.
    """
    one, other = getattr(first, side), getattr(second, side)
    if one == other:
        return True
    if 0 in (one, other):
        return False
    return bool(abs(one - other) / max(abs(one), abs(other)) <= layout.tolerance)


_FARTHEST = sqrt(3 * 255**2)
"""The distance from black to white."""
_HALF_INCH = 457_200
"""In English Metric Units."""
_COLOUR = re.compile("#*[0-9a-fA-F]{6}")
_CLEARLY = 50
"""How much one component of a colour must exceed the others to name it; for black, all must be below this."""


def _part(path: str, name: str) -> ET.Element | None:
    with open_package(path) as package:
        if name not in package.namelist():
            return None
        return ET.fromstring(package.read(name))


def check_slide_orientation_Portrait(result: str, **_: Any) -> bool:
    """Return whether the slides are taller than wide."""
    found: Any = presentation(result)
    return bool(found.slide_width < found.slide_height)


def check_transition(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether a slide has the expected transition."""
    slide = _part(result, f"ppt/slides/slide{rules['slide_idx'] + 1}.xml")
    transition = None if slide is None else slide.find(".//p:transition", _NAMESPACES)
    return transition is not None and transition.find(f".//p:{rules['transition_type']}", _NAMESPACES) is not None


def evaluate_presentation_fill_to_rgb_distance(result: str, rules: Mapping[str, Any], **_: Any) -> float:
    """Return the average similarity of the slides' backgrounds to a colour; an unchanged background is far away."""

    def distance(slide: Any) -> float:
        fill = _background_fill(slide)
        colour = None if fill is None else getattr(fill.fore_color, "rgb", None)
        if colour is None or list(colour) == rules.get("original_rgb"):
            return 1.0
        return dist(colour, rules["rgb"]) / _FARTHEST

    slides = presentation(result).slides
    return 1 - sum(distance(slide) for slide in slides) / len(slides)


def check_image_stretch_and_center(result: str, expected: str, **_: Any) -> bool:
    """Return whether the first picture of the original's first slide now fills the slide, within half an inch."""
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

    Their colour is the last colour of the master's text that is not black, otherwise the last such colour anywhere.
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
    return [found.get("val", "") for found in master.findall(path, _NAMESPACES)]
