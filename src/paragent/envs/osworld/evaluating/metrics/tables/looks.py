"""How cells look: formats, fonts, colours, also where a condition decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.metrics.tables.books import NoSheet
from paragent.envs.osworld.evaluating.metrics.tables.conditions import NotComputable, condition_of
from paragent.envs.osworld.evaluating.metrics.vocabulary import NotUnderstood

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.envs.osworld.evaluating.metrics.tables.books import Sheet
    from paragent.envs.osworld.evaluating.metrics.tables.conditions import Condition

__all__ = ["look_of", "looks"]

_FONT = {
    "font_name": "name",
    "font_family": "family",
    "font_bold": "bold",
    "font_italic": "italic",
    "font_underline": "underline",
    "font_size": "size",
}
_EMPTY_CELLS = 50
"""Empty cells after which a range of a condition is taken to be over: it may be a million cells long."""


def look_of(prop: str, cell: Any, conditional: Any = None) -> Any:
    """Return one property of a cell's look, or of the look that a condition gives it.

    Fonts, number formats and links count only where the cell has a value.

    Raises:
        NotUnderstood: there is no such property.
        AttributeError: the font has no colour, or the condition's look has no font or no number format.
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
        return getattr(source.font, _FONT[prop])
    if prop == "font_color":
        return source.font.color.rgb
    if prop == "hyperlink":
        return cell.hyperlink or ""
    if cell.data_type != "n":
        return None
    return cell.number_format if conditional is None else conditional.numFmt.formatCode


def looks(sheet: Sheet, rule: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the properties that a rule asks for, of every cell by coordinate, also where a condition decides."""
    props: Sequence[str] = rule.get("props", [])
    try:
        worksheet = sheet.worksheet
    except NoSheet:
        return {}
    found = {
        cell.coordinate: [look_of(prop, cell) for prop in props] for column in worksheet.iter_cols() for cell in column
    }
    condition = None
    for formatting in worksheet.conditional_formatting:
        for one in formatting.rules:
            try:
                condition = condition_of(one, sheet.value) or condition
            except NotComputable:
                continue
            for cell in _where(condition, formatting.cells, sheet, worksheet):
                if not one.formula:
                    raise NotUnderstood(f"a condition of the type {one.type!r} has no formula")
                found[cell.coordinate] = [look_of(prop, cell, one.dxf) for prop in props]
    return found


def _where(condition: Condition | None, ranges: Any, sheet: Sheet, worksheet: Any) -> list[Any]:
    """Return the cells that meet a condition. After so many empty cells, a range ends at its next empty cell."""
    met, empty = [], 0
    for part in ranges:
        for row, column in part.cells:
            cell = worksheet.cell(row=row, column=column)
            value = sheet.value(cell.coordinate)
            if value is None:
                empty += 1
                if empty > _EMPTY_CELLS:
                    break
            elif condition is not None and condition(value):
                met.append(cell)
    return met
