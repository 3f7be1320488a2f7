"""Text documents, made with python-docx and, for ODT, by hand."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import docx
import pytest
from docx.enum.text import WD_BREAK, WD_PARAGRAPH_ALIGNMENT, WD_TAB_ALIGNMENT
from docx.shared import Inches, Pt, RGBColor
from PIL import Image

Score = Callable[..., float]
Make = Callable[..., str]
LINES = ["Title", "", "One line.", "Another line."]


@pytest.fixture
def document(tmp_path: Path) -> Make:
    """Make a document of paragraphs and return its path."""

    def make(name: str, lines: Sequence[str] = LINES, change: Callable[[Any], Any] | None = None) -> str:
        made = docx.Document()
        for line in lines:
            made.add_paragraph(line)
        if change is not None:
            change(made)
        made.save(str(tmp_path / name))
        return str(tmp_path / name)

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "options", "wanted"),
    [
        (LINES, {}, 1),
        (["Title", "One  line.", "Another line."], {}, 1),
        (["Title", "One  line.", "Another line."], {"ignore_blanks": False}, 0),
        (["title", "", "One line.", "Another line."], {}, 0),
        (["title", "", "One line.", "Another line."], {"ignore_case": True}, 1),
        (["title", "", "One line.", "Another line."], {"ignore_case": True, "ignore_blanks": False}, 1),
        (LINES[::-1], {}, 0),
        (LINES[::-1], {"ignore_order": True}, 1),
        (["", *LINES], {"ignore_blanks": False}, 0),
        (["", *LINES], {"ignore_blanks": False, "delete_empty_lines": True}, 1),
        (["Title", "", "One line.", "Another lime."], {"content_only": True}, 1 - 1 / 29),
        (["Title", "", "One line.", "Another lime."], {"fuzzy_match": True}, 1 - 1 / 29),
        (["Xitle", "", "One line.", "Another line."], {"fuzzy_match": True, "ignore_blanks": False}, (3 + 0.8) / 4),
    ],
)
def test_words(score: Score, document: Make, lines: Sequence[str], options: dict[str, Any], wanted: float) -> None:
    found = score("compare_docx_files", document("found.docx", lines), document("gold.docx"), **options)
    assert found == pytest.approx(wanted)


def test_types_of_documents_are_not_mixed(score: Score, document: Make, write: Make) -> None:
    gold = document("gold.docx")
    assert score("compare_docx_files", None, gold) == 0
    assert score("compare_docx_files", write("found.txt", "x"), gold) == 0
    assert score("compare_docx_files_and_ignore_new_lines", write("found.odt", "x"), gold) == 0


def test_empty_paragraphs_can_be_ignored(score: Score, document: Make) -> None:
    found, gold = document("found.docx", ["Title", "One line.", "Another line."]), document("gold.docx")
    assert score("compare_docx_files_and_ignore_new_lines", found, gold, ignore_blanks=False) == 1
    other = document("other.docx", ["Title", "One line."])
    assert score("compare_docx_files_and_ignore_new_lines", other, gold) == 0


ODT = """<?xml version="1.0"?><office:document-content
 xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"
 xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0"
 xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0">
<office:automatic-styles><style:style style:name="T1"><style:text-properties fo:background-color="{}"/></style:style>
</office:automatic-styles><office:body><office:text>
<text:p>Plain and <text:span text:style-name="T1">marked</text:span> words{}</text:p><text:p/></office:text></office:body>
</office:document-content>"""


@pytest.fixture
def odt(tmp_path: Path) -> Make:
    def make(name: str, colour: str = "transparent", more: str = "") -> str:
        with zipfile.ZipFile(tmp_path / name, "w") as package:
            package.writestr("content.xml", ODT.format(colour, more))
        return str(tmp_path / name)

    return make


def test_odt_words_and_highlights(score: Score, odt: Make) -> None:
    gold = odt("gold.odt")
    assert score("compare_docx_files", odt("found.odt"), gold) == 1
    assert score("compare_docx_files", odt("found.odt", more="!"), gold) == 0
    assert score("check_highlighted_words", odt("found.odt"), gold) == 1
    assert score("check_highlighted_words", odt("found.odt", "#ffff00"), gold) == 0


def table(*rows: Sequence[str]) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        added = made.add_table(len(rows), len(rows[0]))
        for row, texts in enumerate(rows):
            for column, text in enumerate(texts):
                added.cell(row, column).text = text

    return change


def test_tables(score: Score, document: Make) -> None:
    gold = document("gold.docx", change=table(["a", "b"], ["c", "d"]))
    assert score("compare_docx_tables", document("f.docx", change=table(["a ", "b"], ["c", "d"])), gold) == 1
    assert score("compare_docx_tables", document("f.docx", change=table(["a", "b"], ["c", "x"])), gold) == 0
    assert score("compare_docx_tables", document("f.docx", change=table(["a", "b"])), gold) == 0
    assert score("compare_docx_tables", document("f.docx"), gold) == 0


def picture(colour: str) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        data = io.BytesIO()
        Image.new("RGB", (8, 8), colour).save(data, "PNG")
        made.add_picture(data)

    return change


def test_images_in_documents(score: Score, document: Make) -> None:
    gold = document("gold.docx", change=picture("red"))
    assert score("compare_docx_images", document("f.docx", change=picture("red")), gold) == 1
    assert score("compare_docx_images", document("f.docx", change=picture("blue")), gold) == 0
    assert score("compare_docx_images", document("f.docx"), gold) == 0


def spaced(*spacings: float) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        for paragraph, spacing in zip(made.paragraphs, spacings, strict=False):
            paragraph.paragraph_format.line_spacing = spacing

    return change


def test_line_spacing(score: Score, document: Make) -> None:
    gold = document("gold.docx", change=spaced(2.0, 1.5))
    assert score("compare_line_spacing", document("f.docx", change=spaced(2.0, 1.5)), gold) == 1
    assert score("compare_line_spacing", document("f.docx", change=spaced(2.0, 1.0)), gold) == 0
    assert score("compare_line_spacing", document("f.docx", ["x"], change=spaced(2.0)), gold) == 0


def fonts(**settings: Any) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        for paragraph in made.paragraphs:
            for run in paragraph.runs:
                for name, value in settings.items():
                    setattr(run.font, name, value)

    return change


def test_fonts(score: Score, document: Make) -> None:
    gold = document("gold.docx", change=fonts(subscript=True))
    assert score("compare_font_names", document("f.docx", change=fonts(name="Arial")), {"font_name": "Arial"}) == 1
    assert score("compare_font_names", document("f.docx"), {"font_name": "Arial"}) == 0
    assert score("compare_subscript_contains", document("f.docx", change=fonts(subscript=True)), gold) == 1
    assert score("compare_subscript_contains", document("f.docx"), gold) == 0
    assert score("evaluate_strike_through_last_paragraph", document("f.docx", change=fonts(strike=True)), gold) == 1
    assert score("evaluate_strike_through_last_paragraph", document("f.docx"), gold) == 0
    large = document("f.docx", change=fonts(italic=True, size=Pt(14)))
    assert score("check_italic_font_size_14", large, gold) == 1
    assert score("check_italic_font_size_14", document("f.docx", change=fonts(italic=True, size=Pt(12))), gold) == 0
    assert score("check_italic_font_size_14", document("f.docx"), gold) == 1


def test_pages_and_lines(score: Score, document: Make) -> None:
    def centred(made: Any) -> None:
        made.paragraphs[0].paragraph_format.alignment = WD_PARAGRAPH_ALIGNMENT.CENTER
        made.sections[0].footer.paragraphs[0].text = "Page 1"
        made.paragraphs[2].runs[0].add_break(WD_BREAK.PAGE)

    found, plain = document("f.docx", change=centred), document("p.docx")
    assert score("is_first_line_centered", found) == 1
    assert score("is_first_line_centered", plain) == 0
    assert score("has_page_numbers_in_footers", found) == 1
    assert score("has_page_numbers_in_footers", plain) == 0
    assert score("contains_page_break", found) == 1
    assert score("contains_page_break", found, {"page_break_count": 1}) == 1
    assert score("contains_page_break", found, {"page_break_count": 2}) == 0
    assert score("contains_page_break", plain, {}) == 0


def test_tab_stops(score: Score, document: Make) -> None:
    def at(inches: float, alignment: Any = WD_TAB_ALIGNMENT.RIGHT) -> Callable[[Any], None]:
        def change(made: Any) -> None:
            for paragraph in made.paragraphs:
                paragraph.paragraph_format.tab_stops.add_tab_stop(Inches(inches), alignment)

        return change

    lines = ["one two three\tfour", "five six seven\teight"]
    gold = document("gold.docx", lines, change=at(6))
    more = {"word_number_split_by_tabstop": 3, "index": 0}
    assert score("check_tabstops", document("f.docx", lines, change=at(6)), gold, **more) == 1
    assert score("check_tabstops", document("f.docx", lines, change=at(3)), gold, **more) == pytest.approx(0.5)
    assert score("check_tabstops", document("f.docx", lines, change=at(6, WD_TAB_ALIGNMENT.LEFT)), gold) == 0
    assert score("check_tabstops", document("f.docx", lines), gold) == 0
    assert score("check_tabstops", document("f.docx", ["one two\tx", "y\tz"], change=at(6)), gold, **more) == 0


def test_coloured_words_in_tables(score: Score, document: Make) -> None:
    def coloured(vowel: tuple[int, int, int]) -> Callable[[Any], None]:
        def change(made: Any) -> None:
            table(["apple", "pear"])(made)
            for cell in made.tables[0].rows[0].cells:
                run = cell.paragraphs[0].runs[0]
                run.font.color.rgb = RGBColor(*vowel) if run.text == "apple" else RGBColor(0, 0, 255)

        return change

    gold = document("gold.docx", change=table(["apple", "pear"]))
    assert score("evaluate_colored_words_in_tables", document("f.docx", change=coloured((255, 0, 0))), gold) == 1
    assert score("evaluate_colored_words_in_tables", document("f.docx", change=coloured((250, 10, 10))), gold) == 1
    assert score("evaluate_colored_words_in_tables", document("f.docx", change=coloured((0, 255, 0))), gold) == 0
    assert score("evaluate_colored_words_in_tables", gold, gold) == 0


def test_references(score: Score, document: Make) -> None:
    gold = document("gold.docx", ["Text", "References", "Abcdefghij", "Klmnopqrst"])
    near = document("f.docx", ["Other text", "References", "Abcdefghij", "Klmnopqrsx"])
    assert score("compare_references", near, gold, reference_base_result=0.5) == pytest.approx((0.95 - 0.5) / 0.5)
    assert score("compare_references", near, gold, reference_base_result=0.95) == 0
    assert score("compare_references", document("g.docx", ["References", "Abcdefghij"]), gold) == 0
    assert score("compare_references", document("h.docx", ["Abcdefghij"]), gold) == 0
    assert score("compare_references", document("h.docx", ["x"]), document("i.docx", ["y"])) == 1


def test_trains_and_places(score: Score, document: Make) -> None:
    original = document("o.docx", ["08:00, T1, S, 1", "08:01, T1, S, 2", "08:02, T2, S, 1"])
    gold = document("gold.docx", ["08:00, T1, S, 1", "08:02, T2, S, 1"])
    either = document("f.docx", ["08:01, T1, S, 2", "08:02, T2, S, 1"])
    assert score("compare_unique_train_records", either, [gold, original]) == 1
    assert score("compare_unique_train_records", original, [gold, original]) == 0
    assert score("compare_unique_train_records", document("g.docx", ["09:00, T1, S, 1"]), [gold, original]) == 0
    places = {"expected": ["AAAAA", "BBBBB"]}
    assert score("fuzzy_place_math", document("p.docx", ["AAAAA BBBBB", "BBBBX"]), places) == pytest.approx(2.8 / 3)
    assert score("fuzzy_place_math", document("p.docx", ["AAAAA BBBBB", "BBBBX zz"]), places) == 0


def test_only_odt_documents_can_have_highlighted_words(score: Score, document: Make) -> None:
    path = document("f.docx", ["one"])
    with pytest.raises(KeyError):
        score("check_highlighted_words", path, path)
