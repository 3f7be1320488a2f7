"""The paragraphs of text documents, DOCX and ODT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from paragent._plugins import require
from paragent.envs.osworld.evaluating.metrics.reading import check_package, open_package

if TYPE_CHECKING:
    from docx.document import Document

__all__ = ["docx", "has_background", "texts_of_pair"]

require("docx")
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_FO = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"


def docx(path: str) -> Document:
    """Return a DOCX document.

    Raises:
        TooLarge: it unpacks to an unbearable size.
        zipfile.BadZipFile: it is no document.
    """
    from docx import Document

    return Document(check_package(path))


def texts_of_pair(first: str, second: str) -> tuple[list[str], list[str]] | None:
    """Return the paragraphs of two documents of the same kind; None if the kinds differ, or are neither DOCX nor ODT."""
    for suffix, read in ((".docx", _docx_texts), (".odt", _odt_texts)):
        if first.endswith(suffix) and second.endswith(suffix):
            return read(first), read(second)
    return None


def _docx_texts(path: str) -> list[str]:
    return [paragraph.text for paragraph in docx(path).paragraphs]


def _odt_texts(path: str) -> list[str]:
    """Return the paragraphs' own texts and those of the spans in them; what is nested deeper does not count.

    Headers and footers come first.
    """
    return ["".join(_odt_parts(paragraph)) for root in _odt(path) for paragraph in root.iter(f"{_TEXT}p")]


def _odt(path: str) -> list[ET.Element]:
    """Return the parts of an ODT document: its styles, which have headers and footers, if there are some, then its text.

    Raises:
        KeyError: it is another kind of document.
    """
    with open_package(path) as package:
        styles = ["styles.xml"] if "styles.xml" in package.namelist() else []
        return [ET.fromstring(package.read(name)) for name in (*styles, "content.xml")]


def _odt_parts(paragraph: ET.Element) -> list[str]:
    parts = [paragraph.text or ""]
    for child in paragraph:
        if child.tag == f"{_TEXT}span":
            parts += [child.text or "", *(inner.tail or "" for inner in child)]
        parts.append(child.tail or "")
    return parts


def has_background(path: str, colour: str) -> bool:
    """Return whether some span of an ODT document has a style with this background."""
    roots = _odt(path)
    used = {span.get(f"{_TEXT}style-name") for root in roots for span in root.iter(f"{_TEXT}span")}
    automatic: list[Any] = [styles for root in roots for styles in root.iter(f"{_OFFICE}automatic-styles")]
    styles = [style for part in automatic for style in part if style.get(f"{_STYLE}name") in used]
    return any(prop.get(f"{_FO}background-color") == colour for style in styles for prop in style)
