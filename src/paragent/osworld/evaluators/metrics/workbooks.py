"""Workbooks and sheets as the rules of `compare_table` reference them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.reading import check_package, open_package
from paragent.osworld.evaluators.supported import UnsupportedCheck

if TYPE_CHECKING:
    from openpyxl.workbook import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

__all__ = ["Book", "Cells", "NoSheet", "Sheet", "check_reference", "part_of", "sheet_of"]

require("formulas", "openpyxl", "pandas")
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


class NoSheet(LookupError):
    """A rule names a sheet that the workbook does not have."""


class Book:
    """A workbook; values of cells are read on demand.

    Raises:
        TooLarge: it unpacks to more than the limit.
        zipfile.BadZipFile: it is not a workbook.
    """

    def __init__(self, path: str) -> None:
        import openpyxl

        self.path = check_package(path)
        self._cells: dict[str, Cells] = {}
        self.workbook: Workbook = openpyxl.load_workbook(path)
        """The workbook with its formulas, styles and drawings."""

    @property
    def names(self) -> list[str]:
        """The names of the worksheets, without chart sheets."""
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
        """The worksheet with its styles and drawings.

        Raises:
            NoSheet: it does not exist.
        """
        if self.name not in self.book.workbook.sheetnames:
            raise NoSheet(self.name)
        return self.book.workbook[self.name]

    def frame(self) -> Any:
        """Return the values of the sheet as pandas reads them, with the first row as column names.

        Raises:
            NoSheet: it does not exist.
        """
        import pandas as pd

        if self.name not in self.book.names:
            raise NoSheet(self.name)
        return pd.read_excel(self.book.path, sheet_name=self.name, engine="openpyxl")

    def value(self, coordinate: str) -> Any:
        """Return the stored value of a cell; None for an empty cell, and if the sheet does not exist."""
        return self.book.cells(self.name).value(coordinate)


def check_reference(reference: Any) -> None:
    """Check that a reference to a sheet has one of the forms that `sheet_of` knows.

    Raises:
        UnsupportedCheck: it has another form.
    """
    if not isinstance(reference, int) and re.match(r"[RE](I-?\d+$|N)", str(reference)) is None:
        raise UnsupportedCheck(f"{reference!r} is not a reference to a sheet")


def sheet_of(reference: int | str, result: Book, expected: Book | None) -> Sheet:
    """Return the sheet of a reference; a sheet without a name if it does not exist.

    `0` and `RI0` are the first sheet of the result, `EI0` of the expected workbook; `RNTotals` and `ENTotals` name them.

    Raises:
        NoSheet: there is no expected workbook.
    """
    text = f"RI{reference}" if isinstance(reference, int) else reference
    side, kind, rest = text[:1], text[1:2], text[2:]
    book = result if side == "R" else expected
    if book is None:
        raise NoSheet(text)
    if kind == "N":
        return Sheet(book, rest)
    names = book.names
    return Sheet(book, names[int(rest)] if -len(names) <= int(rest) < len(names) else "")


class Cells:
    """The stored values of a sheet, read as OSWorld reads them: by the id of the sheet, without repairing malformed files."""

    def __init__(self, path: str, sheet: str) -> None:
        with open_package(path) as package:
            self._shared = _shared_texts(package)
            data = part_of(package, sheet)
        found = [] if data is None else ET.fromstring(data).findall(f".//{_MAIN}row/{_MAIN}c")
        self._cells = {cell.get("r", ""): cell for cell in reversed(found)}

    def value(self, coordinate: str) -> Any:
        """Return a number as float, a string, or an error as string; None for anything else.

        Raises:
            IndexError: it is a shared string, and these cannot be read.
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
    """Return the stripped text of an element, None if it is empty; with its attributes if it has any."""
    text = (element.text or "").strip() or None
    if not element.attrib:
        return text
    named = {"@" + name.removeprefix("{").replace("}", ":"): value for name, value in element.attrib.items()}
    return {**named, "#text": text} if text else named


def _shared_texts(package: Any) -> list[str]:
    """Return the shared strings; an empty list if one of them has an empty part, which OSWorld cannot read."""
    if "xl/sharedStrings.xml" not in package.namelist():
        return []
    entries = ET.fromstring(package.read("xl/sharedStrings.xml")).findall(f"{_MAIN}si")
    parts = [[text.text for text in entry.iter(f"{_MAIN}t")] for entry in entries]
    return ["".join(text or "" for text in entry) for entry in parts] if all(all(entry) for entry in parts) else []


def part_of(package: Any, sheet: str) -> bytes | None:
    """Return the XML of a sheet, by its id in the workbook; None if it does not exist."""
    book = ET.fromstring(package.read("xl/workbook.xml"))
    ids = {entry.get("name"): entry.get("sheetId") for entry in book.iter(f"{_MAIN}sheet")}
    name = f"xl/worksheets/sheet{ids.get(sheet)}.xml"
    return package.read(name) if sheet in ids and name in package.namelist() else None
