"""Text documents, DOCX and ODT."""

from __future__ import annotations

import io
import itertools
import zipfile
from typing import TYPE_CHECKING, Any

from docx import Document
from docx.enum.text import WD_BREAK, WD_PARAGRAPH_ALIGNMENT, WD_TAB_ALIGNMENT
from docx.shared import Inches, Pt, RGBColor
from PIL import Image

from bench.osworld_parity.cases.case import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_LINES = [
    "Title",
    "",
    "One line here.",
    "Another  line\there.",
    "References",
    "A. Author, a title, 2020",
    "B. Writer, 2021",
]


def _base() -> Any:
    document = Document()
    for line in _LINES:
        document.add_paragraph(line)
    return document


def _lines(*lines: str) -> Callable[[Any], Any]:
    def change(document: Any) -> None:
        for paragraph in document.paragraphs:
            paragraph._element.getparent().remove(paragraph._element)
        for line in lines:
            document.add_paragraph(line)

    return change


def _run(**attributes: Any) -> Callable[[Any], Any]:
    def change(document: Any) -> None:
        for paragraph in document.paragraphs:
            for run in paragraph.runs:
                for name, value in attributes.items():
                    setattr(run.font, name, value)

    return change


def _last(**attributes: Any) -> Callable[[Any], Any]:
    def change(document: Any) -> None:
        for name, value in attributes.items():
            setattr(document.paragraphs[-1].runs[0].font, name, value)

    return change


def _spacing(document: Any) -> None:
    document.paragraphs[2].paragraph_format.line_spacing = 2.0


def _centred(document: Any) -> None:
    document.paragraphs[0].paragraph_format.alignment = WD_PARAGRAPH_ALIGNMENT.CENTER


def _breaks(count: int) -> Callable[[Any], Any]:
    def change(document: Any) -> None:
        for _ in range(count):
            document.paragraphs[2].runs[0].add_break(WD_BREAK.PAGE)

    return change


def _footer(text: str) -> Callable[[Any], Any]:
    def change(document: Any) -> None:
        document.sections[0].footer.paragraphs[0].text = text

    return change


def _tabs(*stops: tuple[float, Any]) -> Callable[[Any], Any]:
    def change(document: Any) -> None:
        for paragraph in document.paragraphs:
            for place, alignment in stops:
                paragraph.paragraph_format.tab_stops.add_tab_stop(Inches(place), alignment)

    return change


def _table(text: str, colour: RGBColor | None, columns: int = 2) -> Callable[[Any], Any]:
    def change(document: Any) -> None:
        table = document.add_table(2, columns)
        run = table.cell(0, 0).paragraphs[0].add_run(text)
        if colour is not None:
            run.font.color.rgb = colour

    return change


def _picture(colour: str, count: int = 1) -> Callable[[Any], Any]:
    def change(document: Any) -> None:
        for number in range(count):
            data = io.BytesIO()
            Image.new("RGB", (9 + number, 9), colour).save(data, "PNG")
            data.seek(0)
            document.add_picture(data)

    return change


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda _: None,
    "word": _lines(*_LINES[:2], "One lime here.", *_LINES[3:]),
    "case": _lines(*[line.upper() for line in _LINES]),
    "blanks": _lines(*[line.replace(" ", "  ") for line in _LINES]),
    "order": _lines(*reversed(_LINES)),
    "no empty lines": _lines(*[line for line in _LINES if line]),
    "more empty lines": _lines(*_LINES, "", " "),
    "empty": _lines(),
    "references": _lines(*_LINES[:5], "A. Auther, a title, 2020", "B. Writer, 2021"),
    "no references": _lines(*_LINES[:4]),
    "references without entries": _lines(*_LINES[:5]),
    "three places": _lines("Berlin Paris", "Rome"),
    "nearly three places": _lines("Berln Pari Rom"),
    "five places": _lines("Berlin Paris Rome Vienna Bern"),
    "trains": _lines("08:00, T1, S, 1", "08:01, T1, S, 2", "08:02, T2, S, 1"),
    "unique trains": _lines("08:00, T1, S, 1", "08:02, T2, S, 1"),
    "other trains": _lines("08:01, T1, S, 2", "08:02, T2, S, 1"),
    "tabbed": _lines("one two three\tfour", "five six seven\teight nine"),
    "font": _run(name="Times New Roman"),
    "italic": _run(italic=True),
    "italic 14": _run(italic=True, size=Pt(14)),
    "italic 12": _run(italic=True, size=Pt(12)),
    "struck": _run(strike=True),
    "struck last": _last(strike=True),
    "subscript": _run(subscript=True),
    "spacing": _spacing,
    "centred": _centred,
    "page break": _breaks(1),
    "page breaks": _breaks(2),
    "footer": _footer("Page 1"),
    "footer without digit": _footer("Page"),
    "tab stops": _tabs((1.0, WD_TAB_ALIGNMENT.LEFT), (0, WD_TAB_ALIGNMENT.LEFT), (3.0, WD_TAB_ALIGNMENT.RIGHT)),
    "near tab stops": _tabs((1.1, WD_TAB_ALIGNMENT.LEFT), (3.0, WD_TAB_ALIGNMENT.RIGHT), (4.0, WD_TAB_ALIGNMENT.CLEAR)),
    "other tab stops": _tabs((1.0, WD_TAB_ALIGNMENT.RIGHT), (3.0, WD_TAB_ALIGNMENT.RIGHT)),
    "red vowel": _table("apple", RGBColor(255, 0, 0)),
    "nearly red vowel": _table("apple", RGBColor(250, 4, 2)),
    "blue vowel": _table("apple", RGBColor(0, 0, 255)),
    "blue word": _table("tree", RGBColor(0, 0, 255)),
    "plain word": _table("tree", None),
    "table word": _table("trees ", None),
    "wider table": _table("tree", None, 3),
    "red picture": _picture("red"),
    "blue picture": _picture("blue"),
    "two pictures": _picture("red", 2),
}
_PAIRED = (
    *(
        "compare_docx_tables",
        "compare_docx_images",
        "compare_line_spacing",
        "compare_subscript_contains",
    ),
    *(
        "check_italic_font_size_14",
        "evaluate_colored_words_in_tables",
        "evaluate_strike_through_last_paragraph",
    ),
    *(
        "compare_docx_files_and_ignore_new_lines",
        "compare_references",
        "check_tabstops",
        "check_highlighted_words",
    ),
)
_OPTIONS: list[dict[str, Any]] = [
    {},
    {"ignore_blanks": False},
    {"ignore_case": True},
    {"ignore_order": True},
    {"content_only": True},
    {"content_only": True, "ignore_case": True},
    {"fuzzy_match": True},
    {"fuzzy_match": True, "ignore_blanks": False},
    {"fuzzy_match": True, "ignore_blanks": False, "ignore_case": True, "delete_empty_lines": True},
    {"delete_empty_lines": True, "ignore_blanks": False},
    {"ignore_order": True, "ignore_case": True, "ignore_blanks": False},
]


def cases(folder: Path) -> Iterator[Case]:
    paths = []
    for number, change in enumerate(_CHANGES.values()):
        document = _base()
        change(document)
        paths.append(str(folder / f"{number}.docx"))
        document.save(paths[-1])
    (folder / "broken.docx").write_bytes(b"no document")
    paths.append(str(folder / "broken.docx"))
    base = paths[0]
    for path, options in itertools.product(paths, _OPTIONS):
        yield Case("compare_docx_files", [path, base], options)
        yield Case("compare_docx_files", [path, path], options)
    for path, metric in itertools.product([*paths, None], _PAIRED):
        yield Case(metric, [path, base])
        yield Case(metric, [base, path])
        yield Case(metric, [path, path])
    yield from _more(paths)
    yield from _odt(folder, base)


def _more(paths: list[str]) -> Iterator[Case]:
    named = dict(zip([*_CHANGES, "broken"], paths, strict=True))
    tables = ("red vowel", "nearly red vowel", "blue vowel", "blue word", "plain word", "table word", "wider table")
    for one, other in itertools.product(tables, tables):
        yield Case("compare_docx_tables", [named[one], named[other]])
    for one, other in itertools.product(("tab stops", "near tab stops", "other tab stops", "nothing"), repeat=2):
        yield Case("check_tabstops", [named[one], named[other]])
    for number in (1, 3):
        yield Case("check_tabstops", [named["tabbed"]] * 2, {"word_number_split_by_tabstop": number, "index": 0})
    yield Case("check_tabstops", [named["tabbed"]] * 2, {"word_number_split_by_tabstop": 1, "index": 1})
    for options in ({"reference_base_result": 0.6}, {"reference_indicator": "Title"}):
        for path in paths:
            yield Case("compare_references", [path, paths[0]], options)
    for path in paths:
        yield Case("compare_docx_files_and_ignore_new_lines", [path, paths[0]], {"ignore_blanks": False})
        yield Case("compare_font_names", [path, {"font_name": "Times New Roman"}])
        yield Case("has_page_numbers_in_footers", [path])
        yield Case("is_first_line_centered", [path])
        for rules in ({}, {"page_break_count": 1}, {"page_break_count": 2}, {"page_break_count": None}):
            yield Case("contains_page_break", [path, rules])
        for places in (["Berlin", "Paris", "Rome"], ["Berlin"], []):
            yield Case("fuzzy_place_math", [path, {"expected": places}])
        for gold in ("unique trains", "trains", "nothing"):
            yield Case("compare_unique_train_records", [path, [named[gold], named["trains"]]])


def _odt(folder: Path, docx: str) -> Iterator[Case]:
    span = '<text:span text:style-name="T1">{}</text:span>'
    bodies = {
        "plain": "<text:p>Hello world</text:p><text:p/>",
        "highlighted": f"<text:p>Hello {span.format('world')}</text:p><text:p/>",
        "nested": f"<text:p>Hello {span.format('wo<text:s/>rld' + span.format('deep'))}</text:p>",
        "heading": "<text:h>Hello</text:h><text:p>Hello world</text:p>",
        "spaces": "<text:p>Hello<text:s/>world</text:p><text:p><text:tab/></text:p>",
        "list": "<text:list><text:list-item><text:p>Hello world</text:p></text:list-item></text:list>",
        "comment": "<text:p>Hello <!-- no -->world</text:p>",
    }
    paths = []
    for (name, body), footer, colour in itertools.product(bodies.items(), (False, True), ("#ffff00", "#ff0000")):
        path = folder / f"{name}{footer:d}{colour[1:]}.odt"
        _write_odt(path, body, "<text:p>Page</text:p>" if footer else None, colour)
        paths.append(str(path))
    for one, other in itertools.product(paths, paths[::2]):
        yield Case("compare_docx_files", [one, other])
        yield Case("compare_docx_files", [one, other], {"ignore_blanks": False})
        yield Case("check_highlighted_words", [one, other])
    yield Case("compare_docx_files", [paths[0], docx])
    yield Case("compare_docx_files", [paths[0], str(folder / "broken.odt")])


def _write_odt(path: Path, body: str, footer: str | None, colour: str) -> None:
    names = " ".join(
        f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{long}:1.0"'
        for short, long in (
            ("office", "office"),
            ("text", "text"),
            ("style", "style"),
            ("fo", "xsl-fo-compatible"),
            ("manifest", "manifest"),
        )
    )
    automatic = (
        '<office:automatic-styles><style:style style:name="T1" style:family="text">'
        f'<style:text-properties fo:background-color="{colour}"/></style:style></office:automatic-styles>'
    )
    content = (
        f'<office:document-content {names} office:version="1.2">{automatic}<office:body><office:text>{body}'
        "</office:text></office:body></office:document-content>"
    )
    master = (
        '<office:master-styles><style:master-page style:name="S" style:page-layout-name="P">'
        f"<style:footer>{footer}</style:footer></style:master-page></office:master-styles>"
    )
    styles = f'<office:document-styles {names} office:version="1.2">{master if footer else ""}</office:document-styles>'
    kind = "application/vnd.oasis.opendocument.text"
    entries = "".join(
        f'<manifest:file-entry manifest:full-path="{name}" manifest:media-type="{media}"/>'
        for name, media in (("/", kind), ("content.xml", "text/xml"), ("styles.xml", "text/xml"))
    )
    with zipfile.ZipFile(path, "w") as package:
        package.writestr("mimetype", kind)
        package.writestr("META-INF/manifest.xml", f"<manifest:manifest {names}>{entries}</manifest:manifest>")
        package.writestr("content.xml", content)
        package.writestr("styles.xml", styles)
