"""Workbooks: a base, variants with one difference each, and every rule of `compare_table`."""

from __future__ import annotations

import itertools
import re
import zipfile
from typing import TYPE_CHECKING, Any

from openpyxl import Workbook, load_workbook
from openpyxl.chart import BarChart, LineChart, Reference, ScatterChart, Series
from openpyxl.formatting.rule import CellIsRule, ColorScaleRule, FormulaRule, Rule
from openpyxl.styles import Color, Font, PatternFill
from openpyxl.styles.differential import DifferentialStyle
from openpyxl.worksheet.datavalidation import DataValidation

from bench.osworld_parity.cases.case import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_RED = PatternFill("solid", bgColor="FFFF0000", fgColor="FFFF0000")


def _base() -> Workbook:
    book = Workbook()
    sheet = book.active
    sheet.title = "Sheet1"
    sheet.append(["Name", "Value", "Rate", "Day"])
    for number in range(1, 8):
        sheet.append([f"n{number}", number * 10, number / 3, 45_000 + number])
    other = book.create_sheet("Sheet2")
    other.append(["a", "b"])
    other.append([1, " padded "])
    return book


def cases(folder: Path) -> Iterator[Case]:
    base = folder / "base.xlsx"
    _base().save(base)
    books = {name: _variant(folder, name, change) for name, change in _CHANGES.items()}
    books |= _rewritten(folder, base)
    (folder / "broken.xlsx").write_bytes(b"no workbook")
    books["broken"] = str(folder / "broken.xlsx")
    every = {
        str(base),
        *(books[name] for name in ("one sheet", "deleted first", "sheet name", "fill", "empty shared part")),
    }
    for path in [str(base), *books.values()]:
        for rule in _RULES:
            if path in every or rule.get("sheet_idx0", rule.get("sheet_idx", 0)) == 0:
                yield Case("compare_table", [path, str(base)], {"rules": [rule]})
        for rule in _RULES[1::11]:
            yield Case("compare_table", [str(base), path], {"rules": [rule]})
            yield Case("compare_table", [path, path], {"rules": [rule]})
    frozen = {"type": "freeze", "sheet_idx0": 0, "sheet_idx1": "EI0"}
    for one, other in itertools.permutations(("frozen", "frozen row", "frozen and scrolled"), 2):
        yield Case("compare_table", [books[one], books[other]], {"rules": [frozen]})
    yield Case("compare_table", [None, str(base)], {"rules": _RULES[:1]})
    yield Case("compare_table", [str(folder / "none.xlsx"), str(base)], {"rules": _RULES[:1]})
    yield Case("compare_table", [str(base), str(base)], {})
    for rule in _RULES:
        if "sheet_idx" in rule:
            yield Case("compare_table", [str(base)], {"rules": [rule]})
    yield from _conditions(folder)
    yield from _weekends(folder)
    yield from _printed(folder)
    yield from _cities(folder)


def _variant(folder: Path, name: str, change: Callable[[Any, Any], Any]) -> str:
    book = _base()
    change(book, book["Sheet1"])
    path = folder / f"{re.sub('[^a-z0-9]', '_', name)}.xlsx"
    book.save(path)
    return str(path)


def _set(cell: str, value: Any) -> Callable[[Any, Any], Any]:
    def change(_: Any, sheet: Any) -> None:
        sheet[cell] = value

    return change


def _style(cell: str, **attributes: Any) -> Callable[[Any, Any], Any]:
    def change(_: Any, sheet: Any) -> None:
        for name, value in attributes.items():
            setattr(sheet[cell], name, value)

    return change


def _chart(kind: Any, title: str | None, *, legend: bool = True) -> Callable[[Any, Any], Any]:
    def change(_: Any, sheet: Any) -> None:
        chart = kind()
        if title:
            chart.title = title
        if not legend:
            chart.legend = None
        data = Reference(sheet, min_col=2, min_row=1, max_row=8)
        if kind is ScatterChart:
            chart.series.append(Series(data, Reference(sheet, min_col=3, min_row=1, max_row=8)))
        else:
            chart.add_data(data, titles_from_data=True)
            chart.set_categories(Reference(sheet, min_col=1, min_row=2, max_row=8))
        sheet.add_chart(chart, "F2")

    return change


def _validation(kind: str, formula: str, cells: str) -> Callable[[Any, Any], Any]:
    def change(_: Any, sheet: Any) -> None:
        rule = DataValidation(type=kind, formula1=formula)
        rule.add(cells)
        sheet.add_data_validation(rule)

    return change


def _filter(column: int, values: list[str], *, sort: bool = False) -> Callable[[Any, Any], Any]:
    def change(_: Any, sheet: Any) -> None:
        sheet.auto_filter.ref = "A1:D8"
        sheet.auto_filter.add_filter_column(column, values)
        if sort:
            sheet.auto_filter.add_sort_condition("B2:B8")

    return change


def _split(book: Any, sheet: Any) -> None:
    sheet.freeze_panes = "B2"
    sheet.sheet_view.pane.topLeftCell = "F20"


def _width(_: Any, sheet: Any) -> None:
    sheet.column_dimensions["B"].width = 40
    sheet.row_dimensions[3].hidden = True


_CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "value": _set("B3", 21),
    "rounding": _set("C3", 2 / 3 + 1e-6),
    "text number": _set("B3", "20"),
    "empty": _set("B3", None),
    "blank": _set("A3", " n2 "),
    "case": _set("A3", "N2"),
    "formula": _set("B9", "=SUM(B2:B8)"),
    "true": _set("B3", True),
    "error": _set("B3", "#N/A"),
    "header": _set("B1", "value"),
    "more rows": _set("A12", "x"),
    "bold": _style("B3", font=Font(bold=True)),
    "font without colour": _style("B3", font=Font(name="Arial", size=12)),
    "red font": _style("B3", font=Font(color="FFFF0000")),
    "theme font": _style("B3", font=Font(color=Color(theme=1))),
    "fill": _style("B3", fill=_RED),
    "fill of empty": _style("H9", fill=_RED),
    "number format": _style("B3", number_format="0.00"),
    "hyperlink": _style("A3", hyperlink="https://a.org"),
    "frozen": lambda _, sheet: setattr(sheet, "freeze_panes", "B2"),
    "frozen row": lambda _, sheet: setattr(sheet, "freeze_panes", "A2"),
    "frozen and scrolled": _split,
    "zoom": lambda _, sheet: setattr(sheet.sheet_view, "zoomScale", 260),
    "merged": lambda _, sheet: sheet.merge_cells("A1:B1"),
    "sheet name": lambda _, sheet: setattr(sheet, "title", "Data"),
    "third sheet": lambda book, _: book.create_sheet("Sheet3"),
    "one sheet": lambda book, _: book.remove(book["Sheet2"]),
    "deleted first": lambda book, sheet: book.remove(sheet),
    "bar chart": _chart(BarChart, "Title"),
    "bar chart without title": _chart(BarChart, None, legend=False),
    "line chart": _chart(LineChart, "Title"),
    "scatter chart": _chart(ScatterChart, "Title"),
    "list validation": _validation("list", '"Pass,Fail"', "D2:D8"),
    "number validation": _validation("whole", "3", "D2"),
    "filter": _filter(0, ["n1"]),
    "filter and sort": _filter(1, ["10", "20"], sort=True),
    "width": _width,
}

_PAIRS = [
    (0, "EI0"),
    ("RI0", "EI0"),
    ("RNSheet1", "ENSheet1"),
    ("RI1", "EI1"),
    ("RI5", "EI5"),
    ("RNNope", "ENNope"),
    (0, 0),
]
_FUZZY: list[dict[str, Any]] = [
    {"range": ["A1:C4"], "type": "exact_match"},
    {"range": ["A1:A8", "B2:B9"], "type": "includes"},
    {"range": ["A2:A8"], "type": "included_by", "ignore_case": True, "trim_leadings": " ", "trim_trailings": " "},
    {"range": ["A2:A8"], "type": "fuzzy_match", "threshold": 50},
    {"range": ["A2:A8"], "type": "fuzzy_match", "ignore_chars": "n ", "normalization": [["N", "n"]]},
    {"range": ["A11:A12"], "type": "exact_match"},
]


def _rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = [{"type": "sheet_name"}]
    plain: list[dict[str, Any]] = [
        {"type": "sheet_data"},
        {"type": "sheet_data", "precision": 1},
        {"type": "freeze"},
        {"type": "filter"},
        {"type": "sparkline"},
        {"type": "chart", "chart_props": ["type", "title"]},
        {"type": "row_props", "props": ["hidden", "height"]},
        {"type": "col_props", "props": ["width", "hidden"]},
        {"type": "sheet_fuzzy", "rules": _FUZZY[:1]},
        {"type": "style", "props": ["bgcolor", "font_bold"]},
    ]
    for rule, (one, other) in itertools.product(plain, _PAIRS):
        rules.append({**rule, "sheet_idx0": one, "sheet_idx1": other})
    for props in (["direction"], ["legend", "width"], ["xtitle", "ytitle", "ztitle"], ["nope"], []):
        rules.append({"type": "chart", "chart_props": props, "sheet_idx0": 0, "sheet_idx1": "EI0"})
    for fuzzy in _FUZZY[1:]:
        rules.append({"type": "sheet_fuzzy", "rules": [fuzzy], "sheet_idx0": 0, "sheet_idx1": "EI0"})
    for prop in ("font_color", "number_format", "font_name", "font_size", "hyperlink", "merge", "fill_type", "fgcolor"):
        rules.append({"type": "style", "props": [prop], "sheet_idx0": 0, "sheet_idx1": "EI0"})
    for sheet in (0, "RI1", "EI0", "RNNope"):
        rules += [
            {"type": "zoom", "sheet_idx": sheet, "method": "lt", "ref": 260},
            {"type": "zoom", "sheet_idx": sheet, "method": "eq", "ref": 100},
            {"type": "data_validation", "sheet_idx": sheet, "dv_props": [{"type": {"method": "eq", "ref": "list"}}]},
            {"type": "data_validation", "sheet_idx": sheet, "dv_props": _DESCRIBED},
        ]
        for coordinate, (prop, about) in itertools.product(("B3", "H9"), _CELL.items()):
            rules.append({"type": "check_cell", "sheet_idx": sheet, "coordinate": coordinate, "props": {prop: about}})
    return rules


_DESCRIBED = [
    {
        "ranges": {"method": "spreadsheet_range", "ref": ["D2:D8", "D1:D1048576"]},
        "formula1": {"method": "str_set_eq", "ref": ["Fail", "Pass"]},
        "prompt": {"method": "re", "ref": "x"},
    },
    {"type": {"method": "eq", "ref": "whole"}},
]
_CELL: dict[str, Any] = {
    "value": {"method": "approx:0.001", "ref": 20},
    "bgcolor": {"method": "eq", "ref": "FFFF0000"},
    "font_color": {"method": "eq", "ref": None},
    "font_bold": {"method": "eq", "ref": True},
    "merge": {"method": "eq", "ref": False},
}
_RULES = _rules()


def _rewritten(folder: Path, base: Path) -> dict[str, str]:
    """Return workbooks whose XML a program other than openpyxl could have written."""
    text, number = r'<c r="A3"[^>]*><v>\d+</v></c>', r'<c r="B3"[^>]*><v>20</v></c>'
    inline = '<c r="A3" t="inlineStr"><is>{}</is></c>'
    changes: dict[str, tuple[str, str, str]] = {
        "inline text": (text, inline.format("<t>n2</t>"), ""),
        "rich inline text": (text, inline.format("<r><t>n2</t></r>"), ""),
        "preserved blanks": (text, inline.format('<t xml:space="preserve">n2</t>'), ""),
        "empty shared part": (text, r"\g<0>", "<si><t/></si>"),
        "empty formula": (text, '<c r="A3" t="str"><f>""</f><v></v></c>', ""),
        "empty number": (number, '<c r="B3"><v/></c>', ""),
        "boolean": (number, '<c r="B3" t="b"><v>1</v></c>', ""),
    }
    found = {}
    for name, (old, new, more) in changes.items():
        path = folder / f"written_{name.replace(' ', '_')}.xlsx"
        with zipfile.ZipFile(base) as source, zipfile.ZipFile(path, "w") as target:
            for part in source.namelist():
                data = source.read(part)
                if part == "xl/worksheets/sheet1.xml":
                    data = re.sub(old, new, data.decode()).encode()
                if part == "xl/sharedStrings.xml":
                    data = data.replace(b"</sst>", f"{more}</sst>".encode())
                target.writestr(part, data)
        found[name] = str(path)
    found["sparkline"] = _sparkline(folder, base, "Sheet1!B2:B8", "E2")
    found["other sparkline"] = _sparkline(folder, base, "Sheet1!B2:B7", "E2")
    found["sparkline without place"] = _sparkline(folder, base, "Sheet1!B2:B8", None)
    return found


def _sparkline(folder: Path, base: Path, cells: str, place: str | None) -> str:
    path = folder / f"sparkline_{re.sub('[^0-9A-Z]', '', f'{cells}{place}')}.xlsx"
    x14 = "http://schemas.microsoft.com/office/spreadsheetml/2009/9/main"
    xm = "http://schemas.microsoft.com/office/excel/2006/main"
    where = f"<xm:sqref>{place}</xm:sqref>" if place else ""
    ext = (
        f'<extLst><ext xmlns:x14="{x14}" uri="u"><x14:sparklineGroups xmlns:xm="{xm}"><x14:sparklineGroup><x14:sparklines>'
        f"<x14:sparkline><xm:f>{cells}</xm:f>{where}</x14:sparkline></x14:sparklines></x14:sparklineGroup>"
        "</x14:sparklineGroups></ext></extLst>"
    )
    with zipfile.ZipFile(base) as source, zipfile.ZipFile(path, "w") as target:
        for part in source.namelist():
            data = source.read(part)
            if part == "xl/worksheets/sheet1.xml":
                data = data.replace(b"</worksheet>", f"{ext}</worksheet>".encode())
            target.writestr(part, data)
    return str(path)


def _conditions(folder: Path) -> Iterator[Case]:
    look = {"fill": _RED, "font": Font(bold=True, color="FFFF0000")}
    formulas = [
        "B2>30", "$B2>30", "B2>=30", "B2=40", "B2<>40", "AND(B2>20,B2<60)", "OR(B2=10,B2=70)", "NOT(B2>30)", "MOD(B2,20)=0",
        "WEEKDAY(B2)=1", "WEEKDAY(B2,2)>5", "B2>C2", "B2=MAX($B$2:$B$8)", "B2>AVERAGE($B$2:$B$8)", "B2>$B$3", "$B$2>3", "B2>",
        'LEFT(B2,1)="1"', 'NOT(ISERROR(SEARCH("2",B2)))', 'SEARCH("2",B2)', "LEN(B2)=2", "ISNUMBER(B2)", "TRUE", "1", "5", '"x"',
        "IF(B2>30,TRUE,FALSE)", "B2+C2>4", "ROUND(B2/3,0)=7", "-B2<-30", "B2*2>100", "(B2+1)*2>100", "B2&\"\"=\"20\"",
        "ISBLANK(B2)", "MONTH(B2)=1", "YEAR(B2)>1900", "SUM($B$2:$B$8)>3", "CHOOSE(B2/10,0,0,0,1,1,1,1)",
        "IFERROR(1/(B2-20),1)<0.05", "B2>DATE(1900,1,30)", "ROW(B2)>4", "ISEVEN(B2/20)", 'COUNTIF($B$2:$B$8,">30")=4',
        'B2>10*COUNTIF($B$2:$B$8,"<40")', "B2>=LARGE($B$2:$B$8,4)", "RANK(B2,$B$2:$B$8)<5", "ROUNDDOWN(B2/40,0)=1",
        'B2>VALUE("30")', "XOR(B2>30,B2>90)", "WEEKNUM(B2)>5", "NETWORKDAYS(B2,B2+1)=2", "VLOOKUP(B2,$A$2:$B$8,2)=1",
        "SUMPRODUCT(($B$2:$B$8>B2)*1)<4", "NOSUCHFUNCTION(B2)", "B2>30%", "{1,2", "A2:B2", "Sheet2!A2>0", "Sheet2!$A$2>0",
    ]  # fmt: skip
    rules: dict[str, Any] = {f"formula {text}": FormulaRule([text], **look) for text in formulas}
    for name in ("lessThan", "lessThanOrEqual", "equal", "notEqual", "greaterThanOrEqual", "greaterThan"):
        for reference in ("30", '"n3"', "B3", "10+20", "MAX(1,30)"):
            rules[f"cell {name} {reference}"] = CellIsRule(operator=name, formula=[reference], **look)
    rules["between"] = CellIsRule(operator="between", formula=["60", "20"], **look)
    rules["not between"] = CellIsRule(operator="notBetween", formula=["20", "60"], **look)
    rules["between one"] = CellIsRule(operator="between", formula=["60"], **look)
    rules["text"] = Rule(
        type="containsText", operator="containsText", text="3", dxf=DifferentialStyle(fill=_RED),
        formula=['NOT(ISERROR(SEARCH("3",A2)))'],
    )  # fmt: skip
    rules["scale"] = ColorScaleRule(start_type="min", start_color="FF0000", end_type="max", end_color="00FF00")
    rules["duplicates"] = Rule(type="duplicateValues", dxf=DifferentialStyle(fill=_RED))
    rules["top"] = Rule(type="top10", rank=3, dxf=DifferentialStyle(fill=_RED))
    plain = str(folder / "base.xlsx")
    for number, (name, rule) in enumerate(rules.items()):
        for cells in ("B2:B8", "A2:A8", "A1:B60"):
            book = load_workbook(plain)
            book["Sheet1"].conditional_formatting.add(cells, rule)
            if name == "scale":
                book["Sheet1"].conditional_formatting.add(cells, rules["formula B2>30"])
                book["Sheet1"].conditional_formatting.add(cells, rules["duplicates"])
            path = folder / f"condition{number}_{cells.replace(':', '')}.xlsx"
            book.save(path)
            fixed = _fixed(folder, path, number, cells)
            for found, props in ((plain, ["bgcolor"]), (fixed, ["bgcolor"]), (str(path), ["font_bold", "font_name"])):
                checked = {"type": "style", "props": props, "sheet_idx0": 0, "sheet_idx1": "EI0"}
                yield Case("compare_table", [found, str(path)], {"rules": [checked]})


_WEEKENDS = [
    "WEEKDAY(D2)=7", "OR(WEEKDAY(D2)=1,WEEKDAY(D2)=7)", "WEEKDAY(D2,2)>5", "WEEKDAY(D2,11)>5", "WEEKDAY(D2,16)<3",
    "WEEKDAY(D2,17)=7", "MATCH(WEEKDAY(D2),{1,7},0)", "ISNUMBER(MATCH(WEEKDAY(D2),{1,7},0))", "OR(WEEKDAY(D2)={1,7})",
    'TEXT(D2,"ddd")="Sat"', 'OR(TEXT(D2,"ddd")="Sat",TEXT(D2,"ddd")="Sun")', 'LEFT(TEXT(D2,"dddd"),1)="S"',
    "CHOOSE(WEEKDAY(D2),1,0,0,0,0,0,1)", "MOD(D2,7)<2", "NETWORKDAYS(D2,D2)=0", "NOT(ISERROR(MATCH(WEEKDAY(D2),{1,7},0)))",
]  # fmt: skip


def _weekends(folder: Path) -> Iterator[Case]:
    """Yield pairs of workbooks that colour the weekend of one week, each by another formula, and one without colours."""
    paths = [str(folder / "base.xlsx")]
    for number, formula in enumerate(_WEEKENDS):
        book = load_workbook(paths[0])
        book["Sheet1"].conditional_formatting.add("D2:D8", FormulaRule([formula], fill=_RED))
        paths.append(str(folder / f"weekend{number}.xlsx"))
        book.save(paths[-1])
    rule = {"type": "style", "props": ["bgcolor"], "sheet_idx0": 0, "sheet_idx1": "EI0"}
    for pair in itertools.product(paths, paths):
        yield Case("compare_table", list(pair), {"rules": [rule]})


def _fixed(folder: Path, path: Path, number: int, cells: str) -> str:
    """Return a workbook whose cells above 30 have the style of a conditional format."""
    book = load_workbook(path)
    sheet = book["Sheet1"]
    for row in range(5, 9):
        sheet.cell(row=row, column=2).fill = _RED
    fixed = folder / f"fixed{number}_{cells.replace(':', '')}.xlsx"
    sheet.conditional_formatting = type(sheet.conditional_formatting)()
    book.save(fixed)
    return str(fixed)


def _printed(folder: Path) -> Iterator[Case]:
    texts = {"p": "a,b\n1,2\n\n", "q": "A,b\n1,2", "r": "\ufeffa,b\n1,2\n", "s": "a,b \n1,2\n", "t": "x\n"}
    paths = []
    for name, text in texts.items():
        path = folder / f"printed_{name}.xlsx"
        _base().save(path)
        (folder / f"printed_{name}-Sheet1.csv").write_text(text)
        paths.append(str(path))
    (folder / "printed_t-Sheet1.csv").write_bytes(b"a,b\n1,2\xe9\n")
    for one, other in itertools.product(paths, paths):
        for ignore in (False, True):
            for names in (("RNSheet1", "ENSheet1"), ("RNNope", "ENNope"), (0, "ENNope")):
                rule = {"type": "sheet_print", "sheet_idx0": names[0], "sheet_idx1": names[1], "ignore_case": ignore}
                yield Case("compare_table", [one, other], {"rules": [rule]})


def _cities(folder: Path) -> Iterator[Case]:
    expected: list[Any] = ["Scottsdale", ["Atlanta", "Montreal"], "Zürich"] + ["Vienna"] * 18
    lists: list[list[Any]] = [
        ["Scottsdale", "Montréal", "Zurich"] + ["Vienna"] * 18,
        ["scottsdale, USA", "Atlanta", "Zürich"] + ["VIENNA"] * 18,
        ["Scottsdale", "Atlanta", "Bern"] + ["Vienna"] * 18,
        ["Scottsdale", "Atlanta"],
        [1, 2, 3],
    ]
    for number, cities in enumerate(lists):
        book = Workbook()
        book.active.append(["x", "y", "City"])
        for city in cities:
            book.active.append(["", "", city])
        path = folder / f"cities{number}.xlsx"
        book.save(path)
        yield Case("compare_conference_city_in_order", [str(path), {"expected": expected}])
        yield Case("compare_conference_city_in_order", [str(path), {"expected": expected[:3]}])
        yield Case("compare_conference_city_in_order", [str(path), {"expected": ["", *expected[1:]]}])
