"""Two presentations, slide by slide, shape by shape, run by run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.reading import check_package
from paragent.osworld.evaluators.metrics.slide_layout import Placing, well_placed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptx.presentation import Presentation

__all__ = ["background_fill", "compare_pptx_files", "presentation"]


require("pptx")
_SOLID, _INHERITED = 1, 5
"""Kinds of fills, by Microsoft's numbers."""


def presentation(path: str) -> Presentation:
    """Return a presentation.

    Raises:
        TooLarge: it unpacks to an unbearable size.
        zipfile.BadZipFile: it is no presentation.
    """
    from pptx import Presentation

    return Presentation(check_package(path))


def background_fill(slide: Any) -> Any:
    """Return the fill of a plain colour behind a slide, its own or its master's; None if there is none."""
    fill = slide.background.fill
    if fill.type == _INHERITED:
        fill = slide.slide_layout.slide_master.background.fill
    return fill if fill.type == _SOLID else None


_DRAWING = {"a": "http://schemas.openxmlformats.org/drawingml/2006/main"}
_TABLE = 19
"""A kind of shapes, by Microsoft's numbers."""
_SAME_LEVELS = {0, 1}
"""Levels of paragraphs that count as one."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What of a presentation counts, by the names of OSWorld's options without their `examine_`."""

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
    """Return whether two presentations are the same in all that is examined.

    Every option of `Examined` and `Placing` is called `examine_...`; `approximately_tolerance` is the share by which places
    and sizes may differ. Other options mean nothing, as in OSWorld.
    """
    chosen = {name.removeprefix("examine_"): value for name, value in options.items() if name.startswith("examine_")}
    examined = Examined(**{one.name: chosen[one.name] for one in fields(Examined) if one.name in chosen})
    placing = Placing.of(chosen, options.get("approximately_tolerance"))
    first, second = presentation(result).slides, presentation(expected).slides
    if examined.number_of_slides and len(first) != len(second):
        return False
    pairs = zip(first, second, strict=False)
    return all(_same_slide(one, other, number, examined, placing) for number, (one, other) in enumerate(pairs, 1))


def _same_slide(first: Any, second: Any, number: int, examined: Examined, placing: Placing) -> bool:
    """Compare two slides. Colours and notes are read even if they do not count, as in OSWorld: reading may fail."""
    colours, notes = [_background(slide) for slide in (first, second)], [_notes(slide) for slide in (first, second)]
    if examined.background_color and colours[0] != colours[1]:
        return False
    if examined.note and notes[0] != notes[1]:
        return False
    shapes, others = list(first.shapes), list(second.shapes)
    if len(shapes) != len(others):
        return False
    for shape, other in zip(shapes, others, strict=True):
        if not well_placed(shape, other, number, placing) or not _same_shape(shape, other, examined):
            return False
    if examined.bullets and _has_runs(shapes, others) and not _same_bullets(_bullets(first), _bullets(second)):
        return False
    return _same_text_shapes(first, second, examined)


def _background(slide: Any) -> Any:
    """Return the plain colour behind a slide, None if there is none.

    Raises:
        AttributeError: it is a colour of the theme.
    """
    fill = background_fill(slide)
    return None if fill is None else fill.fore_color.rgb


def _notes(slide: Any) -> str:
    """Return the notes of a slide; python-pptx gives it an empty page of notes where it has none.

    Raises:
        AttributeError: the page has no place for text.
    """
    return str(slide.notes_slide.notes_text_frame.text.strip())


def _same_shape(first: Any, second: Any, examined: Examined) -> bool:
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


def _same_table(first: Any, second: Any, examined: Examined) -> bool:
    """Return whether two tables have the same shape, and their runs the same looks; what they say does not count."""
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
    """Return the runs of two paragraphs; of empty ones none, however many empty runs they have."""
    if not (first.text or "").strip() and not (second.text or "").strip():
        return [], []
    return list(first.runs), list(second.runs)


def _same_cell_run(first: Any, second: Any, examined: Examined) -> bool:
    one, other = first.font, second.font
    if examined.color_rgb and not _same_colour(one, other):
        return False
    return _same_flag(one.bold, other.bold) and _same_flag(one.italic, other.italic) and _same_underline(one, other)


def _same_paragraph(first: Any, second: Any, examined: Examined) -> bool:
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
    """Return how a paragraph is aligned; to the left if it does not say."""
    from pptx.enum.text import PP_ALIGN

    return PP_ALIGN.LEFT if paragraph.alignment is None else paragraph.alignment


def _same_run(first: Any, second: Any, examined: Examined) -> bool:
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
    """Return whether both are set or neither; what is not said is not set."""
    return bool(first) == bool(second)


def _same_underline(first: Any, second: Any) -> bool:
    """Return whether two fonts are underlined alike. One that does not say is only different from one plainly underlined."""
    one, other = first.underline, second.underline
    if one is None or other is None:
        return one is other or (one is not True and other is not True)
    return bool(one == other)


def _same_colour(first: Any, second: Any) -> bool:
    """Return whether two fonts have the same colour; it counts only where both have one that is no theme's."""
    one, other = first.color, second.color
    if not (hasattr(one, "rgb") and hasattr(other, "rgb")):
        return True
    return bool(one.rgb == other.rgb)


def _strike(font: Any) -> str:
    return str(font._element.attrib.get("strike", "noStrike"))


def _has_runs(first: list[Any], second: list[Any]) -> bool:
    """Return whether some pair of shapes has runs of text, without which OSWorld does not look at bullets."""
    for shape, other in zip(first, second, strict=True):
        if not (hasattr(shape, "text") and hasattr(other, "text")):
            continue
        lines = zip(shape.text_frame.paragraphs, other.text_frame.paragraphs, strict=False)
        if any(all(_runs(line, their)) for line, their in lines):
            return True
    return False


def _bullets(slide: Any) -> list[tuple[str | None, str, str]] | None:
    """Return bullet, text and level of every paragraph of a slide that has text; colours do not count.

    None if some run of the slide is empty: OSWorld cannot read such a slide's bullets and leaves them out.
    """
    found: list[tuple[str | None, str, str]] = []
    for paragraph in slide._element.iterfind(".//a:p", _DRAWING):
        parts = [part.text for part in paragraph.iterfind(".//a:t", _DRAWING)]
        if not all(parts):
            return None
        text = "".join(parts)
        if not text.strip():
            continue
        properties = paragraph.find("a:pPr", _DRAWING)
        bullet = None if properties is None else properties.find("a:buChar", _DRAWING)
        # Without a bullet, the level does not count.
        found.append((None, text, "") if bullet is None else (bullet.get("char"), text, properties.get("lvl") or "0"))
    return found


def _same_bullets(first: list[Any] | None, second: list[Any] | None) -> bool:
    return first is None or second is None or first == second


def _same_text_shapes(first: Any, second: Any, examined: Examined) -> bool:
    """Compare once more all shapes with text, those inside of groups too."""
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
