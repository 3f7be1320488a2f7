"""What else a sheet has: charts, pivot tables, filters, sparklines, properties of rows and columns."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent.envs.osworld.evaluating.metrics.reading import open_package
from paragent.envs.osworld.evaluating.metrics.tables.books import NoSheet, Sheet, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["charts", "filters", "lines", "pivot_tables", "sparklines"]

_SPARKLINE = "{http://schemas.microsoft.com/office/spreadsheetml/2009/9/main}sparkline"
_FORMULA = "{http://schemas.microsoft.com/office/excel/2006/main}f"
_PLACE = "{http://schemas.microsoft.com/office/excel/2006/main}sqref"


def charts(sheet: Sheet, rule: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the properties that a rule asks for, of every chart by its source of data; none where there is no sheet."""
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
    """Return the cells that a series takes its values or its categories from."""
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
    """Return the properties that a rule asks for, of every pivot table by its source of data."""
    wanted = set(rule.get("pivot_props", []))
    return dict(_pivot(pivot, wanted) for pivot in _drawn(sheet, "_pivots"))


def _pivot(pivot: Any, wanted: set[str]) -> tuple[str, dict[str, Any]]:
    """Return a pivot table's source and properties.

    Columns at the edges of the source that nothing was selected from do not count: whether they are part of the source is
    up to the program that wrote the file.
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
            places = [field.x - left for field in getattr(pivot, attribute)]
            found[prop] = places
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
    """Return the properties that a rule asks for, of every row or column that the sheet says something about."""
    try:
        dimensions = getattr(sheet.worksheet, f"{kind}_dimensions")
    except NoSheet:
        return {}
    return {key: {prop: getattr(line, prop) for prop in rule.get("props", [])} for key, line in dimensions.items()}


def filters(sheet: Sheet) -> dict[str, Any]:
    """Return the automatic filter of a sheet: where it is, what it lets pass, how it sorts."""
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
    """Return the small charts inside cells: the cells that they show, by place.

    Raises:
        NoSheet: there is none of this name.
        AttributeError: one of them does not say where it is or what it shows.
    """
    with open_package(sheet.book.path) as package:
        data = part_of(package, sheet.name)
    if data is None:
        raise NoSheet(sheet.name)
    found: Any = [(one.find(_PLACE), one.find(_FORMULA)) for one in ET.fromstring(data).iter(_SPARKLINE)]
    return {place.text.strip(): formula.text.strip() for place, formula in found}
