"""Metrics of text documents (DOCX, ODT): text, tables, images and formats."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.matching import ratio
from paragent.osworld.evaluators.metrics.reading import check_package, open_package

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from docx.document import Document

__all__ = [
    "check_highlighted_words",
    "check_italic_font_size_14",
    "check_tabstops",
    "compare_docx_files",
    "compare_docx_files_and_ignore_new_lines",
    "compare_docx_images",
    "compare_docx_tables",
    "compare_font_names",
    "compare_line_spacing",
    "compare_references",
    "compare_subscript_contains",
    "compare_unique_train_records",
    "contains_page_break",
    "docx",
    "evaluate_colored_words_in_tables",
    "evaluate_strike_through_last_paragraph",
    "fuzzy_place_math",
    "has_page_numbers_in_footers",
    "is_first_line_centered",
]

require("docx", "PIL")
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_FO = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"


def docx(path: str) -> Document:
    """Return a DOCX document.

    Raises:
        TooLarge: it unpacks to more than the limit.
        zipfile.BadZipFile: it is not a document.
    """
    from docx import Document

    return Document(check_package(path))


def _texts_of_pair(first: str, second: str) -> tuple[list[str], list[str]] | None:
    """Return the paragraphs of two documents of the same type; None if the types differ, or are neither DOCX nor ODT."""
    for suffix, read in ((".docx", _docx_texts), (".odt", _odt_texts)):
        if first.endswith(suffix) and second.endswith(suffix):
            return read(first), read(second)
    return None


def _docx_texts(path: str) -> list[str]:
    return [paragraph.text for paragraph in docx(path).paragraphs]


def _odt_texts(path: str) -> list[str]:
    """Return the texts of the paragraphs and of the spans directly inside; deeper elements do not count.

    Headers and footers come first.
    """
    return ["".join(_odt_parts(paragraph)) for root in _odt(path) for paragraph in root.iter(f"{_TEXT}p")]


def _odt(path: str) -> list[ET.Element]:
    """Return the parts of an ODT document: its styles, which contain headers and footers, if there are any, and its text.

    Raises:
        KeyError: it is another type of document.
    """
    with open_package(path) as package:
        styles = ["styles.xml"] if "styles.xml" in package.namelist() else []
        return [ET.fromstring(package.read(name)) for name in (*styles, "content.xml")]


def _odt_parts(paragraph: ET.Element) -> list[str]:
    parts = [paragraph.text or ""]
    for child in paragraph:
        if child.tag == f"{_TEXT}span":
            parts += [child.text or "", *(inner.tail or "" for inner in child)]
        parts.append(child.tail or "")
    return parts


def _has_background(path: str, colour: str) -> bool:
    """Return whether a span of an ODT document has a style with this background colour."""
    roots = _odt(path)
    used = {span.get(f"{_TEXT}style-name") for root in roots for span in root.iter(f"{_TEXT}span")}
    automatic: list[Any] = [styles for root in roots for styles in root.iter(f"{_OFFICE}automatic-styles")]
    styles = [style for part in automatic for style in part if style.get(f"{_STYLE}name") in used]
    return any(prop.get(f"{_FO}background-color") == colour for style in styles for prop in style)


_ABOVE_BASE = 0.01
"""OSWorld's threshold: how much better a score must be than that of the unchanged document."""
_RECORD_PARTS = 4
"""A train record has a time, a train, a station and a platform."""
_PLACES = 3
_YELLOW = "#ffff00"
_RED, _BLUE = (255, 0, 0), (0, 0, 255)


def _joined(paragraphs: list[str]) -> str:
    return re.sub(r"\s+", " ", "\n".join(paragraphs)).strip()


def compare_docx_files(
    result: str | None,
    expected: str | None,
    *,
    ignore_blanks: bool = True,
    ignore_case: bool = False,
    ignore_order: bool = False,
    content_only: bool = False,
    fuzzy_match: bool = False,
    delete_empty_lines: bool = False,
    **_: Any,
) -> float:
    """Return whether two documents have the same text, or with `content_only` and `fuzzy_match` how similar they are.

    With `ignore_blanks` the whole text is compared with each run of whitespace as one space; otherwise each paragraph is
    compared.
    """
    texts = _texts_of_pair(result, expected) if result and expected else None
    if texts is None:
        return 0.0
    sides = [sorted(side) if ignore_order else side for side in texts]
    if delete_empty_lines:
        sides = [[text for text in side if text.strip()] for side in sides]
    if ignore_case:
        sides = [[text.lower() for text in side] for side in sides]
    if content_only:
        return ratio(_joined(sides[0]), _joined(sides[1]))
    if ignore_blanks:
        sides = [[_joined(side)] for side in sides]
    if len(sides[0]) != len(sides[1]):
        return 0.0
    if not fuzzy_match:
        return float(sides[0] == sides[1])
    scores = [ratio(one, other) for one, other in zip(*sides, strict=True)]
    return sum(scores) / len(scores) if scores else 1.0


def compare_docx_files_and_ignore_new_lines(
    result: str | None, expected: str | None, *, ignore_blanks: bool = True, **_: Any
) -> bool:
    """Return whether two DOCX documents have the same text; empty paragraphs do not count."""
    if not result or not expected or not result.endswith(".docx"):
        return False
    texts = _texts_of_pair(result, expected)
    if texts is None:
        return False
    first, second = ([text for text in side if text] for side in texts)
    return _joined(first) == _joined(second) if ignore_blanks else first == second


def _same_words(result: str | None, expected: str | None) -> bool:
    return compare_docx_files(result, expected) == 1.0


def compare_docx_tables(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether two documents have the same tables; whitespace around the text of a cell does not count."""
    if not result or not expected:
        return False
    first, second = ([_table(table) for table in docx(path).tables] for path in (result, expected))
    return first == second


def _table(table: Any) -> tuple[int, list[list[str]]]:
    """Return the texts of a table and its number of columns, which a row of merged cells does not show."""
    rows, columns = len(table.rows), len(table.columns)
    return columns, [[table.cell(row, column).text.strip() for column in range(columns)] for row in range(rows)]


def compare_docx_images(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether two documents have the same images, in the same order."""
    if not result or not expected:
        return False
    return list(_images(result)) == list(_images(expected))


def _images(path: str) -> Iterator[bytes]:
    from PIL import Image

    for link in docx(path).part.rels.values():
        if "image" in link.reltype:
            yield Image.open(io.BytesIO(link.target_part.blob)).tobytes()


def compare_line_spacing(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether two documents have the same text and the same line spacing in each paragraph."""
    if not _same_words(result, expected):
        return False
    spacings = ([p.paragraph_format.line_spacing for p in docx(str(path)).paragraphs] for path in (result, expected))
    first, second = spacings
    return first == second


def compare_font_names(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether all runs of text have the expected font."""
    return bool(result) and all(run.font.name == rules["font_name"] for run in _runs(str(result)))


def _runs(path: str) -> Iterator[Any]:
    for paragraph in docx(path).paragraphs:
        yield from paragraph.runs


def compare_subscript_contains(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether two documents have a subscript run at the same position."""
    if not result or not expected:
        return False
    pairs = zip(docx(result).paragraphs, docx(expected).paragraphs, strict=False)
    return any(
        one.font.subscript and other.font.subscript
        for first, second in pairs
        for one, other in zip(first.runs, second.runs, strict=False)
    )


def has_page_numbers_in_footers(result: str | None, **_: Any) -> bool:
    """Return whether the first line of each section's footer contains a digit."""
    if not result:
        return False
    footers = [section.footer.paragraphs for section in docx(result).sections]
    return all(any(letter.isdigit() for letter in (lines[0].text if lines else "")) for lines in footers)


def is_first_line_centered(result: str | None, **_: Any) -> bool:
    """Return whether the first paragraph is centred."""
    from docx.enum.text import WD_PARAGRAPH_ALIGNMENT

    return bool(result) and docx(str(result)).paragraphs[0].paragraph_format.alignment == WD_PARAGRAPH_ALIGNMENT.CENTER


def contains_page_break(result: str | None, rules: Mapping[str, Any] | None = None, **_: Any) -> bool:
    """Return whether a document has page breaks; the expected number of them, if given."""
    if not result:
        return False
    count = sum(len(run.element.xpath('.//w:br[@w:type="page"]')) for run in _runs(result))
    return count > 0 and (rules or {}).get("page_break_count") in {None, count}


def check_tabstops(
    result: str | None,
    expected: str | None,
    *,
    word_number_split_by_tabstop: int | None = None,
    index: int = 0,
    **_: Any,
) -> float:
    """Return how near the tab stops of each paragraph are to the expected ones, as a share of the line width.

    With `word_number_split_by_tabstop`, the part of each paragraph between tabs at `index` must have that number of words.
    """
    if not result or not expected:
        return 0.0
    first, second = docx(result), docx(expected)
    found, wanted = ([p for p in document.paragraphs if p.text.strip()] for document in (first, second))
    if len(found) != len(wanted):
        return 0.0
    if word_number_split_by_tabstop is not None:
        parts = (paragraph.text.split("\t")[index].split() for paragraph in found)
        if any(len(words) != word_number_split_by_tabstop for words in parts):
            return 0.0
    section: Any = second.sections[0]
    width = section.page_width - section.left_margin - section.right_margin
    lost = 0.0
    for one, other in zip(found, wanted, strict=True):
        stops, aims = _tab_stops(one), _tab_stops(other)
        if [stop.alignment for stop in stops] != [stop.alignment for stop in aims]:
            return 0.0
        lost += sum(abs(stop.position - aim.position) for stop, aim in zip(stops, aims, strict=True)) / width
    return 1 - lost / len(found)


def _tab_stops(paragraph: Any) -> list[Any]:
    """Return the tab stops that have an effect."""
    from docx.enum.text import WD_TAB_ALIGNMENT

    return [
        stop
        for stop in paragraph.paragraph_format.tab_stops
        if stop.alignment != WD_TAB_ALIGNMENT.CLEAR
        and not (stop.alignment == WD_TAB_ALIGNMENT.LEFT and stop.position == 0)
    ]


def evaluate_colored_words_in_tables(
    result: str | None, expected: str | None, *, threshold: float = 3.5, **_: Any
) -> bool:
    """Return whether a document has the expected words; in tables they must be red if they begin with a vowel, otherwise blue."""
    from paragent.osworld.evaluators.metrics.images import difference

    if not _same_words(result, expected):
        return False
    for table in docx(str(result)).tables:
        runs = (run for row in table.rows for cell in row.cells for line in cell.paragraphs for run in line.runs)
        for run in runs:
            if not run.text:
                continue
            aim = _RED if run.text[0].lower() in "aeiou" else _BLUE
            if run.font.color.rgb is None or difference(tuple(run.font.color.rgb), aim) > threshold:
                return False
    return True


def check_highlighted_words(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether an ODT document has the expected words and none is highlighted in yellow."""
    return _same_words(result, expected) and not _has_background(str(result), _YELLOW)


def evaluate_strike_through_last_paragraph(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether a document has the expected words and its last paragraph is struck through."""
    return _same_words(result, expected) and all(run.font.strike for run in docx(str(result)).paragraphs[-1].runs)


def check_italic_font_size_14(result: str | None, expected: str | None, **_: Any) -> bool:
    """Return whether a document has the expected words and all italic text has the size 14."""
    if not _same_words(result, expected):
        return False
    return all(run.font.size is not None and run.font.size.pt == 14 for run in _runs(str(result)) if run.italic)


def compare_references(
    result: str | None,
    expected: str | None,
    *,
    reference_indicator: str = "References",
    reference_base_result: float = 0.5,
    **_: Any,
) -> float:
    """Return the similarity of the entries of two lists of references; only the part above the base counts."""
    if not result or not expected or not result.endswith(".docx"):
        return 0.0
    texts = _texts_of_pair(result, expected)
    if texts is None:
        return 0.0
    if all(reference_indicator not in side for side in texts):
        return 1.0
    if any(reference_indicator not in side for side in texts):
        return 0.0
    first, second = ([t for t in side[side.index(reference_indicator) + 1 :] if t.strip()] for side in texts)
    if len(first) != len(second):
        return 0.0
    found = sum(ratio(one, other) for one, other in zip(first, second, strict=True)) / len(first)
    if found < reference_base_result + _ABOVE_BASE:
        return 0.0
    return (found - reference_base_result) / (1 - reference_base_result)


def compare_unique_train_records(result: str | None, expected: list[str], **_: Any) -> bool:
    """Return whether a document has only lines of the original (the second expected file), and each train once.

    The trains and the number of lines must be those of the first expected file.
    """
    if not result or not isinstance(expected, list) or len(expected) < 2:
        return False
    found, wanted, original = (_lines(path) for path in (result, *expected[:2]))
    trains = _trains(found)
    return (
        set(found) <= set(original)
        and len(trains) == len(set(trains))
        and set(trains) == set(_trains(wanted))
        and len(found) == len(wanted)
    )


def _lines(path: str) -> list[str]:
    return [paragraph.text.strip() for paragraph in docx(path).paragraphs if paragraph.text.strip()]


def _trains(lines: list[str]) -> list[str]:
    records = (line.split(",") for line in lines)
    return [record[1].strip() for record in records if len(record) == _RECORD_PARTS]


def fuzzy_place_math(result: str | None, rules: Mapping[str, Any], **_: Any) -> float:
    """Return the similarity of the words of a document, which must be three, and the expected places."""
    if result is None:
        return 0.0
    words = [word for paragraph in docx(result).paragraphs for word in paragraph.text.split()]
    if len(words) != _PLACES:
        return 0.0
    return sum(max((ratio(word, place) for place in rules["expected"]), default=0.0) for word in words) / _PLACES
