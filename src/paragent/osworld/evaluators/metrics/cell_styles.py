"""Styles of spreadsheet cells, and conditional formats computed as OSWorld does."""

from __future__ import annotations

import datetime as dt
import operator
import re
from typing import TYPE_CHECKING, Any

from paragent.osworld.evaluators.metrics.matching import UnsupportedCheck
from paragent.osworld.evaluators.metrics.workbooks import NoSheet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from paragent.osworld.evaluators.metrics.workbooks import Sheet

    Condition = Callable[[Any], bool]
    Formula = Callable[[list[Any]], Any]

__all__ = ["style_of", "styles_of"]

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
_EPOCH = dt.date(1899, 12, 30)
"""Day 0 of spreadsheets."""


class _NotComputable(ValueError):
    """A formula has a syntax error; its condition is ignored."""


class _Unsupported(ValueError):
    """A formula uses an unsupported feature; the comparison fails instead of ignoring it."""


class _CellError(Exception):
    """The value of a formula is an error, such as #VALUE!."""


def _condition_of(rule: Any, value_of: Callable[[str], Any]) -> Condition | None:
    """Return the condition of a conditional format as a function of the cell's value; None if its type is not supported.

    The first reference of a formula stands for the cell, each absolute range for its values. A formula with more references is
    never met.

    Args:
        rule: openpyxl's.
        value_of: returns the value of a cell of the sheet, by coordinate.

    Raises:
        _NotComputable: a formula has a syntax error, or a cell is compared with something that is not constant.
        ValueError: a formula has a reference to one fixed cell, or an unsupported feature.
    """
    formulas = [_Parser(text).formula() for text in rule.formula]
    ranges = [_ranges(text, value_of) for text in rule.formula]
    if rule.type in _BY_FORMULA:
        formula, arguments = formulas[0], ranges[0]
        return lambda value: _met(formula, [value, *arguments])
    if rule.type != "cellIs":
        return None
    try:
        references = [formula([]) for formula in formulas]
    except (TypeError, _CellError):
        raise _NotComputable(rule.formula) from None
    return lambda value: _compared(rule.operator, value, references)


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


def _met(formula: Formula, arguments: list[Any]) -> bool:
    try:
        return bool(formula(arguments))
    except _CellError:
        return True  # a string like "#VALUE!", which is not empty
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return False


def _compared(name: str, value: Any, references: list[Any]) -> bool:
    try:
        if name in {"between", "notBetween"}:
            inside = min(references) <= value <= max(references)
            return bool(inside == (name == "between"))
        return bool(_COMPARISONS[name](value, references[0]))
    except (TypeError, KeyError, IndexError):
        return False


def _order(value: Any) -> tuple[int, Any]:
    """Return a key for comparing values of different types: numbers, then strings, then booleans."""
    if isinstance(value, bool):
        return 2, value
    if isinstance(value, str):
        return 1, value.upper()
    return 0, 0.0 if value is None else value


def _number(value: Any) -> float:
    if value is None:
        return 0.0
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _CellError(value) from None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _search(wanted: Any, text: Any, *, start: float = 1, case: bool = False) -> float:
    needle, hay = _text(wanted), _text(text)
    place = (hay if case else hay.upper()).find(needle if case else needle.upper(), int(start) - 1)
    if place < 0:
        raise _CellError(wanted)
    return place + 1.0


def _day(value: Any) -> dt.date:
    return _EPOCH + dt.timedelta(days=int(_number(value)))


def _weekday(value: Any, kind: Any = 1) -> float:
    """Return the day of the week: from Sunday as 1, from Monday as 1 with `kind` 2, from Monday as 0 with 3."""
    monday = _day(value).weekday()
    return float({1: (monday + 1) % 7 + 1, 2: monday + 1, 3: monday}[int(_number(kind))])


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _numbers(values: tuple[Any, ...]) -> list[float]:
    return [value for value in _flat(values) if isinstance(value, float | int) and not isinstance(value, bool)]


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "AND": lambda *values: all(_flat(values)),
    "OR": lambda *values: any(_flat(values)),
    "NOT": lambda value: not value,
    "TRUE": lambda: True,
    "FALSE": lambda: False,
    "ISBLANK": lambda value: value is None,
    "ISNUMBER": lambda value: isinstance(value, float | int) and not isinstance(value, bool),
    "ISTEXT": lambda value: isinstance(value, str),
    "LEN": lambda text: float(len(_text(text))),
    "TRIM": lambda text: " ".join(_text(text).split(" ")).strip(),
    "UPPER": lambda text: _text(text).upper(),
    "LOWER": lambda text: _text(text).lower(),
    "LEFT": lambda text, count=1: _text(text)[: int(count)],
    "RIGHT": lambda text, count=1: _text(text)[-int(count) :],
    "MID": lambda text, start, count: _text(text)[int(start) - 1 :][: int(count)],
    "SEARCH": lambda wanted, text, start=1: _search(wanted, text, start=start),
    "FIND": lambda wanted, text, start=1: _search(wanted, text, start=start, case=True),
    "EXACT": lambda one, other: _text(one) == _text(other),
    "ABS": lambda value: abs(_number(value)),
    "INT": lambda value: float(_number(value) // 1),
    "MOD": lambda value, by: _number(value) % _number(by),
    "ROUND": lambda value, digits=0: round(_number(value), int(digits)),
    "MAX": lambda *values: max(_numbers(values)),
    "MIN": lambda *values: min(_numbers(values)),
    "SUM": lambda *values: sum(_numbers(values)),
    "COUNT": lambda *values: float(len(_numbers(values))),
    "AVERAGE": lambda *values: sum(_numbers(values)) / len(_numbers(values)),
    "WEEKDAY": _weekday,
    "YEAR": lambda value: float(_day(value).year),
    "MONTH": lambda value: float(_day(value).month),
    "DAY": lambda value: float(_day(value).day),
    "TODAY": lambda: float((dt.datetime.now().astimezone().date() - _EPOCH).days),
}
_OPERATORS: tuple[dict[str, Callable[[Any, Any], Any]], ...] = (
    {
        "=": lambda one, other: _order(one) == _order(other),
        "<>": lambda one, other: _order(one) != _order(other),
        "<": lambda one, other: _order(one) < _order(other),
        "<=": lambda one, other: _order(one) <= _order(other),
        ">": lambda one, other: _order(one) > _order(other),
        ">=": lambda one, other: _order(one) >= _order(other),
    },
    {"&": lambda one, other: _text(one) + _text(other)},
    {"+": lambda one, other: _number(one) + _number(other), "-": lambda one, other: _number(one) - _number(other)},
    {"*": lambda one, other: _number(one) * _number(other), "/": lambda one, other: _number(one) / _number(other)},
    {"^": lambda one, other: _number(one) ** _number(other)},
)
"""Binary operators, those with the lowest precedence first."""


class _Parser:
    """Parses a formula into a function of the values of its references, in the order of their first appearance."""

    def __init__(self, text: str) -> None:
        from openpyxl.formula.tokenizer import Tokenizer, TokenizerError

        try:
            items = Tokenizer(f"={text}").items
        except TokenizerError as error:
            raise _NotComputable(text) from error
        self._tokens = [token for token in items if token.type != "WHITE-SPACE"]
        self._text = text
        self._references: list[str] = []

    def formula(self) -> Formula:
        """Return the function; it raises TypeError if the number of values is not the number of references."""
        body = self._operation(0)
        if self._tokens:
            raise _NotComputable(self._text)
        count = len(self._references)

        def call(values: list[Any]) -> Any:
            if len(values) != count:
                raise TypeError(f"{count} values are needed")
            return body(values)

        return call

    def _operation(self, level: int) -> Formula:
        if level == len(_OPERATORS):
            return self._operand()
        first = self._operation(level + 1)
        while self._tokens and self._tokens[0].type == "OPERATOR-INFIX" and self._tokens[0].value in _OPERATORS[level]:
            first = _binary(_OPERATORS[level][self._tokens.pop(0).value], first, self._operation(level + 1))
        return first

    def _operand(self) -> Formula:
        if not self._tokens:
            raise _NotComputable(self._text)
        token = self._tokens.pop(0)
        if token.type == "OPERATOR-PREFIX":
            operand, sign = self._operand(), -1 if token.value == "-" else 1
            return lambda values: sign * _number(operand(values))
        if token.type == "PAREN" and token.subtype == "OPEN":
            inner = self._operation(0)
            self._close("PAREN")
            return inner
        if token.type == "FUNC" and token.subtype == "OPEN":
            return self._call(token.value.rstrip("(").upper())
        if token.type == "OPERAND":
            return self._value(token)
        raise _NotComputable(self._text)

    def _call(self, name: str) -> Formula:
        arguments: list[Formula] = []
        while self._tokens and self._tokens[0].subtype != "CLOSE":
            arguments.append(self._operation(0))
            if self._tokens and self._tokens[0].type == "SEP":
                self._tokens.pop(0)
        self._close("FUNC")
        if name in {"ISERROR", "ISERR"}:
            return lambda values: _fails(arguments[0], values)
        if name == "IF":
            return lambda values: _chosen(arguments, values)
        if name not in _FUNCTIONS:
            raise _Unsupported(f"the function {name} of conditional formats is not supported")
        function = _FUNCTIONS[name]
        return lambda values: function(*[argument(values) for argument in arguments])

    def _close(self, kind: str) -> None:
        if not self._tokens or (self._tokens[0].type, self._tokens[0].subtype) != (kind, "CLOSE"):
            raise _NotComputable(self._text)
        self._tokens.pop(0)

    def _value(self, token: Any) -> Formula:
        if token.subtype == "RANGE":
            name = token.value.replace("$", "").upper()
            if name not in self._references:
                self._references.append(name)
            index = self._references.index(name)
            return lambda values: values[index]
        constant: Any = token.value
        if token.subtype == "TEXT":
            constant = token.value[1:-1].replace('""', '"')
        elif token.subtype == "NUMBER":
            constant = float(token.value)
        elif token.subtype == "LOGICAL":
            constant = token.value.upper() == "TRUE"
        elif token.subtype == "ERROR":
            raise _Unsupported("error constants in conditional formats are not supported")
        return lambda _: constant


def _binary(function: Callable[[Any, Any], Any], first: Formula, second: Formula) -> Formula:
    return lambda values: function(first(values), second(values))


def _fails(argument: Formula, values: list[Any]) -> bool:
    try:
        argument(values)
    except _CellError:
        return True
    return False


def _chosen(arguments: list[Formula], values: list[Any]) -> Any:
    if arguments[0](values):
        return arguments[1](values)
    return arguments[2](values) if len(arguments) > 2 else False


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


def style_of(prop: str, cell: Any, conditional: Any = None) -> Any:
    """Return one style property of a cell, or of the style that a condition gives it.

    Fonts, number formats and links count only if the cell has a value.

    Raises:
        UnsupportedCheck: the property is unknown.
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
    if prop not in {*_FONT, "font_color", "number_format", "hyperlink"}:
        raise UnsupportedCheck(f"cells have no style property {prop!r}")
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
    condition = None
    for formatting in worksheet.conditional_formatting:
        for one in formatting.rules:
            try:
                condition = _condition_of(one, sheet.value) or condition
            except _NotComputable:
                continue
            for cell in _where(condition, formatting.cells, sheet, worksheet):
                if not one.formula:
                    raise UnsupportedCheck(f"a condition of the type {one.type!r} has no formula")
                found[cell.coordinate] = [style_of(prop, cell, one.dxf) for prop in props]
    return found


def _where(condition: Condition | None, ranges: Any, sheet: Sheet, worksheet: Any) -> list[Any]:
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
            elif condition is not None and condition(value):
                met.append(cell)
    return met
