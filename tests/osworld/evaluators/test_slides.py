"""Presentations, made with python-pptx."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pptx
import pytest
from PIL import Image
from pptx.dml.color import RGBColor
from pptx.enum.dml import MSO_THEME_COLOR
from pptx.enum.shapes import MSO_SHAPE
from pptx.enum.text import PP_ALIGN
from pptx.util import Emu, Inches, Pt

Score = Callable[..., float]
Change = Callable[[Any], Any]
BLANK = 6
RGB: Any = RGBColor


def png(colour: str = "red") -> io.BytesIO:
    data = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(data, "PNG")
    data.seek(0)
    return data


@pytest.fixture
def slides(tmp_path: Path) -> Callable[..., str]:
    """Make a presentation of three slides: a text box with two lines, a picture, a table; return its path."""

    def make(name: str, *changes: Change) -> str:
        made = pptx.Presentation()
        one, two, three = (made.slides.add_slide(made.slide_layouts[BLANK]) for _ in range(3))
        box = one.shapes.add_textbox(Inches(1), Inches(1), Inches(4), Inches(1)).text_frame
        box.text = "First line"
        box.add_paragraph().text = "Second line"
        two.shapes.add_picture(png(), Inches(1), Inches(3), Inches(2), Inches(2))
        table = three.shapes.add_table(1, 2, Inches(1), Inches(1), Inches(4), Inches(1)).table
        table.cell(0, 0).text, table.cell(0, 1).text = "a", "b"
        for change in changes:
            change(made)
        made.save(str(tmp_path / name))
        return str(tmp_path / name)

    return make


def run_of(made: Any) -> Any:
    return made.slides[0].shapes[0].text_frame.paragraphs[0].runs[0]


def cell_run(made: Any) -> Any:
    return made.slides[2].shapes[0].table.cell(0, 0).text_frame.paragraphs[0].runs[0]


def font(name: str, value: Any, of: Callable[[Any], Any] = run_of) -> Change:
    return lambda made: setattr(of(made).font, name, value)


def coloured(red: int, of: Callable[[Any], Any] = run_of) -> Change:
    return lambda made: setattr(of(made).font.color, "rgb", RGB(red, 0, 0))


def background(red: int) -> Change:
    def change(made: Any) -> None:
        fill = made.slides[0].background.fill
        fill.solid()
        fill.fore_color.rgb = RGB(red, 0, 0)

    return change


def moved(slide: int, side: str, inches: float) -> Change:
    return lambda made: setattr(made.slides[slide].shapes[0], side, Inches(inches))


def paragraph(**settings: Any) -> Change:
    def change(made: Any) -> None:
        for name, value in settings.items():
            setattr(made.slides[0].shapes[0].text_frame.paragraphs[1], name, value)

    return change


def bullet(character: str) -> Change:
    def change(made: Any) -> None:
        properties = made.slides[0].shapes[0].text_frame.paragraphs[1]._p.get_or_add_pPr()
        made_bullet = properties.makeelement(
            "{http://schemas.openxmlformats.org/drawingml/2006/main}buChar", {"char": character}
        )
        properties.append(made_bullet)

    return change


def noted(text: str) -> Change:
    return lambda made: setattr(made.slides[1].notes_slide.notes_text_frame, "text", text)


def struck(made: Any) -> None:
    run_of(made).font._element.set("strike", "sngStrike")


def second_run(made: Any) -> None:
    made.slides[0].shapes[0].text_frame.paragraphs[0].add_run().text = ""


def blank_run(made: Any) -> None:
    """Add a run without text to a box whose text is blank, which no other check looks at."""
    made.slides[0].shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame.paragraphs[0].add_run()


def both(*changes: Change) -> Change:
    def change(made: Any) -> None:
        for one in changes:
            one(made)

    return change


def grouped(alignment: Any) -> Change:
    def change(made: Any) -> None:
        box = made.slides[1].shapes.add_group_shape().shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame
        box.text = "inside"
        box.paragraphs[0].alignment = alignment

    return change


SAME: list[tuple[str, Change | None, Change | None, dict[str, Any], bool]] = [
    ("nothing", None, None, {}, True),
    ("text", font("name", None), lambda made: setattr(run_of(made), "text", "Other"), {}, False),
    ("text not examined", None, lambda made: setattr(run_of(made), "text", "Other"), {"examine_text": False}, False),
    ("font", None, font("name", "Arial"), {}, False),
    ("font not examined", None, font("name", "Arial"), {"examine_font_name": False}, True),
    ("size", None, font("size", Pt(9)), {}, False),
    ("size not examined", None, font("size", Pt(9)), {"examine_font_size": False}, True),
    ("bold", None, font("bold", True), {}, False),
    ("not bold", None, font("bold", False), {}, True),
    ("bold not examined", None, font("bold", True), {"examine_font_bold": False}, True),
    ("italic", None, font("italic", True), {}, False),
    ("underlined", None, font("underline", True), {}, False),
    ("not underlined", None, font("underline", False), {}, True),
    ("colour", coloured(255), coloured(254), {}, False),
    ("colour not examined", coloured(255), coloured(254), {"examine_color_rgb": False}, True),
    ("colour on one side", coloured(255), None, {}, True),
    ("struck through", None, struck, {}, False),
    ("struck through, not examined", None, struck, {"examine_strike_through": False}, True),
    ("aligned", None, paragraph(alignment=PP_ALIGN.CENTER), {}, False),
    ("aligned left", None, paragraph(alignment=PP_ALIGN.LEFT), {}, True),
    ("aligned, not examined", None, paragraph(alignment=PP_ALIGN.CENTER), {"examine_alignment": False}, True),
    ("indented by one", paragraph(level=0), paragraph(level=1), {}, True),
    ("indented by two", paragraph(level=0), paragraph(level=2), {}, False),
    ("level of a bullet", bullet("*"), both(bullet("*"), paragraph(level=1)), {}, False),
    ("bullets beside an empty run", both(bullet("*"), blank_run), both(bullet("-"), blank_run), {}, True),
    (
        "indented, not examined",
        paragraph(level=1),
        paragraph(level=2),
        {"examine_indent": False, "examine_bullets": False},
        True,
    ),
    ("bullet", bullet("-"), bullet("*"), {}, False),
    ("bullet not examined", bullet("-"), bullet("*"), {"examine_bullets": False}, True),
    ("background", background(255), background(254), {}, False),
    ("background not examined", background(255), None, {"examine_background_color": False}, True),
    ("note", None, noted("x"), {}, False),
    ("note of blanks", None, noted("  "), {}, True),
    ("note not examined", None, noted("x"), {"examine_note": False}, True),
    ("runs", None, second_run, {}, False),
    ("runs not examined", None, second_run, {"examine_run_count": False}, True),
    ("place", None, moved(0, "left", 1.2), {}, False),
    ("place of a picture", None, moved(1, "left", 1.2), {}, True),
    ("nearly the place", None, moved(0, "left", 1.004), {}, True),
    ("nearly the place, exactly", None, moved(0, "left", 1.004), {"approximately_tolerance": 0}, False),
    ("place not examined", None, moved(0, "left", 1.2), {"examine_shape": False}, True),
    ("what nobody knows", None, None, {"examine_shape_lenient_height": True, "_note": "x"}, True),
    ("table: colour", coloured(1, cell_run), coloured(2, cell_run), {}, False),
    ("table: bold", None, font("bold", True, cell_run), {"examine_font_bold": False}, False),
    ("group", grouped(PP_ALIGN.LEFT), grouped(PP_ALIGN.RIGHT), {"examine_shape": False}, False),
    ("group again", grouped(PP_ALIGN.RIGHT), grouped(PP_ALIGN.RIGHT), {}, True),
    ("one shape more", None, grouped(None), {}, False),
    ("one slide more", None, lambda made: made.slides.add_slide(made.slide_layouts[BLANK]), {}, False),
    (
        "one slide more, not examined",
        None,
        lambda made: made.slides.add_slide(made.slide_layouts[BLANK]),
        {"examine_number_of_slides": False},
        True,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "found", "gold", "options", "same"), SAME, ids=[one[0] for one in SAME])
def test_presentations_are_the_same(
    score: Score,
    slides: Callable[..., str],
    name: str,
    found: Change | None,
    gold: Change | None,
    options: dict[str, Any],
    same: bool,
) -> None:
    paths = [slides(file, *([change] if change else [])) for file, change in (("f.pptx", found), ("g.pptx", gold))]
    assert score("compare_pptx_files", *paths, **options) == same


def theme_background(made: Any) -> None:
    fill = made.slides[0].background.fill
    fill.solid()
    fill.fore_color.theme_color = MSO_THEME_COLOR.ACCENT_1


def test_a_theme_background_is_an_error(score: Score, slides: Callable[..., str]) -> None:
    path = slides("f.pptx", theme_background)
    with pytest.raises(AttributeError):
        score("compare_pptx_files", path, path, examine_background_color=False)
    assert score("evaluate_presentation_fill_to_rgb_distance", path, {"rgb": [255, 0, 0]}) == 0


def titled(top: float) -> Change:
    def change(made: Any) -> None:
        box = made.slides[0].shapes.add_textbox(Inches(1), Emu(int(top)), Inches(4), Inches(1)).text_frame
        box.text = "Product Comparison"

    return change


@pytest.mark.parametrize(
    ("option", "found", "gold", "wanted"),
    [
        ("examine_title_bottom_position", titled(3_700_000), titled(100_000), 1),
        ("examine_title_bottom_position", titled(100_000), titled(100_000), 0),
        ("examine_title_bottom_position", titled(3_500_000), titled(100_000), 0),
        ("examine_table_bottom_position", moved(2, "top", 4), None, 1),
        ("examine_table_bottom_position", None, None, 0),
        ("examine_right_position", moved(1, "left", 6), None, 1),
        ("examine_right_position", moved(1, "left", 2), None, 0),
        ("examine_top_position", moved(1, "top", 0.5), None, 1),
        ("examine_top_position", moved(1, "top", 2.9), None, 0),
        ("examine_shape_for_shift_size", None, None, 1),
        ("examine_shape_for_shift_size", moved(1, "left", 2), None, 0),
        ("examine_image_size", moved(1, "left", 5), None, 1),
        ("examine_image_size", moved(1, "width", 5), None, 0),
        ("examine_image_size", moved(0, "left", 5), None, 0),
        ("examine_modify_height", moved(1, "left", 5), None, 1),
        ("examine_modify_height", moved(1, "height", 5), None, 0),
        ("examine_modify_height", moved(0, "left", 5), None, 0),
    ],
)
def test_places(
    score: Score, slides: Callable[..., str], option: str, found: Change | None, gold: Change | None, wanted: float
) -> None:
    paths = [slides(file, *([change] if change else [])) for file, change in (("f.pptx", found), ("g.pptx", gold))]
    assert score("compare_pptx_files", *paths, **{option: True, "examine_shape": False}) == wanted


def test_orientation_and_backgrounds(score: Score, slides: Callable[..., str]) -> None:
    def portrait(made: Any) -> None:
        made.slide_width, made.slide_height = made.slide_height, made.slide_width

    assert score("check_slide_orientation_Portrait", slides("f.pptx", portrait)) == 1
    assert score("check_slide_orientation_Portrait", slides("f.pptx")) == 0
    rules = {"rgb": [255, 0, 0]}
    assert score(
        "evaluate_presentation_fill_to_rgb_distance", slides("f.pptx", background(255)), rules
    ) == pytest.approx(1 / 3)
    kept = rules | {"original_rgb": [255, 0, 0]}
    assert score("evaluate_presentation_fill_to_rgb_distance", slides("f.pptx", background(255)), kept) == 0


def test_a_stretched_picture(score: Score, slides: Callable[..., str]) -> None:
    def front(width: float, height: float) -> Change:
        return lambda made: made.slides[0].shapes.add_picture(png("blue"), 0, 0, Inches(width), Inches(height))

    original = slides("o.pptx", front(2, 2))
    assert score("check_image_stretch_and_center", slides("f.pptx", front(10, 7.5)), original) == 1
    assert score("check_image_stretch_and_center", slides("f.pptx", front(5, 7.5)), original) == 0
    assert score("check_image_stretch_and_center", slides("f.pptx"), original) == 0
    assert score("check_image_stretch_and_center", original, slides("p.pptx")) == 0


MASTER = '<p:m xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
MASTER += 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main">{}</p:m>'
TEXT = '<a:rPr><a:solidFill><a:srgbClr val="{}"/></a:solidFill></a:rPr>'


def test_transitions_and_page_numbers(score: Score, tmp_path: Path) -> None:
    def package(name: str, content: str) -> str:
        with zipfile.ZipFile(tmp_path / "f.pptx", "w") as made:
            made.writestr(name, MASTER.format(content))
        return str(tmp_path / "f.pptx")

    slide = package("ppt/slides/slide2.xml", "<p:transition><p:dissolve/></p:transition>")
    assert score("check_transition", slide, {"slide_idx": 1, "transition_type": "dissolve"}) == 1
    assert score("check_transition", slide, {"slide_idx": 1, "transition_type": "fade"}) == 0
    assert score("check_transition", slide, {"slide_idx": 0, "transition_type": "dissolve"}) == 0
    master = "ppt/slideMasters/slideMaster1.xml"
    for colours, name, wanted in [
        (["00FF00", "C9211E"], "red", 1),
        (["00FF00", "C9211E"], "green", 0),
        (["C9211E", "000000"], "red", 1),
        (["000000"], "black", 1),
        (["0000FF"], "blue", 1),
        ([], "red", 0),
    ]:
        path = package(master, "".join(TEXT.format(colour) for colour in colours))
        assert score("check_page_number_colors", path, {"color": name}) == wanted


def test_media_of_a_slide_are_found(tmp_path: Path, slides: Callable[..., str]) -> None:
    from paragent.osworld.evaluators.getters.applications import linked_media

    plain = slides("f.pptx")
    assert linked_media(plain, 0, "image", str(tmp_path / "out")) is None
    assert linked_media(plain, 9, "audio", str(tmp_path / "out")) is None
    made = tmp_path / "made.pptx"
    relations = '<R xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</R>'
    with zipfile.ZipFile(made, "w") as package:
        names = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
        picture = f'<p:bgPr><a:blip {names} r:embed="r1"/></p:bgPr>'
        package.writestr("ppt/slides/slide1.xml", MASTER.format(picture))
        links = (
            '<L Id="r0" Type="x/image" Target="../media/no.png"/><L Id="r1" Type="x/image" Target="../media/a.png"/>'
        )
        links += '<L Id="r2" Type="x/audio" Target="file:///home/user/My%20song.mp3"/>'
        package.writestr("ppt/slides/_rels/slide1.xml.rels", relations.format(links))
        package.writestr("ppt/media/a.png", b"picture")
    assert linked_media(str(made), 0, "image", str(tmp_path / "out")) == str(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"picture"
    assert linked_media(str(made), 0, "audio", str(tmp_path / "out")) == "/home/user/My song.mp3"


def test_every_shape_type_is_compared(score: Score, slides: Callable[..., str]) -> None:
    def star(made: Any) -> None:
        made.slides[1].shapes.add_shape(MSO_SHAPE.STAR_5_POINT, 0, 0, Inches(1), Inches(1))

    assert score("compare_pptx_files", slides("f.pptx", star), slides("g.pptx", star)) == 1
