"""PDF files."""

from __future__ import annotations

import importlib
import io
import logging
import operator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.reading import readable
from paragent.osworld.evaluators.metrics.rules import ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pypdf import PdfReader

__all__ = ["check_pdf_pages", "compare_pdf_images", "compare_pdfs"]

require("pypdf", "numpy", "PIL")
_log = logging.getLogger(__name__)
_RELATIONS = {name: getattr(operator, name) for name in ("eq", "ne", "le", "lt", "ge", "gt")}
_ALIKE = 5
"""Bits by which the fingerprints of two pictures may differ; OSWorld's own."""


def _reader(source: str | bytes) -> PdfReader:
    from pypdf import PdfReader

    return PdfReader(io.BytesIO(source) if isinstance(source, bytes) else source)


def plain_text(source: str | bytes) -> str:
    """Return the text of all pages of a file, or of a file's contents, as pypdf reads it."""
    return "".join(page.extract_text() for page in _reader(source).pages)


def pdf_text(path: str) -> str:
    """Return the text of all pages of a file, as PyMuPDF reads it if that is installed, else as pypdf does."""
    library = _pymupdf()
    if library is None:
        return plain_text(path).strip()
    with library.open(readable(path)) as document:
        return "".join(page.get_text() for page in document).strip()


@cache
def _pymupdf() -> Any:
    """Return OSWorld's own reader of PDF files; None if the user has not installed it, for it is under the AGPL."""
    with suppress(ImportError):
        return importlib.import_module("pymupdf")
    return None


def check_pdf_pages(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the number of pages stands in the expected relation to the expected number."""
    if result is None:
        return False
    return bool(_RELATIONS[rules["relation"]](len(_reader(result).pages), rules["ref_value"]))


def compare_pdfs(result: str | list[str | None] | None, expected: str | list[str], **_: Any) -> float:
    """Return how alike the texts of two files are, or of each pair of two lists on average; a missing one counts as 0."""
    pairs = [(result, expected)] if isinstance(expected, str) else list(zip(result or [], expected, strict=False))
    return sum(_likeness(one, other) for one, other in pairs) / (1 if isinstance(expected, str) else len(expected))


def _likeness(found: Any, wanted: Any) -> float:
    """Return how alike the texts of two files are. No file is one without text; one that cannot be read is like nothing."""
    try:
        return ratio(*(pdf_text(path) if path else "" for path in (found, wanted)))
    except Exception as error:  # noqa: BLE001 - of a broken file, libraries raise anything
        _log.info("a PDF file cannot be read: %s", error)
        return 0.0


def compare_pdf_images(result: str | None, expected: str | None, **_: Any) -> float:
    """Return the share of a file's pictures that look like the other's; they must have as many."""
    from paragent.osworld.evaluators.metrics.image_similarity import distance

    if not result or not expected:
        return 0.0
    found, wanted = _pictures(result), _pictures(expected)
    if len(found) != len(wanted):
        return 0.0
    if not found:
        return 1.0
    return sum(distance(one, other) <= _ALIKE for one, other in zip(found, wanted, strict=True)) / len(found)


def _pictures(path: str) -> list[Any]:
    from PIL import Image, UnidentifiedImageError

    library = _pymupdf()
    if library is None:
        return [picture.image for page in _reader(path).pages for picture in page.images if picture.image is not None]
    pictures = []
    with library.open(readable(path)) as document:
        for page in document:
            for entry in page.get_images(full=True):
                with suppress(UnidentifiedImageError):
                    pictures.append(Image.open(io.BytesIO(document.extract_image(entry[0])["image"])))
    return pictures
