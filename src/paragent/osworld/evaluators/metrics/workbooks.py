"""The two workbooks of a comparison, and the sheets that rules name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.matching import UnsupportedCheck
from paragent.osworld.evaluators.metrics.reading import check_package, open_package

if TYPE_CHECKING:
    from openpyxl.workbook import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

__all__ = ["Book", "NoSheet", "Sheet", "part_of", "sheet_of"]

require("openpyxl", "pandas")
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


class NoSheet(LookupError):
    """A rule names a sheet that the workbook does not have."""


class Book:
    """A workbook; values of cells are read when they are asked for.

    Raises:
        TooLarge: it unpacks to an unbearable size.
        zipfile.BadZipFile: it is no workbook.
    """

    def __init__(self, path: str) -> None:
        import openpyxl

        self.path = check_package(path)
        self._cells: dict[str, Cells] = {}
        self.workbook: Workbook = openpyxl.load_workbook(path)
        """The workbook with its formulas, looks and drawings."""

    @property
    def names(self) -> list[str]:
        """The names of the sheets; a chart that has a sheet of its own is none of them."""
        return [str(sheet.title) for sheet in self.workbook.worksheets]

    def cells(self, sheet: str) -> Cells:
        """Return the stored values of a sheet."""
        if sheet not in self._cells:
            self._cells[sheet] = Cells(self.path, sheet)
        return self._cells[sheet]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A sheet of one of the two workbooks."""

    book: Book
    name: str

    @property
    def worksheet(self) -> Worksheet:
        """The sheet with its looks and drawings.

        Raises:
            NoSheet: there is none of this name.
        """
        if self.name not in self.book.workbook.sheetnames:
            raise NoSheet(self.name)
        return self.book.workbook[self.name]

    def frame(self) -> Any:
        """Return the values of the sheet as pandas reads them, with the first row as names.

        Raises:
            NoSheet: there is none of this name.
        """
        import pandas as pd

        if self.name not in self.book.names:
            raise NoSheet(self.name)
        return pd.read_excel(self.book.path, sheet_name=self.name, engine="openpyxl")

    def value(self, coordinate: str) -> Any:
        """Return the stored value of a cell; None for an empty one, and where there is no such sheet."""
        return self.book.cells(self.name).value(coordinate)


def sheet_of(reference: int | str, result: Book, expected: Book | None) -> Sheet:
    """Return the sheet that a rule means; one without a name if there is no such sheet.

    `0` and `RI0` are the first of the result, `EI0` of the expected workbook; `RNTotals` and `ENTotals` name them.

    Raises:
        NoSheet: there is no expected workbook.
        UnsupportedCheck: it is no reference.
    """
    text = f"RI{reference}" if isinstance(reference, int) else reference
    side, kind, rest = text[:1], text[1:2], text[2:]
    if side not in {"R", "E"} or kind not in {"I", "N"}:
        raise UnsupportedCheck(f"{reference!r} is no reference to a sheet")
    book = result if side == "R" else expected
    if book is None:
        raise NoSheet(text)
    if kind == "N":
        return Sheet(book, rest)
    names = book.names
    return Sheet(book, names[int(rest)] if -len(names) <= int(rest) < len(names) else "")


class Cells:
    """The stored values of a sheet, read as OSWorld reads them: by the sheet's id, and without repair of what is odd."""

    def __init__(self, path: str, sheet: str) -> None:
        with open_package(path) as package:
            self._shared = _shared_texts(package)
            data = part_of(package, sheet)
        found = [] if data is None else ET.fromstring(data).findall(f".//{_MAIN}row/{_MAIN}c")
        self._cells = {cell.get("r", ""): cell for cell in reversed(found)}

    def value(self, coordinate: str) -> Any:
        """Return a number as float, a text, an error as text; None for anything else.

        Raises:
            IndexError: it is one of the shared texts, and these cannot be read.
            TypeError: it is a number without a value.
        """
        cell = self._cells.get(coordinate)
        if cell is None:
            return None
        kind, value = cell.get("t", "n"), cell.find(f"{_MAIN}v")
        if kind == "inlineStr":
            text = cell.find(f"{_MAIN}is/{_MAIN}t")
            return None if text is None else _content(text)
        if value is None or kind not in {"n", "s", "str", "e"}:
            return None
        content = _content(value)
        try:
            return float(content) if kind == "n" else self._shared[int(content)] if kind == "s" else content
        except ValueError:
            return None


def _content(element: ET.Element) -> Any:
    """Return an element's text without blanks at its ends, None for none; with its attributes if it has some."""
    text = (element.text or "").strip() or None
    if not element.attrib:
        return text
    named = {"@" + name.removeprefix("{").replace("}", ":"): value for name, value in element.attrib.items()}
    return {**named, "#text": text} if text else named


def _shared_texts(package: Any) -> list[str]:
    """Return the texts that cells share; none at all if one of them has an empty part, which OSWorld cannot read."""
    if "xl/sharedStrings.xml" not in package.namelist():
        return []
    entries = ET.fromstring(package.read("xl/sharedStrings.xml")).findall(f"{_MAIN}si")
    parts = [[text.text for text in entry.iter(f"{_MAIN}t")] for entry in entries]
    return ["".join(text or "" for text in entry) for entry in parts] if all(all(entry) for entry in parts) else []


def part_of(package: Any, sheet: str) -> bytes | None:
    """Return the XML of a sheet, by the id that the workbook gives it; None if there is none."""
    book = ET.fromstring(package.read("xl/workbook.xml"))
    ids = {entry.get("name"): entry.get("sheetId") for entry in book.iter(f"{_MAIN}sheet")}
    name = f"xl/worksheets/sheet{ids.get(sheet)}.xml"
    return package.read(name) if sheet in ids and name in package.namelist() else None
