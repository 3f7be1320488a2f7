"""Styles of spreadsheet cells, and conditional formats computed as OSWorld does."""

from __future__ import annotations

import logging
import operator
import re
from typing import TYPE_CHECKING, Any

from paragent.osworld.evaluators.metrics.workbooks import NoSheet
from paragent.osworld.evaluators.supported import UnsupportedCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paragent.osworld.evaluators.metrics.workbooks import Sheet

    Condition = Callable[[Any], Any]

__all__ = ["check_style", "style_of", "styles_of"]

_log = logging.getLogger(__name__)

_BY_FORMULA = {
    "expression",
    "containsText",
    "notContainsText",
    "endsWith",
    "beginsWith",
    "containsErrors",
    "notContainsErrors",
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "lessThan": operator.lt,
    "lessThanOrEqual": operator.le,
    "equal": operator.eq,
    "notEqual": operator.ne,
    "greaterThanOrEqual": operator.ge,
    "greaterThan": operator.gt,
}
_ABSOLUTE = re.compile(r"\$([A-Z]{1,3})\$(\d+)(?::\$([A-Z]{1,3})\$(\d+))?")


class _Conditions:
    """The conditions of a sheet's conditional formats, in order, as OSWorld computes them.

    The first reference of a formula stands for the cell, each absolute range for its values. A condition that is not supported
    keeps the previous one, as in OSWorld.
    """

    def __init__(self, value_of: Callable[[str], Any]) -> None:
        import formulas

        self._parser = formulas.Parser()
        self._value_of = value_of
        self._condition: Condition = lambda _: False
        self._ranges: list[list[Any]] = []

    def following(self, rule: Any) -> Condition | None:
        """Return the next condition as a function of a cell's value; None if a formula has a syntax error or is not constant.

        Args:
            rule: openpyxl's.

        Raises:
            ValueError: a formula has a reference to one fixed cell.
        """
        compiled: list[Callable[..., Any]] = []
        ranges = []
        for text in rule.formula:
            try:
                compiled.append(self._parser.ast(f"={text}")[1].compile())
            except Exception as error:  # noqa: BLE001 - the library raises anything for a formula that it cannot read
                _log.info("a formula of a conditional format is ignored: %s: %s", text, error)
                return None
            self._ranges = _ranges(text, self._value_of)
            ranges.append(self._ranges)
        if rule.type in _BY_FORMULA:
            formula, self._ranges = compiled[0], ranges[0]
            self._condition = lambda value: formula(value, *self._ranges)
        elif rule.type == "cellIs":
            try:
                references = [formula() for formula in compiled]
            except Exception as error:  # noqa: BLE001 - as above
                _log.info("a conditional format is ignored: %s: %s", rule.formula, error)
                return None
            self._condition = lambda value: _compared(rule.operator, value, references)
        return self._condition


def _ranges(text: str, value_of: Callable[[str], Any]) -> list[list[Any]]:
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.cell_range import CellRange

    found = []
    for match in _ABSOLUTE.finditer(text):
        if match[3] is None:
            raise ValueError(f"OSWorld cannot compute a formula with the fixed cell {match[0]}")
        cells = CellRange(match[0].replace("$", "")).cells
        found.append([value_of(f"{get_column_letter(column)}{row}") for row, column in cells])
    return found


def _compared(name: str, value: Any, references: list[Any]) -> Any:
    if name == "between":
        return min(references) <= value <= max(references)
    if name == "notBetween":
        return value < min(references) or value > max(references)
    return _COMPARISONS[name](value, references[0])


_FONT = {
    "font_name": "name",
    "font_family": "family",
    "font_bold": "bold",
    "font_italic": "italic",
    "font_underline": "underline",
    "font_size": "size",
}
_EMPTY_CELLS = 50
"""The number of empty cells after which a range of a condition counts as ended; a range may have a million cells."""


_STYLES = {*_FONT, "bgcolor", "fgcolor", "fill_type", "font_color", "hyperlink", "merge", "number_format"}


def check_style(prop: str) -> None:
    """Check that a style property of cells is known.

    Raises:
        UnsupportedCheck: it is unknown.
    """
    if prop not in _STYLES:
        raise UnsupportedCheck(f"cells have no style property {prop!r}")


def style_of(prop: str, cell: Any, conditional: Any = None) -> Any:
    """Return one style property of a cell, or of the style that a condition gives it.

    Fonts, number formats and links count only if the cell has a value.

    Raises:
        AttributeError: the font has no colour, or the condition's style has no font or no number format.
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


def styles_of(sheet: Sheet, rule: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the style properties that a rule names for every cell, by coordinate, with conditional formats applied."""
    props: Sequence[str] = rule.get("props", [])
    try:
        worksheet = sheet.worksheet
    except NoSheet:
        return {}
    found = {
        cell.coordinate: [style_of(prop, cell) for prop in props] for column in worksheet.iter_cols() for cell in column
    }
    conditions = _Conditions(sheet.value)
    for formatting in worksheet.conditional_formatting:
        for one in formatting.rules:
            condition = conditions.following(one)
            if condition is None:
                continue
            for cell in _where(condition, formatting.cells, sheet, worksheet):
                if not one.formula:
                    raise ValueError(f"OSWorld cannot compare a format of the type {one.type!r}, which has no formula")
                found[cell.coordinate] = [style_of(prop, cell, one.dxf) for prop in props]
    return found


def _where(condition: Condition, ranges: Any, sheet: Sheet, worksheet: Any) -> list[Any]:
    """Return the cells that meet a condition. After `_EMPTY_CELLS` empty cells, a range ends at its next empty cell."""
    met, empty = [], 0
    for part in ranges:
        for row, column in part.cells:
            cell = worksheet.cell(row=row, column=column)
            value = sheet.value(cell.coordinate)
            if value is None:
                empty += 1
                if empty > _EMPTY_CELLS:
                    break
            elif _result(condition, value):
                met.append(cell)
    return met


def _result(condition: Condition, value: Any) -> Any:
    """Return what a condition says about a value; False if it cannot be computed."""
    try:
        return condition(value)
    except Exception as error:  # noqa: BLE001 - the library raises anything for values that a formula does not expect
        _log.debug("a conditional format does not apply to %r: %s", value, error)
        return False
