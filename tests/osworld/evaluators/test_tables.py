"""Spreadsheets, made with openpyxl."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from openpyxl.chart import BarChart, LineChart, Reference
from openpyxl.formatting.rule import CellIsRule, FormulaRule, Rule
from openpyxl.pivot.cache import CacheDefinition, CacheField, CacheSource, SharedItems, WorksheetSource
from openpyxl.pivot.record import RecordList
from openpyxl.pivot.table import DataField, FieldItem, Location, PageField, PivotField, RowColField, TableDefinition
from openpyxl.styles import Font, PatternFill
from openpyxl.styles.differential import DifferentialStyle
from openpyxl.worksheet.datavalidation import DataValidation

from paragent.osworld.evaluators.supported import UnsupportedCheck

Score = Callable[..., float]
Change = Callable[[Any], Any]
ROWS: list[list[Any]] = [["Name", "Sum", "Day"], ["a", 1.5, dt.date(2024, 1, 2)], ["b", 2, None], [None, 3, None]]


@pytest.fixture
def book(tmp_path: Path) -> Callable[..., str]:
    """Make a workbook of one sheet, or of several, and return its path."""

    def make(name: str, rows: Any = ROWS, change: Change | None = None, **more: Any) -> str:
        workbook = openpyxl.Workbook()
        sheets = {"Sheet1": rows, **more}
        workbook.remove(workbook.worksheets[0])
        for title, content in sheets.items():
            sheet = workbook.create_sheet(title)
            for row in content:
                sheet.append(row)
        if change is not None:
            change(workbook)
        path = tmp_path / name
        workbook.save(path)
        return str(path)

    return make


def data(one: Any = 0, other: Any = "EI0", **more: Any) -> list[dict[str, Any]]:
    return [{"type": "sheet_data", "sheet_idx0": one, "sheet_idx1": other, **more}]


def edited(row: int, column: int, value: Any) -> list[list[Any]]:
    rows = [list(line) for line in ROWS]
    rows[row][column] = value
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (ROWS, 1),
        (edited(1, 1, 1.500001), 1),
        (edited(1, 1, 1.51), 0),
        (edited(1, 0, "A"), 0),
        (edited(2, 0, None), 0),
        (edited(3, 0, "c"), 0),
        (edited(1, 2, dt.date(2024, 1, 3)), 0),
        ([*ROWS, ["c", 4, None]], 0),
        ([row[:2] for row in ROWS], 0),
    ],
)
def test_values_of_sheets(score: Score, book: Callable[..., str], found: Any, wanted: float) -> None:
    assert score("compare_table", book("found.xlsx", found), book("gold.xlsx"), rules=data()) == wanted


def test_sheets_by_number_and_by_name(score: Score, book: Callable[..., str]) -> None:
    found = book("found.xlsx", [["x"], [1]], Second=[["y"], [2]])
    gold = book("gold.xlsx", [["y"], [2]], Second=[["x"], [1]])
    for one, other, wanted in [
        ("RI0", "EI1", 1),
        ("RNSecond", "ENSheet1", 1),
        (0, "EI0", 0),
        (0, "RI0", 1),
        ("RNThird", "EI0", 0),
        (7, "EI0", 0),
        ("RI0", "EI7", 0),
    ]:
        assert score("compare_table", found, gold, rules=data(one, other)) == wanted
    assert score("compare_table", found, gold, rules=[{"type": "sheet_name"}]) == 1
    assert score("compare_table", book("other.xlsx"), gold, rules=[{"type": "sheet_name"}]) == 0
    assert score("compare_table", None, gold, rules=data()) == 0


def test_printed_sheets_are_compared_line_by_line(score: Score, book: Callable[..., str], tmp_path: Path) -> None:
    found, gold = book("found.xlsx"), book("gold.xlsx")
    rule = {"type": "sheet_print", "sheet_idx0": "RNSheet1", "sheet_idx1": "ENSheet1"}
    assert score("compare_table", found, gold, rules=[rule]) == 0  # nobody has printed anything
    (tmp_path / "gold-Sheet1.csv").write_text("Name,Sum\nA,1.50\n")
    (tmp_path / "found-Sheet1.csv").write_text("Name,Sum \na,1.50\n\n\n")
    assert score("compare_table", found, gold, rules=[rule]) == 0
    assert score("compare_table", found, gold, rules=[rule | {"ignore_case": True}]) == 1


def test_fuzzy_cells(score: Score, book: Callable[..., str]) -> None:
    found = book("found.xlsx", [["Restaurant", "12 Main Rd", "+ (852) 2345-678", 5]])
    gold = book("gold.xlsx", [["restaurant", "12 Main Road", "8522345678", 5]])

    def fuzzy(kind: str, where: str, **more: Any) -> float:
        rule = {"type": kind, "range": [where], **more}
        rules = [{"type": "sheet_fuzzy", "sheet_idx0": "RNSheet1", "sheet_idx1": "ENSheet1", "rules": [rule]}]
        return score("compare_table", found, gold, rules=rules)

    assert fuzzy("exact_match", "A1:A1") == 0
    assert fuzzy("exact_match", "A1:A1", ignore_case=True) == 1
    assert fuzzy("fuzzy_match", "A1:B1", ignore_case=True, threshold=85, normalization=[["Rd", "Road"]]) == 1
    assert fuzzy("fuzzy_match", "B1:B1", threshold=99) == 0
    assert fuzzy("includes", "C1:C1", ignore_chars=" ()-", trim_leadings="+ ") == 1
    assert fuzzy("included_by", "C1:C1") == 0
    assert fuzzy("exact_match", "D1:D1") == 1


def test_single_cells(score: Score, book: Callable[..., str]) -> None:
    def change(workbook: Any) -> None:
        sheet = workbook["Sheet1"]
        sheet["A1"].font = Font(bold=True, color="FFFFFFFF", italic=False, size=20, name="Arial")
        sheet["A1"].fill = PatternFill("solid", fgColor="FF0000FF")
        sheet["B2"].number_format = "0.00"
        sheet.merge_cells("A5:B5")

    found = book("found.xlsx", change=change)

    def cell(coordinate: str, **props: Any) -> float:
        rule = {"type": "check_cell", "sheet_idx": 0, "coordinate": coordinate}
        about = {name: {"method": "eq", "ref": value} for name, value in props.items()}
        return score("compare_table", found, rules=[rule | {"props": about}])

    assert cell("A1", value="Name", font_bold=True, font_color="FFFFFFFF", bgcolor="FF0000FF", font_size=20) == 1
    assert cell("A1", font_name="Arial", font_italic=False, merge=False, hyperlink="", fill_type="patternFill") == 1
    assert cell("A1", bgcolor="FFFF0000") == 0
    assert cell("B5", merge=True) == 1
    assert cell("A4", font_bold=None) == 1  # the cell is empty
    assert cell("B2", number_format="0.00") == 1
    assert cell("B3", value=2.0) == 1
    near = {
        "type": "check_cell",
        "sheet_idx": 0,
        "coordinate": "B2",
        "props": {"value": {"method": "approx:0.1", "ref": 1.45}},
    }
    assert score("compare_table", found, rules=[near]) == 1
    with pytest.raises(UnsupportedCheck, match="shoe"):
        cell("A1", shoe=1)


def style(*props: str) -> list[dict[str, Any]]:
    return [{"type": "style", "sheet_idx0": 0, "sheet_idx1": "EI0", "props": list(props)}]


def test_styles_also_by_condition(score: Score, book: Callable[..., str]) -> None:
    red = PatternFill("solid", fgColor="FFFF0000", bgColor="FFFF0000")

    def by_hand(workbook: Any) -> None:
        workbook["Sheet1"]["B4"].fill = red

    def by_condition(workbook: Any) -> None:
        workbook["Sheet1"].conditional_formatting.add("B2:B9", CellIsRule("greaterThan", ["2.5"], fill=red))

    def between(workbook: Any) -> None:
        workbook["Sheet1"].conditional_formatting.add("B2:B9", CellIsRule("between", ["9", "2.5"], fill=red))

    def by_formula(workbook: Any) -> None:
        workbook["Sheet1"].conditional_formatting.add("B2:B9", FormulaRule(["WEEKDAY(B2)=1"], fill=red))

    gold = book("gold.xlsx", change=by_hand)
    assert score("compare_table", book("a.xlsx", change=by_hand), gold, rules=style("bgcolor")) == 1
    assert score("compare_table", book("b.xlsx"), gold, rules=style("bgcolor")) == 0
    assert score("compare_table", book("c.xlsx", change=by_condition), gold, rules=style("bgcolor")) == 1
    assert score("compare_table", book("d.xlsx", change=between), gold, rules=style("bgcolor")) == 1
    assert score("compare_table", book("e.xlsx", change=by_formula), gold, rules=style("bgcolor")) == 0
    assert score("compare_table", book("b.xlsx"), gold, rules=style("font_color")) == 1


def chart_of(kind: type[Any], title: str, columns: int = 2) -> Change:
    def change(workbook: Any) -> None:
        sheet = workbook["Sheet1"]
        chart = kind()
        chart.title = title
        chart.add_data(Reference(sheet, min_col=columns, min_row=1, max_row=4), titles_from_data=True)
        sheet.add_chart(chart, "E2")

    return change


def test_charts(score: Score, book: Callable[..., str]) -> None:
    gold = book("gold.xlsx", change=chart_of(BarChart, "Sums"))

    def same(change: Change | None, *props: str) -> float:
        rule = {"type": "chart", "sheet_idx0": 0, "sheet_idx1": "EI0", "chart_props": list(props)}
        return score("compare_table", book("found.xlsx", change=change), gold, rules=[rule])

    assert same(chart_of(BarChart, "Sums"), "type", "title", "direction", "legend", "width", "height", "xtitle") == 1
    assert same(chart_of(LineChart, "Sums"), "type") == 0
    assert same(chart_of(LineChart, "Sums"), "title") == 1
    assert same(chart_of(BarChart, "Other"), "title") == 0
    assert same(chart_of(BarChart, "Sums", 3), "title") == 0
    assert same(None, "type") == 0


def test_views_rows_and_filters(score: Score, book: Callable[..., str]) -> None:
    def change(workbook: Any) -> None:
        sheet = workbook["Sheet1"]
        sheet.freeze_panes = "A2"
        sheet.sheet_view.zoomScale = 200
        sheet.row_dimensions[2].hidden = True
        sheet.column_dimensions["B"].width = 30
        sheet.auto_filter.ref = "A1:B4"
        sheet.auto_filter.add_filter_column(0, ["a"])
        sheet.auto_filter.add_sort_condition("B2:B4", descending=True)

    gold, plain = book("gold.xlsx", change=change), book("plain.xlsx")
    for kind, more in [
        ("freeze", {}),
        ("row_props", {"props": ["hidden"]}),
        ("col_props", {"props": ["width"]}),
        ("filter", {}),
    ]:
        rules = [{"type": kind, "sheet_idx0": 0, "sheet_idx1": "EI0", **more}]
        assert score("compare_table", book("found.xlsx", change=change), gold, rules=rules) == 1
        assert score("compare_table", plain, gold, rules=rules) == 0
    zoom = {"type": "zoom", "sheet_idx": 0, "method": "lt", "ref": 260}
    assert score("compare_table", gold, rules=[zoom]) == 1
    assert score("compare_table", plain, rules=[zoom | {"method": "gt", "ref": 100}]) == 0


def test_validations(score: Score, book: Callable[..., str]) -> None:
    def change(workbook: Any) -> None:
        validation = DataValidation(type="list", formula1='"Pass,Fail,Held"')
        validation.add("D2:D29")
        workbook["Sheet1"].add_data_validation(validation)

    described = {
        "type": {"method": "eq", "ref": "list"},
        "formula1": {"method": "str_set_eq", "ref": ["Fail", "Pass", "Held"]},
        "ranges": {"method": "spreadsheet_range", "ref": ["D2:D29", "D1:D1048576"]},
    }
    rule = {"type": "data_validation", "sheet_idx": 0, "dv_props": [described]}
    found = book("found.xlsx", change=change)
    assert score("compare_table", found, rules=[rule]) == 1
    narrow = described | {"ranges": {"method": "spreadsheet_range", "ref": ["D2:D30", "D1:D1048576"]}}
    assert score("compare_table", found, rules=[rule | {"dv_props": [narrow]}]) == 0
    assert score("compare_table", book("plain.xlsx"), rules=[rule]) == 0


def test_an_unknown_rule_is_an_error_and_all_rules_count(score: Score, book: Callable[..., str]) -> None:
    found, gold = book("found.xlsx"), book("gold.xlsx")
    with pytest.raises(UnsupportedCheck, match="magic"):
        score("compare_table", found, gold, rules=[{"type": "magic"}])
    with pytest.raises(TypeError):
        score("compare_table", found, gold)
    wrong = {"type": "check_cell", "sheet_idx": 0, "coordinate": "A1", "props": {"value": {"method": "eq", "ref": "x"}}}
    assert score("compare_table", found, gold, rules=[*data(), wrong]) == 0


def test_cities_in_order(score: Score, book: Callable[..., str]) -> None:
    rows = [["", "", "City"], *(["", "", f"City {number}, Land"] for number in range(21))]
    expected: list[Any] = [f"City {number}" for number in range(20)] + [["Town 20", "City 20"]]
    assert score("compare_conference_city_in_order", book("a.xlsx", rows), {"expected": expected}) == 1
    assert score("compare_conference_city_in_order", book("a.xlsx", rows), {"expected": expected[::-1]}) == 0
    rows[1][2] = "MONTRÉAL, Canada"
    montreal = {"expected": ["Montreal", *expected[1:]]}
    assert score("compare_conference_city_in_order", book("a.xlsx", rows), montreal) == 1


@pytest.mark.parametrize(
    ("formula", "rows"),
    [
        ("B2>2", [3, 4]),
        ("$B2>=2", [2, 3, 4]),
        ("MOD(B2,2)=0", [2, 4]),
        ("AND(B2>1,NOT(B2=3))", [2, 4]),
        ("WEEKDAY(B2)=2", [2]),
        ("B2=MAX($B$2:$B$5)", [4]),
        ('LEFT(B2,1)="3"', [3]),
        ('NOT(ISERROR(SEARCH("2",B2)))', [2]),
        ("IF(B2>3,TRUE,FALSE)", [4]),
        ("(B2+1)*2>=8", [3, 4]),
        ("ISNUMBER(MATCH(WEEKDAY(B2),{2,3},0))", [2, 3]),
        ("WEEKDAY(B2,11)<3", [2, 3]),
        ("WEEKDAY(B2,16)=2", [1]),
        ('TEXT(B2,"0")="3"', [3]),
        ('CHOOSE(B2,"a","b","c","d")="b"', [2]),
        ("IFERROR(1/(B2-2),1)=1", [2, 3]),
        ("B2=DATE(1900,1,3)", [3]),
        ("ISEVEN(B2)", [2, 4]),
        ('B2>COUNTIF($B$2:$B$5,">2")', [3, 4]),
        ("B2=LARGE($B$2:$B$5,1)", [4]),
        ("ROUNDDOWN(B2/3,0)=1", [3, 4]),
        ('B2=VALUE("2")', [2]),
        ("XOR(B2>1,B2>3)", [2, 3]),
        ("B2>C2", []),
        ("B2>", []),
        ("NOSUCHFUNCTION(B2)", []),
    ],
)
def test_conditional_formats_with_formulas(
    score: Score, book: Callable[..., str], formula: str, rows: list[int]
) -> None:
    """The gold workbook has a condition, the others the look it gives to the rows it should hold for."""
    red = PatternFill("solid", bgColor="FFFF0000", fgColor="FFFF0000")
    content = [["n", "v"], *(["x", number] for number in range(1, 5))]

    def condition(workbook: Any) -> None:
        workbook["Sheet1"].conditional_formatting.add("B2:B5", FormulaRule([formula], fill=red))

    def painted(workbook: Any) -> None:
        for row in rows:
            workbook["Sheet1"].cell(row=row + 1, column=2).fill = red

    rule = [{"type": "style", "sheet_idx0": 0, "sheet_idx1": "EI0", "props": ["bgcolor"]}]
    gold = book("gold.xlsx", content, condition)
    assert score("compare_table", book("f.xlsx", content, painted), gold, rules=rule) == 1
    if rows:
        assert score("compare_table", book("f.xlsx", content), gold, rules=rule) == 0


@pytest.mark.parametrize("kind", ["top10", "duplicateValues", "aboveAverage"])
def test_a_format_without_a_formula_scores_0_and_is_no_unsupported_check(
    score: Score, book: Callable[..., str], kind: str
) -> None:
    red = DifferentialStyle(fill=PatternFill("solid", bgColor="FFFF0000"))

    def conditions(workbook: Any) -> None:
        formatting = workbook["Sheet1"].conditional_formatting
        formatting.add("B2:B5", FormulaRule(["ISNUMBER(B2)"], fill=red.fill))
        formatting.add("B2:B5", Rule(type=kind, rank=1, dxf=red))

    path = book("found.xlsx", change=conditions)
    with pytest.raises(ValueError, match=kind) as raised:
        score("compare_table", path, path, rules=style("bgcolor"))
    assert not isinstance(raised.value, UnsupportedCheck)


def test_scrolling_does_not_change_where_a_sheet_is_frozen(score: Score, book: Callable[..., str]) -> None:
    def frozen(top_left: str) -> Change:
        def change(workbook: Any) -> None:
            workbook["Sheet1"].freeze_panes = "B2"
            workbook["Sheet1"].sheet_view.pane.topLeftCell = top_left

        return change

    rule = [{"type": "freeze", "sheet_idx0": 0, "sheet_idx1": "EI0"}]
    gold = book("gold.xlsx", change=frozen("B2"))
    assert score("compare_table", book("f.xlsx", change=frozen("F20")), gold, rules=rule) == 1
    assert score("compare_table", book("f.xlsx"), gold, rules=rule) == 0


@pytest.mark.parametrize("kind", ["chart", "style", "row_props", "filter", "pivot_table"])
def test_sheets_missing_in_both_workbooks_are_equal(score: Score, book: Callable[..., str], kind: str) -> None:
    rule = [{"type": kind, "sheet_idx0": "RI7", "sheet_idx1": "EI7"}]
    assert score("compare_table", book("f.xlsx"), book("g.xlsx"), rules=rule) == 1


def test_a_font_without_a_colour_is_an_error(score: Score, book: Callable[..., str]) -> None:
    plain = book("h.xlsx", change=lambda workbook: setattr(workbook["Sheet1"]["A1"], "font", Font(name="Arial")))
    with pytest.raises(AttributeError):
        score("compare_table", plain, plain, rules=style("font_color"))


def pivot(*, row: int = 1, subtotal: str = "sum", filtered: bool = False, shift: int = 0) -> Change:
    """Add a pivot table of the first sheet to the second; `shift` empty columns come first in its source."""

    def change(workbook: Any) -> None:
        source = WorksheetSource(ref=f"{'ABCDE'[0]}1:{'CDE'[shift]}4", sheet="Sheet1")
        names = [f"c{number}" for number in range(3 + shift)]
        fields = [CacheField(name=name, sharedItems=SharedItems()) for name in names]
        cache = CacheDefinition(cacheSource=CacheSource(type="worksheet", worksheetSource=source), cacheFields=fields)
        cache.records = RecordList(r=[])
        used = [PivotField(items=[FieldItem(x=0), FieldItem(x=1), FieldItem(t="default")]) for _ in range(2)]
        table = TableDefinition(
            name="pivot",
            cacheId=1,
            dataCaption="Values",
            location=Location(ref="A3:B5", firstHeaderRow=1, firstDataRow=1, firstDataCol=1),
            pivotFields=[*(PivotField() for _ in range(shift)), *used, PivotField(dataField=True)],
            rowFields=[RowColField(x=row + shift)],
            colFields=[RowColField(x=-2)],
            dataFields=[DataField(name="Sum", fld=2 + shift, subtotal=subtotal)],
            pageFields=[PageField(fld=0, hier=-1)] if filtered else [],
        )
        table.cache = cache
        workbook["Second"].add_pivot(table)

    return change


def test_pivot_tables(score: Score, book: Callable[..., str]) -> None:
    gold = book("gold.xlsx", change=pivot(), Second=[])
    props = ["col_fields", "filter", "row_fields", "data_fields"]
    rule = {"type": "pivot_table", "sheet_idx0": "RNSecond", "sheet_idx1": "ENSecond", "pivot_props": props}

    def same(change: Change | None, **more: Any) -> float:
        return score("compare_table", book("found.xlsx", change=change, Second=[]), gold, rules=[rule | more])

    assert same(pivot()) == 1
    assert same(pivot(row=0)) == 0
    assert same(pivot(subtotal="count")) == 0
    assert same(pivot(filtered=True)) == 0
    assert same(pivot(filtered=True), pivot_props=["row_fields", "data_fields", "name", "show_total"]) == 1
    assert same(None) == 0
    without_special = [*props, "ignore_special_fields", "selection", "data_fields_name"]
    assert same(pivot(), pivot_props=without_special) == 1
