"""Spreadsheets against rules: what `compare_table` and its kin decide."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.metrics.fuzzy import ratio
from paragent.envs.osworld.evaluating.metrics.reading import lines_of
from paragent.envs.osworld.evaluating.metrics.tables.books import Book, NoSheet, Sheet, sheet_of
from paragent.envs.osworld.evaluating.metrics.tables.features import charts, filters, lines, pivot_tables, sparklines
from paragent.envs.osworld.evaluating.metrics.tables.looks import look_of, looks
from paragent.envs.osworld.evaluating.metrics.value_rules import matches
from paragent.envs.osworld.evaluating.metrics.vocabulary import NotUnderstood

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["compare_conference_city_in_order", "compare_table", "last_row"]

_DIGITS = 4
"""Digits after the point to which numbers are compared; OSWorld's own."""
_LIKENESS = 85.0
"""Percent that two texts must have in common to match fuzzily; OSWorld's own."""


def compare_table(
    result: str | None, expected: str | None = None, *, rules: Sequence[Mapping[str, Any]], **_: Any
) -> bool:
    """Return whether a workbook meets every rule; most rules compare one of its sheets with one of the expected workbook.

    Raises:
        NotUnderstood: there is no rule of this type.
    """
    if result is None:
        return False
    if unknown := sorted({rule["type"] for rule in rules} - set(_RULES)):
        raise NotUnderstood(f"there is no rule {unknown[0]!r} about workbooks")
    books = Books(Book(result), None if expected is None else Book(expected))
    try:
        return all(_RULES[rule["type"]](books, rule) for rule in rules)
    except NoSheet:
        return False


class Books:
    """The result, what is expected, and their sheets by reference."""

    def __init__(self, result: Book, expected: Book | None) -> None:
        self.result, self.expected = result, expected

    def one(self, rule: Mapping[str, Any]) -> Sheet:
        """Return the sheet of a rule about one."""
        return sheet_of(rule["sheet_idx"], self.result, self.expected)

    def pair(self, rule: Mapping[str, Any]) -> tuple[Sheet, Sheet]:
        """Return the sheets of a rule that compares two."""
        first, second = (sheet_of(rule[key], self.result, self.expected) for key in ("sheet_idx0", "sheet_idx1"))
        return first, second


def _names(books: Books, _: Mapping[str, Any]) -> bool:
    return books.expected is not None and books.result.names == books.expected.names


def _data(books: Books, rule: Mapping[str, Any]) -> bool:
    """Compare values as pandas does: numbers rounded, kinds of columns the same, empty cells equal, names of columns ignored."""
    first, second = books.pair(rule)
    digits = rule.get("precision", _DIGITS)
    return bool(_rounded(first.frame(), digits).equals(_rounded(second.frame(), digits)))


def _rounded(frame: Any, digits: int) -> Any:
    return frame.round(dict.fromkeys(frame.select_dtypes("float").columns, digits))


def _printed(books: Books, rule: Mapping[str, Any]) -> bool:
    """Compare what the sheets look like when printed, which a program has written to files beside the workbooks."""
    first, second = (
        [line.lower() if rule.get("ignore_case") else line for line in _lines(sheet)] for sheet in books.pair(rule)
    )
    return first == second


def _lines(sheet: Sheet) -> list[str]:
    book = Path(sheet.book.path)
    printed = book.with_name(f"{book.stem}-{sheet.name}.csv")
    if not printed.is_file():
        raise NoSheet(sheet.name)
    read = [line.strip() for line in lines_of(str(printed))]
    while read and not read[-1]:
        read.pop()
    return read


def _fuzzy(books: Books, rule: Mapping[str, Any]) -> bool:
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.cell_range import MultiCellRange

    pair = books.pair(rule)
    for part in rule["rules"]:
        for cells in MultiCellRange(part["range"]).ranges:
            for row, column in cells.cells:
                texts = [_plain(str(sheet.value(f"{get_column_letter(column)}{row}")), part) for sheet in pair]
                if not _text_matches(texts[0], texts[1], part):
                    return False
    return True


def _plain(text: str, rule: Mapping[str, Any]) -> str:
    for old, new in rule.get("normalization", []):
        text = text.replace(old, new)
    text = text.lstrip(rule["trim_leadings"]) if "trim_leadings" in rule else text
    text = text.rstrip(rule["trim_trailings"]) if "trim_trailings" in rule else text
    text = "".join(letter for letter in text if letter not in rule.get("ignore_chars", ""))
    return text.lower() if rule.get("ignore_case", False) else text


def _text_matches(found: str, wanted: str, rule: Mapping[str, Any]) -> bool:
    kind = rule["type"]
    if kind == "includes":
        return wanted in found
    if kind == "included_by":
        return found in wanted
    if kind == "fuzzy_match":
        return bool(ratio(found, wanted) * 100 >= rule.get("threshold", _LIKENESS))
    if kind == "exact_match":
        return found == wanted
    raise NotUnderstood(f"there is no rule {kind!r} about cells")


def _same(of: Callable[[Sheet, Mapping[str, Any]], Any]) -> Callable[[Books, Mapping[str, Any]], bool]:
    """Return a rule: something about the two sheets is the same."""

    def rule_of(books: Books, rule: Mapping[str, Any]) -> bool:
        first, second = books.pair(rule)
        return bool(of(first, rule) == of(second, rule))

    return rule_of


def _zoom(books: Books, rule: Mapping[str, Any]) -> bool:
    return matches(books.one(rule).worksheet.sheet_view.zoomScale or 100.0, rule)


def _validation(books: Books, rule: Mapping[str, Any]) -> bool:
    """Return whether there are at least as many validations as described, and each of them is described."""
    found = books.one(rule).worksheet.data_validations.dataValidation
    described = rule["dv_props"]
    return len(found) >= len(described) and all(
        any(all(matches(getattr(one, name), about) for name, about in props.items()) for props in described)
        for one in found
    )


def _freeze(sheet: Sheet) -> tuple[Any, ...]:
    """Return where a sheet is frozen; which cell is the first below does not count, because it moves with scrolling."""
    pane: Any = sheet.worksheet.sheet_view.pane
    if pane is None:
        return ()
    split = (int(pane.xSplit or 0), int(pane.ySplit or 0))
    return split if pane.state in {"frozen", "frozenSplit"} else (*split, pane.topLeftCell)


def _cell(books: Books, rule: Mapping[str, Any]) -> bool:
    """Return whether a cell is as described. A value or a look that cannot be read is None."""
    sheet, coordinate = books.one(rule), rule["coordinate"]
    cell = sheet.worksheet[coordinate]

    def property_of(name: str) -> Any:
        try:
            return sheet.value(coordinate) if name == "value" else look_of(name, cell)
        except (AttributeError, LookupError, TypeError):
            return None

    return all(matches(property_of(name), about) for name, about in rule["props"].items())


_RULES: dict[str, Callable[[Books, Mapping[str, Any]], bool]] = {
    "sheet_name": _names,
    "sheet_data": _data,
    "sheet_print": _printed,
    "sheet_fuzzy": _fuzzy,
    "sparkline": _same(lambda sheet, _: sparklines(sheet)),
    "chart": _same(charts),
    "style": _same(looks),
    "freeze": _same(lambda sheet, _: _freeze(sheet)),
    "zoom": _zoom,
    "data_validation": _validation,
    "row_props": _same(lambda sheet, rule: lines(sheet, "row", rule)),
    "col_props": _same(lambda sheet, rule: lines(sheet, "column", rule)),
    "filter": _same(lambda sheet, _: filters(sheet)),
    "pivot_table": _same(pivot_tables),
    "check_cell": _cell,
}
"""Every rule of `compare_table`."""


def compare_conference_city_in_order(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether cells C2 to C22 name the expected cities in order; where several are given, one of them.

    Accents, case and punctuation do not count.
    """
    sheet: Any = Book(result).workbook.active
    found = [row[0].value for row in sheet["C2:C22"]]
    expected = rules["expected"]
    return len(expected) >= len(found) and all(
        any(_city(name) and _city(name) in _city(city) for name in ([names] if isinstance(names, str) else names))
        for names, city in zip(expected, found, strict=False)
    )


def _city(value: Any) -> str:
    """Return the words of a name in small letters of the English alphabet."""
    letters = unicodedata.normalize("NFKD", "" if value is None else str(value))
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub("[^a-z0-9]+", " ", plain.lower()).strip()


def last_row(path: str) -> list[str]:
    """Return the last row of the first sheet as texts."""
    book = Book(path)
    frame = Sheet(book, book.names[0]).frame()
    return [str(value) for value in frame.iloc[-1].astype(str).tolist()]
