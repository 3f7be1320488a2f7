"""Presentations: a base, variants with one difference each, and every option of `compare_pptx_files`."""

from __future__ import annotations

import io
import re
import zipfile
from typing import TYPE_CHECKING, Any

from PIL import Image
from pptx import Presentation
from pptx.dml.color import RGBColor
from pptx.enum.dml import MSO_THEME_COLOR
from pptx.enum.text import MSO_UNDERLINE, PP_ALIGN
from pptx.util import Emu, Inches, Pt

from bench.osworld_parity.cases.case import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"

_RED = RGBColor(255, 0, 0)  # type: ignore[no-untyped-call]


def _picture() -> io.BytesIO:
    data = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(data, "PNG")
    data.seek(0)
    return data


def _base() -> Any:
    deck = Presentation()
    for number in range(3):
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = f"Title {number}" if number else "Product Comparison"
        frame = slide.placeholders[1].text_frame
        frame.text = "first point"
        for level in (0, 1, 2):
            paragraph = frame.add_paragraph()
            paragraph.level = level
            run = paragraph.add_run()
            run.text = f"point {level}"
            run.font.size = Pt(20)
        slide.shapes.add_picture(_picture(), Inches(1), Inches(4), Inches(2))
        table = slide.shapes.add_table(2, 2, Inches(4), Inches(4), Inches(3), Inches(1)).table
        table.cell(0, 0).text = "cell"
        slide.shapes.add_textbox(Inches(1), Inches(6), Inches(2), Inches(1))
    deck.slides[0].notes_slide.notes_text_frame.text = "a note"
    return deck


def _run(deck: Any, slide: int = 0) -> Any:
    return deck.slides[slide].placeholders[1].text_frame.paragraphs[2].runs[0]


def _paragraph(deck: Any, number: int) -> Any:
    return deck.slides[0].placeholders[1].text_frame.paragraphs[number]


def _move(slide: int, shape: int, **sides: float) -> Callable[[Any], Any]:
    def change(deck: Any) -> None:
        moved = deck.slides[slide].shapes[shape]
        for side, factor in sides.items():
            setattr(moved, side, Emu(int(getattr(moved, side) * factor)))

    return change


def _font(**attributes: Any) -> Callable[[Any], Any]:
    def change(deck: Any) -> None:
        for name, value in attributes.items():
            setattr(_run(deck).font, name, value)

    return change


def _cell_font(**attributes: Any) -> Callable[[Any], Any]:
    def change(deck: Any) -> None:
        run = deck.slides[0].shapes[3].table.cell(0, 0).text_frame.paragraphs[0].runs[0]
        for name, value in attributes.items():
            setattr(run.font, name, value)

    return change


def _colour(value: Any) -> Callable[[Any], Any]:
    def change(deck: Any) -> None:
        colour = _run(deck).font.color
        if isinstance(value, RGBColor):
            colour.rgb = value
        else:
            colour.theme_color = value

    return change


def _background(value: Any) -> Callable[[Any], Any]:
    def change(deck: Any) -> None:
        fill = deck.slides[0].background.fill
        fill.solid()
        if isinstance(value, RGBColor):
            fill.fore_color.rgb = value
        else:
            fill.fore_color.theme_color = value

    return change


def _bullet(number: int, char: str, level: str | None = None) -> Callable[[Any], Any]:
    def change(deck: Any) -> None:
        properties = _paragraph(deck, number)._p.get_or_add_pPr()
        mark = properties.makeelement(f"{{{_DRAWING}}}buChar", {"char": char})
        properties.append(mark)
        if level is not None:
            properties.set("lvl", level)

    return change


def _both(*changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def change(deck: Any) -> None:
        for one in changes:
            one(deck)

    return change


def _empty_run(deck: Any) -> None:
    _paragraph(deck, 3).add_run()


def _empty_run_in_blank(deck: Any) -> None:
    deck.slides[0].shapes[4].text_frame.paragraphs[0].add_run().text = " "


def _split_run(deck: Any) -> None:
    run = _run(deck)
    run.text = run.text[:3]
    extra = _paragraph(deck, 2).add_run()
    extra.text = "nt 1"
    extra.font.size = Pt(20)


def _group(deck: Any) -> None:
    shapes = deck.slides[0].shapes
    shapes.add_group_shape([shapes[4]])


def _remove(deck: Any) -> None:
    shape = deck.slides[0].shapes[2]
    shape._element.getparent().remove(shape._element)


def _strike(deck: Any) -> None:
    _run(deck).font._element.set("strike", "sngStrike")


def _align(value: Any) -> Callable[[Any], Any]:
    return lambda deck: setattr(_paragraph(deck, 1), "alignment", value)


def _level(number: int, level: int) -> Callable[[Any], Any]:
    return lambda deck: setattr(_paragraph(deck, number), "level", level)


def _text(value: str) -> Callable[[Any], Any]:
    return lambda deck: setattr(_run(deck), "text", value)


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda _: None,
    "text": _text("other"),
    "blank after": _text("point 1 "),
    "bold": _font(bold=True),
    "not bold": _font(bold=False),
    "italic": _font(italic=True),
    "underlined": _font(underline=True),
    "not underlined": _font(underline=False),
    "double underlined": _font(underline=MSO_UNDERLINE.DOUBLE_LINE),
    "font": _font(name="Arial"),
    "size": _font(size=Pt(21)),
    "red": _colour(_RED),
    "theme colour": _colour(MSO_THEME_COLOR.ACCENT_1),
    "struck": _strike,
    "bold cell": _cell_font(bold=True),
    "underlined cell": _cell_font(underline=True),
    "centre": _align(PP_ALIGN.CENTER),
    "left": _align(PP_ALIGN.LEFT),
    "level 0 to 1": _level(1, 1),
    "level 0 to 2": _level(1, 2),
    "level 1 to 0": _level(2, 0),
    "bullet": _bullet(1, "*"),
    "other bullet": _bullet(1, "-"),
    "bullet of level": _bullet(2, "*", "2"),
    "bullet and empty run": _both(_bullet(1, "*"), _empty_run),
    "empty run": _empty_run,
    "blank run": _empty_run_in_blank,
    "split run": _split_run,
    "group": _group,
    "fewer shapes": _remove,
    "moved title": _move(0, 0, top=1.5),
    "title to the bottom": _move(0, 0, top=20),
    "nearly moved": _move(0, 0, top=1.001),
    "moved picture": _move(0, 2, left=2),
    "moved picture of two": _move(1, 2, left=5),
    "picture of two up": _move(1, 2, top=0.3),
    "higher picture": _move(0, 2, height=1.4),
    "moved table": _move(0, 3, top=1.3),
    "table of three down": _move(2, 3, top=1.5),
    "moved blank box": _move(0, 4, left=2),
    "higher blank box": _move(0, 4, height=3),
    "red background": _background(_RED),
    "theme background": _background(MSO_THEME_COLOR.ACCENT_1),
    "note": lambda deck: setattr(deck.slides[0].notes_slide.notes_text_frame, "text", "other"),
    "note of two": lambda deck: setattr(deck.slides[1].notes_slide.notes_text_frame, "text", " "),
    "more slides": lambda deck: deck.slides.add_slide(deck.slide_layouts[6]),
    "cell text": lambda deck: setattr(deck.slides[0].shapes[3].table.cell(0, 1), "text", "x"),
    "prompt": lambda deck: setattr(deck.slides[0].shapes.title, "text", "Elaborate on what you want to discuss."),
    "portrait": _both(lambda d: setattr(d, "slide_width", 5_000_000), lambda d: setattr(d, "slide_height", 9_000_000)),
}
_FLAGS = (
    *(
        "number_of_slides",
        "shape",
        "text",
        "indent",
        "font_name",
        "font_size",
        "font_bold",
        "font_italic",
    ),
    *(
        "color_rgb",
        "font_underline",
        "strike_through",
        "alignment",
        "title_bottom_position",
    ),
    *(
        "table_bottom_position",
        "run_count",
        "right_position",
        "top_position",
        "shape_for_shift_size",
    ),
    *(
        "image_size",
        "modify_height",
        "bullets",
        "background_color",
        "note",
    ),
)
_ON = {
    "title_bottom_position",
    "table_bottom_position",
    "right_position",
    "top_position",
    "shape_for_shift_size",
    "image_size",
    "modify_height",
}


def cases(folder: Path) -> Iterator[Case]:
    paths = {}
    for number, (name, change) in enumerate(_CHANGES.items()):
        deck = _base()
        change(deck)
        paths[name] = str(folder / f"{number}.pptx")
        deck.save(paths[name])
    paths |= _rewritten(folder, paths["nothing"])
    base = paths["nothing"]
    for number, path in enumerate(paths.values()):
        yield Case("compare_pptx_files", [path, base])
        yield Case("compare_pptx_files", [base, path])
        for flag in _FLAGS[number % 3 :: 3]:
            options = {f"examine_{flag}": flag in _ON}
            yield Case("compare_pptx_files", [path, base], options)
            if flag in _ON:
                yield Case("compare_pptx_files", [path, base], {**options, "examine_shape": False})
        yield Case(
            "compare_pptx_files", [path, base], {"approximately_tolerance": 0.6, "examine_shape_lenient_height": True}
        )
    for one, other in (("bullet", "other bullet"), ("bullet of level", "bullet"), ("bullet and empty run", "bullet")):
        yield Case("compare_pptx_files", [paths[one], paths[other]])
        yield Case("compare_pptx_files", [paths[other], paths[one]])
    for one in (
        "underlined",
        "not underlined",
        "double underlined",
        "not bold",
        "red",
        "theme colour",
        "theme background",
    ):
        for other in ("underlined", "not underlined", "double underlined", "bold", "theme colour", "theme background"):
            yield Case("compare_pptx_files", [paths[one], paths[other]])
    (folder / "broken.pptx").write_bytes(b"no presentation")
    yield Case("compare_pptx_files", [str(folder / "broken.pptx"), base])
    yield from _properties(folder, paths)


def _rewritten(folder: Path, base: str) -> dict[str, str]:
    """Return presentations whose XML another program could have written."""
    changes = {
        "no note text": ("ppt/notesSlides/notesSlide1.xml", r'<p:ph type="body"[^>]*/>', '<p:ph type="sldImg"/>'),
        "dissolve": ("ppt/slides/slide1.xml", "</p:cSld>", "</p:cSld><p:transition><p:dissolve/></p:transition>"),
        "push": ("ppt/slides/slide1.xml", "</p:cSld>", "</p:cSld><p:transition><p:push/></p:transition>"),
        "red master": ("ppt/slideMasters/slideMaster1.xml", "</p:spTree>", _box("FF0000") + "</p:spTree>"),
        "black master": ("ppt/slideMasters/slideMaster1.xml", "</p:spTree>", _box("000000") + "</p:spTree>"),
        "blue then black": (
            "ppt/slideMasters/slideMaster1.xml",
            "</p:spTree>",
            _box("0000FF") + _box("000000") + "</p:spTree>",
        ),
        "green then red": (
            "ppt/slideMasters/slideMaster1.xml",
            "</p:spTree>",
            _box("00FF00") + _box("FF0000") + "</p:spTree>",
        ),
        "odd colour": ("ppt/slideMasters/slideMaster1.xml", "</p:spTree>", _box("GG0000") + "</p:spTree>"),
        "shape without place": ("ppt/slides/slide1.xml", r"<a:off [^>]*/><a:ext [^>]*/>", ""),
    }
    found = {}
    for name, (part, old, new) in changes.items():
        path = folder / f"written_{name.replace(' ', '_')}.pptx"
        with zipfile.ZipFile(base) as source, zipfile.ZipFile(path, "w") as target:
            for entry in source.namelist():
                data = source.read(entry)
                if entry == part:
                    data = re.sub(old, new, data.decode(), count=1).encode()
                target.writestr(entry, data)
        found[name] = str(path)
    return found


def _box(colour: str) -> str:
    return (
        '<p:sp><p:nvSpPr><p:cNvPr id="99" name="n"/><p:cNvSpPr/><p:nvPr><p:ph type="sldNum" idx="9"/></p:nvPr></p:nvSpPr>'
        "<p:spPr/>"
        f'<p:txBody><a:bodyPr/><a:p><a:r><a:rPr><a:solidFill><a:srgbClr val="{colour}"/></a:solidFill></a:rPr><a:t>1</a:t></a:r>'
        "</a:p></p:txBody></p:sp>"
    )


def _properties(folder: Path, paths: dict[str, str]) -> Iterator[Case]:
    for path in [*paths.values(), str(folder / "broken.pptx")]:
        yield Case("check_slide_orientation_Portrait", [path])
        for kind in ("dissolve", "push"):
            for slide in (0, 1, 9):
                yield Case("check_transition", [path, {"slide_idx": slide, "transition_type": kind}])
        for colour in ("red", "green", "blue", "black", "pink"):
            yield Case("check_page_number_colors", [path, {"color": colour}])
        for rules in ({"rgb": [255, 0, 0]}, {"rgb": [0, 0, 255], "original_rgb": [255, 0, 0]}):
            yield Case("evaluate_presentation_fill_to_rgb_distance", [path, rules])
    full = Presentation()
    slide = full.slides.add_slide(full.slide_layouts[6])
    slide.shapes.add_picture(_picture(), 0, 0, full.slide_width, full.slide_height)
    full.save(str(folder / "full.pptx"))
    for path in (str(folder / "full.pptx"), paths["nothing"], paths["moved picture"], paths["fewer shapes"]):
        for other in (str(folder / "full.pptx"), paths["nothing"], paths["fewer shapes"]):
            yield Case("check_image_stretch_and_center", [path, other])
