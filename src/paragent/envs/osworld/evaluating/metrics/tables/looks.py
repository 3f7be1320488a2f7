"""How cells look: formats, fonts, colours, also where a condition decides."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.metrics.vocabulary import NotUnderstood

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.envs.osworld.evaluating.metrics.tables.books import Sheet

__all__ = ["look_of", "looks"]

_FONT = {
    "font_name": "name",
    "font_family": "family",
    "font_bold": "bold",
    "font_italic": "italic",
    "font_underline": "underline",
    "font_size": "size",
}
_OPERATORS = {
    "lessThan": operator.lt,
    "lessThanOrEqual": operator.le,
    "equal": operator.eq,
    "notEqual": operator.ne,
    "greaterThanOrEqual": operator.ge,
    "greaterThan": operator.gt,
}
_EMPTY_RUN = 50
"""Empty cells in a row after which a condition's range is taken to be over: it may be a million cells long."""


def look_of(prop: str, cell: Any, conditional: Any = None) -> Any:
    """Return one property of a cell's look, or of the look that a condition gives it.

    Fonts, number formats and links count only where the cell has a value.

    Raises:
        NotUnderstood: there is no such property.
    """
    from openpyxl.cell.cell import MergedCell

    source = conditional or cell
    if prop in {"bgcolor", "fgcolor"}:
        fill = getattr(source, "fill", None)
        colour = getattr(fill, "bgColor" if conditional else "fgColor", None)
        return getattr(colour, "rgb", None)
    if prop == "fill_type":
        return getattr(getattr(source, "fill", None), "tagname", None)
    if prop == "merge":
        return isinstance(cell, MergedCell)
    if prop not in {*_FONT, "font_color", "number_format", "hyperlink"}:
        raise NotUnderstood(f"cells have no look called {prop!r}")
    if cell.value is None:
        return None
    if prop in _FONT:
        return getattr(source.font, _FONT[prop], None)
    if prop == "font_color":
        return getattr(getattr(source.font, "color", None), "rgb", None)
    if prop == "hyperlink":
        return cell.hyperlink or ""
    if cell.data_type != "n":
        return None
    return cell.number_format if conditional is None else conditional.numFmt.formatCode


def looks(sheet: Sheet, rule: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the properties that a rule asks for, of every cell by coordinate.

    Of conditional formats, those that compare the cell with constants are applied. The others are left out.
    """
    props: Sequence[str] = rule.get("props", [])
    worksheet = sheet.worksheet
    found = {
        cell.coordinate: [look_of(prop, cell) for prop in props] for column in worksheet.iter_cols() for cell in column
    }
    for formatting in worksheet.conditional_formatting:
        for condition in formatting.rules:
            for coordinate in _where(condition, formatting.cells, sheet):
                cell = worksheet[coordinate]
                found[coordinate] = [look_of(prop, cell, condition.dxf) for prop in props]
    return found


def _where(condition: Any, cells: Any, sheet: Sheet) -> list[str]:
    """Return the cells that meet a condition."""
    from openpyxl.utils import get_column_letter

    references = [_constant(text) for text in condition.formula]
    if condition.type != "cellIs" or None in references or condition.dxf is None:
        return []
    met = []
    for part in cells:
        empty = 0
        for row, column in part.cells:
            coordinate = f"{get_column_letter(column)}{row}"
            value = sheet.value(coordinate)
            empty = empty + 1 if value is None else 0
            if empty > _EMPTY_RUN:
                break
            if value is not None and _holds(condition.operator, value, references):
                met.append(coordinate)
    return met


def _constant(formula: str) -> float | str | None:
    """Return the value of a formula that is a number or a text, else None."""
    if len(formula) >= 2 and formula[0] == formula[-1] == '"':
        return formula[1:-1].replace('""', '"')
    try:
        return float(formula)
    except ValueError:
        return None


def _holds(name: str, value: Any, references: list[Any]) -> bool:
    try:
        if name in {"between", "notBetween"}:
            inside = min(references) <= value <= max(references)
            return bool(inside == (name == "between"))
        return bool(_OPERATORS[name](value, references[0]))
    except (TypeError, KeyError, IndexError):
        return False
