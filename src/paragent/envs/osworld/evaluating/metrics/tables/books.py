"""The two workbooks of a comparison, and the sheets that rules name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent._plugins import require
from paragent.envs.osworld.evaluating.metrics.reading import check_package, open_package
from paragent.envs.osworld.evaluating.metrics.vocabulary import NotUnderstood

if TYPE_CHECKING:
    from openpyxl.workbook import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

__all__ = ["Book", "NoSheet", "Sheet", "part_of", "sheet_of", "xml_of"]

require("openpyxl", "pandas")
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_LINK = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


class NoSheet(LookupError):
    """A rule names a sheet that the workbook does not have."""


class Book:
    """A workbook, loaded as far as it is used.

    Raises:
        TooLarge: it unpacks to an unbearable size.
        zipfile.BadZipFile: it is no workbook.
    """

    def __init__(self, path: str) -> None:
        self.path = check_package(path)
        self._cells: dict[str, dict[str, Any]] = {}

    @cached_property
    def workbook(self) -> Workbook:
        """The workbook with its formulas, looks and drawings."""
        import openpyxl

        return openpyxl.load_workbook(self.path)

    @property
    def names(self) -> list[str]:
        """The names of the sheets; a chart that has a sheet of its own is none of them."""
        return [str(sheet.title) for sheet in self.workbook.worksheets]

    def cells(self, sheet: str) -> dict[str, Any]:
        """Return the stored values of a sheet by coordinate: numbers as floats, texts, errors as texts."""
        if sheet not in self._cells:
            self._cells[sheet] = _stored_values(self.path, sheet)
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
        return self.book.cells(self.name).get(coordinate)


def sheet_of(reference: int | str, result: Book, expected: Book | None) -> Sheet:
    """Return the sheet that a rule means.

    `0` and `RI0` are the first of the result, `EI0` of the expected workbook; `RNTotals` and `ENTotals` name them.

    Raises:
        NoSheet: there is no such sheet, or no expected workbook.
        NotUnderstood: it is no reference.
    """
    text = f"RI{reference}" if isinstance(reference, int) else reference
    side, kind, rest = text[:1], text[1:2], text[2:]
    if side not in {"R", "E"} or kind not in {"I", "N"}:
        raise NotUnderstood(f"{reference!r} is no reference to a sheet")
    book = result if side == "R" else expected
    if book is None:
        raise NoSheet(text)
    if kind == "N":
        return Sheet(book, rest)
    if int(rest) >= len(book.names):
        raise NoSheet(text)
    return Sheet(book, book.names[int(rest)])


def _stored_values(path: str, sheet: str) -> dict[str, Any]:
    with open_package(path) as package:
        part = part_of(package, sheet)
        if part is None:
            return {}
        shared = []
        if "xl/sharedStrings.xml" in package.namelist():
            root = xml_of(package.read("xl/sharedStrings.xml"))
            shared = ["".join(text.text or "" for text in entry.iter(f"{_MAIN}t")) for entry in root.iter(f"{_MAIN}si")]
        root = xml_of(package.read(part))
    return {cell.get("r", ""): _stored(cell, shared) for cell in root.iter(f"{_MAIN}c")}


def part_of(package: Any, sheet: str) -> str | None:
    """Return which part of the package has a sheet."""
    links = {link.get("Id"): link.get("Target", "") for link in xml_of(package.read("xl/_rels/workbook.xml.rels"))}
    for entry in xml_of(package.read("xl/workbook.xml")).iter(f"{_MAIN}sheet"):
        if entry.get("name") == sheet:
            target = links.get(entry.get(_LINK), "")
            return target.lstrip("/") if target.startswith("/") else f"xl/{target}"
    return None


def xml_of(data: bytes) -> ET.Element:
    """Return the XML of a part of a package."""
    return ET.fromstring(data)


def _stored(cell: ET.Element, shared: list[str]) -> Any:
    kind, value = cell.get("t", "n"), cell.findtext(f"{_MAIN}v")
    if kind == "inlineStr":
        return cell.findtext(f"{_MAIN}is/{_MAIN}t")
    if value is None:
        return None
    if kind == "n":
        return float(value)
    if kind == "s":
        return shared[int(value)]
    return value if kind in {"str", "e"} else None
