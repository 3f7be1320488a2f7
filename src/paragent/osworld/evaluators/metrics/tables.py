"""Metrics of spreadsheets: `compare_table` and its rules; and the getter of a workbook's last row."""

from __future__ import annotations

import itertools
import posixpath
import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent.osworld.evaluators.getters.machine import copy_of
from paragent.osworld.evaluators.metrics.cell_styles import check_style, style_of, styles_of
from paragent.osworld.evaluators.metrics.matching import check_methods, matches, ratio
from paragent.osworld.evaluators.metrics.reading import lines_of, open_package
from paragent.osworld.evaluators.metrics.workbooks import Book, NoSheet, Sheet, check_reference, part_of, sheet_of
from paragent.osworld.evaluators.supported import UnsupportedCheck, checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paragent.osworld.context import GetterContext

__all__ = [
    "charts",
    "compare_conference_city_in_order",
    "compare_table",
    "content_from_vm_file",
    "filters",
    "last_row",
    "lines",
    "pivot_tables",
    "sparklines",
]

_SPARKLINE = "{http://schemas.microsoft.com/office/spreadsheetml/2009/9/main}sparkline"
_FORMULA = "{http://schemas.microsoft.com/office/excel/2006/main}f"
_PLACE = "{http://schemas.microsoft.com/office/excel/2006/main}sqref"


def charts(sheet: Sheet, rule: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the properties that a rule names for every chart, by its data source; empty if the sheet does not exist."""
    wanted = rule.get("chart_props", [])
    return {_series(chart): {prop: _chart_prop(chart, prop) for prop in wanted} for chart in _drawn(sheet, "_charts")}


def _drawn(sheet: Sheet, kind: str) -> list[Any]:
    try:
        return list(getattr(sheet.worksheet, kind))
    except NoSheet:
        return []


def _series(chart: Any) -> str:
    return ";".join(f"{_source(series, 'val')},{_source(series, 'cat')}" for series in chart.series)


def _source(series: Any, axis: str) -> str:
    """Return the cells of a series' values or categories."""
    data = getattr(series, axis, None)
    for kind in ("numRef", "strRef"):
        reference = getattr(data, kind, None)
        if reference is not None:
            return str(reference.f)
    return ""


def _chart_prop(chart: Any, prop: str) -> Any:
    if prop == "type":
        return chart.tagname
    if prop == "direction":
        return chart.barDir
    if prop == "title":
        return _title(chart)
    if prop in {"xtitle", "ytitle", "ztitle"}:
        return _title(getattr(chart, f"{prop[0]}_axis", None))
    if prop == "legend":
        return getattr(chart.legend, "position", None)
    if prop in {"width", "height"}:
        return getattr(chart, prop)
    if prop == "anchor":
        anchor = chart.anchor
        return [anchor.editAs, anchor._from.col, anchor.to.row, anchor.to.col, anchor.to.row]
    return None


def _title(owner: Any) -> str | None:
    try:
        return str(owner.title.tx.rich.p[0].r[0].t)
    except (AttributeError, IndexError, TypeError):
        return None


def pivot_tables(sheet: Sheet, rule: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the properties that a rule names for every pivot table, by its data source."""
    wanted = set(rule.get("pivot_props", []))
    return dict(_pivot(pivot, wanted) for pivot in _drawn(sheet, "_pivots"))


def _pivot(pivot: Any, wanted: set[str]) -> tuple[str, dict[str, Any]]:
    """Return the source and the properties of a pivot table.

    Columns at the edges of the source that are not used do not count, because programs differ in whether they include them.
    """
    from openpyxl.utils import coordinate_to_tuple

    fields = [[(item.h, item.x) for item in field.items if item.x is not None] for field in pivot.pivotFields]
    rest = list(itertools.dropwhile(lambda field: not field, fields))
    used = list(itertools.dropwhile(lambda field: not field, reversed(rest)))[::-1]
    left, right = len(fields) - len(rest), len(rest) - len(used)
    source = pivot.cache.cacheSource
    (top, start), (bottom, end) = map(coordinate_to_tuple, source.worksheetSource.ref.split(":"))
    key = f"{source.type};{(top, start + left)}:{(bottom, end - right)};{source.worksheetSource.sheet}"
    found: dict[str, Any] = {}
    for prop, attribute in _PIVOT_PLAIN.items():
        if prop in wanted:
            found[prop] = getattr(pivot, attribute)
    if wanted & {"filter", "selection"}:
        found["selection"] = used if "ordered" in wanted else [set(field) for field in used]
    if "filter" in wanted:
        found["filter_fields"] = {field.fld for field in pivot.pageFields}
    for prop, attribute in (("col_fields", "colFields"), ("row_fields", "rowFields")):
        if prop in wanted:
            found[prop] = [field.x - left for field in getattr(pivot, attribute)]
    if "data_fields" in wanted:
        named = "data_fields_name" in wanted
        found["data_fields"] = [
            (field.fld - left, field.name if named else "", field.subtotal, field.showDataAs)
            for field in pivot.dataFields
        ]
    return key, found


_PIVOT_PLAIN = {
    "name": "name",
    "show_total": "visualTotals",
    "show_empty_row": "showEmptyRow",
    "show_empty_col": "showEmptyCol",
    "show_headers": "showHeaders",
    "location": "location",
}


def lines(sheet: Sheet, kind: str, rule: Mapping[str, Any]) -> dict[Any, dict[str, Any]]:
    """Return the properties that a rule names for every row or column with properties of its own."""
    try:
        dimensions = getattr(sheet.worksheet, f"{kind}_dimensions")
    except NoSheet:
        return {}
    return {key: {prop: getattr(line, prop) for prop in rule.get("props", [])} for key, line in dimensions.items()}


def filters(sheet: Sheet) -> dict[str, Any]:
    """Return the automatic filter of a sheet: its range, its conditions and its sorting."""
    try:
        found = sheet.worksheet.auto_filter
    except NoSheet:
        return {}
    columns = [_filter_column(column) for column in sorted(found.filterColumn, key=lambda column: column.colId)]
    return {"ref": found.ref, "columns": columns, "sort": _sorting(found.sortState)}


def _filter_column(column: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": column.colId, "hidden": column.hiddenButton, "shown": column.showButton}
    if column.filters is not None:
        entry["blank"], entry["values"] = column.filters.blank, set(column.filters.filter)
    if column.customFilters is not None:
        entry["and"] = column.customFilters._and
        entry["custom"] = {(one.operator, one.val) for one in column.customFilters.customFilter}
    return entry


def _sorting(state: Any) -> Any:
    if state is None:
        return None
    names = ("descending", "sortBy", "ref", "customList", "dxfId", "iconSet", "iconId")
    conditions = [tuple(getattr(condition, name) for name in names) for condition in state.sortCondition]
    return (state.columnSort, state.caseSensitive, state.sortMethod, state.ref, conditions)


def sparklines(sheet: Sheet) -> dict[str, str]:
    """Return the source cells of the sparklines, by position.

    Raises:
        NoSheet: the sheet does not exist.
        AttributeError: a sparkline has no position or no source.
    """
    with open_package(sheet.book.path) as package:
        data = part_of(package, sheet.name)
    if data is None:
        raise NoSheet(sheet.name)
    found: Any = [(one.find(_PLACE), one.find(_FORMULA)) for one in ET.fromstring(data).iter(_SPARKLINE)]
    return {place.text.strip(): formula.text.strip() for place, formula in found}


_DIGITS = 4
"""OSWorld's number of decimal places for comparing numbers."""
_LIKENESS = 85.0
"""OSWorld's threshold of similarity, in percent, for matching texts."""


def _check_rules(*, rules: Sequence[Mapping[str, Any]], **_: Any) -> None:
    for rule in rules:
        _check_rule(rule)


def _check_rule(rule: Mapping[str, Any]) -> None:
    kind = rule["type"]
    if kind not in _RULES:
        raise UnsupportedCheck(f"unknown rule {kind!r} about workbooks")
    if kind != "sheet_name":
        for key in ("sheet_idx",) if kind in _ABOUT_ONE else ("sheet_idx0", "sheet_idx1"):
            check_reference(rule[key])
    props = rule.get("props", ())
    for prop in props if kind in {"style", "check_cell"} else ():
        if prop != "value" or kind == "style":
            check_style(prop)
    described = rule["dv_props"] if kind == "data_validation" else [props] if kind == "check_cell" else ()
    check_methods([*([rule] if kind == "zoom" else ()), *(about for one in described for about in one.values())])
    for part in rule["rules"] if kind == "sheet_fuzzy" else ():
        if part["type"] not in _TEXTS:
            raise UnsupportedCheck(f"unknown rule {part['type']!r} about cells")


@checked(options=_check_rules)
def compare_table(
    result: str | None, expected: str | None = None, *, rules: Sequence[Mapping[str, Any]], **_: Any
) -> bool:
    """Return whether a workbook meets every rule; most rules compare a sheet with one of the expected workbook."""
    if result is None:
        return False
    books = _Books(Book(result), None if expected is None else Book(expected))
    try:
        return all(_RULES[rule["type"]](books, rule) for rule in rules)
    except NoSheet:
        return False


class _Books:
    """The result, the expected workbook, and their sheets by reference."""

    def __init__(self, result: Book, expected: Book | None) -> None:
        self.result, self.expected = result, expected

    def one(self, rule: Mapping[str, Any]) -> Sheet:
        """Return the sheet of a rule about one sheet."""
        return sheet_of(rule["sheet_idx"], self.result, self.expected)

    def pair(self, rule: Mapping[str, Any]) -> tuple[Sheet, Sheet]:
        """Return the sheets of a rule that compares two."""
        first, second = (sheet_of(rule[key], self.result, self.expected) for key in ("sheet_idx0", "sheet_idx1"))
        return first, second


def _names(books: _Books, _: Mapping[str, Any]) -> bool:
    return books.expected is not None and books.result.names == books.expected.names


def _data(books: _Books, rule: Mapping[str, Any]) -> bool:
    """Compare as pandas does: column names, column types, values and empty cells must be equal; numbers are rounded."""
    first, second = books.pair(rule)
    digits = rule.get("precision", _DIGITS)
    return bool(_rounded(first.frame(), digits).equals(_rounded(second.frame(), digits)))


def _rounded(frame: Any, digits: int) -> Any:
    return frame.round(dict.fromkeys(frame.select_dtypes("float").columns, digits))


def _printed(books: _Books, rule: Mapping[str, Any]) -> bool:
    """Compare the printed sheets, which another program has written to files beside the workbooks."""
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


def _fuzzy(books: _Books, rule: Mapping[str, Any]) -> bool:
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.cell_range import MultiCellRange

    pair = books.pair(rule)
    for part in rule["rules"]:
        for cells in MultiCellRange(part["range"]).ranges:
            for row, column in cells.cells:
                texts = [_plain(str(sheet.value(f"{get_column_letter(column)}{row}")), part) for sheet in pair]
                if not _TEXTS[part["type"]](texts[0], texts[1], part):
                    return False
    return True


def _plain(text: str, rule: Mapping[str, Any]) -> str:
    for old, new in rule.get("normalization", []):
        text = text.replace(old, new)
    text = text.lstrip(rule["trim_leadings"]) if "trim_leadings" in rule else text
    text = text.rstrip(rule["trim_trailings"]) if "trim_trailings" in rule else text
    text = "".join(letter for letter in text if letter not in rule.get("ignore_chars", ""))
    return text.lower() if rule.get("ignore_case", False) else text


_TEXTS: dict[str, Callable[[str, str, Mapping[str, Any]], bool]] = {
    "includes": lambda found, wanted, _: wanted in found,
    "included_by": lambda found, wanted, _: found in wanted,
    "fuzzy_match": lambda found, wanted, rule: ratio(found, wanted) * 100 >= rule.get("threshold", _LIKENESS),
    "exact_match": lambda found, wanted, _: found == wanted,
}
"""The rules about the texts of two cells."""


def _same(of: Callable[[Sheet, Mapping[str, Any]], Any]) -> Callable[[_Books, Mapping[str, Any]], bool]:
    """Return a rule that compares one property of two sheets."""

    def rule_of(books: _Books, rule: Mapping[str, Any]) -> bool:
        first, second = books.pair(rule)
        return bool(of(first, rule) == of(second, rule))

    return rule_of


def _zoom(books: _Books, rule: Mapping[str, Any]) -> bool:
    return matches(books.one(rule).worksheet.sheet_view.zoomScale or 100.0, rule)


def _validation(books: _Books, rule: Mapping[str, Any]) -> bool:
    """Return whether there are at least as many validations as described, and each of them is described."""
    found = books.one(rule).worksheet.data_validations.dataValidation
    described = rule["dv_props"]
    return len(found) >= len(described) and all(
        any(all(matches(getattr(one, name), about) for name, about in props.items()) for props in described)
        for one in found
    )


def _freeze(sheet: Sheet) -> tuple[Any, ...]:
    """Return where a sheet is frozen; the first visible cell does not count, because it changes with scrolling."""
    pane: Any = sheet.worksheet.sheet_view.pane
    if pane is None:
        return ()
    split = (int(pane.xSplit or 0), int(pane.ySplit or 0))
    return split if pane.state in {"frozen", "frozenSplit"} else (*split, pane.topLeftCell)


def _cell(books: _Books, rule: Mapping[str, Any]) -> bool:
    """Return whether a cell is as described. A value or style that cannot be read is None."""
    sheet, coordinate = books.one(rule), rule["coordinate"]
    cell = sheet.worksheet[coordinate]

    def property_of(name: str) -> Any:
        try:
            return sheet.value(coordinate) if name == "value" else style_of(name, cell)
        except (AttributeError, LookupError, TypeError):
            return None

    return all(matches(property_of(name), about) for name, about in rule["props"].items())


_RULES: dict[str, Callable[[_Books, Mapping[str, Any]], bool]] = {
    "sheet_name": _names,
    "sheet_data": _data,
    "sheet_print": _printed,
    "sheet_fuzzy": _fuzzy,
    "sparkline": _same(lambda sheet, _: sparklines(sheet)),
    "chart": _same(charts),
    "style": _same(styles_of),
    "freeze": _same(lambda sheet, _: _freeze(sheet)),
    "zoom": _zoom,
    "data_validation": _validation,
    "row_props": _same(lambda sheet, rule: lines(sheet, "row", rule)),
    "col_props": _same(lambda sheet, rule: lines(sheet, "column", rule)),
    "filter": _same(lambda sheet, _: filters(sheet)),
    "pivot_table": _same(pivot_tables),
    "check_cell": _cell,
}
"""The rules of `compare_table`."""
_ABOUT_ONE = {"zoom", "data_validation", "check_cell"}
"""The rules about one sheet; the others compare two."""


def compare_conference_city_in_order(result: str, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether cells C2 to C22 name the expected cities in order; if several are given, one of them.

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
    """Return the words of a name in lower case, without accents."""
    letters = unicodedata.normalize("NFKD", "" if value is None else str(value))
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub("[^a-z0-9]+", " ", plain.lower()).strip()


def last_row(path: str) -> list[str]:
    """Return the last row of the first sheet as strings."""
    book = Book(path)
    frame = Sheet(book, book.names[0]).frame()
    return [str(value) for value in frame.iloc[-1].astype(str).tolist()]


def _check_content(config: Mapping[str, Any]) -> None:
    if (config["file_type"], config["file_content"]) != ("xlsx", "last_row"):
        raise UnsupportedCheck(f"cannot read {config['file_content']!r} of a file of the type {config['file_type']!r}")


@checked(config=_check_content)
async def content_from_vm_file(context: GetterContext, config: Mapping[str, Any]) -> list[str] | None:
    """Return the last row of a workbook of the machine."""
    path = await copy_of(context, config["path"], posixpath.basename(config["path"]))
    if path is None:
        return None
    row: list[str] | None = await context.parse(f"{__name__}:last_row", path)
    return row
