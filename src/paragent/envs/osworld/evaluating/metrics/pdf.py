"""PDF files."""

from __future__ import annotations

import io
import operator
from typing import TYPE_CHECKING, Any

from paragent._plugins import require
from paragent.envs.osworld.evaluating.metrics.fuzzy import ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pypdf import PdfReader

__all__ = ["check_pdf_pages", "compare_pdf_images", "compare_pdfs"]

require("pypdf", "numpy", "PIL")
_RELATIONS = {name: getattr(operator, name) for name in ("eq", "ne", "le", "lt", "ge", "gt")}
_ALIKE = 5
"""Bits by which the fingerprints of two pictures may differ; OSWorld's own."""


def _reader(source: str | bytes) -> PdfReader:
    from pypdf import PdfReader

    return PdfReader(io.BytesIO(source) if isinstance(source, bytes) else source)


def pdf_text(source: str | bytes) -> str:
    """Return the text of all pages of a file, or of a file's contents."""
    return "".join(page.extract_text() for page in _reader(source).pages).strip()


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
    from pypdf.errors import PyPdfError

    try:
        return ratio(pdf_text(found), pdf_text(wanted)) if found else 0.0
    except (PyPdfError, OSError, ValueError):
        return 0.0


def compare_pdf_images(result: str | None, expected: str | None, **_: Any) -> float:
    """Return the share of a file's pictures that look like the other's; they must have as many."""
    from paragent.envs.osworld.evaluating.metrics.fingerprints import distance

    if not result or not expected:
        return 0.0
    found, wanted = _pictures(result), _pictures(expected)
    if len(found) != len(wanted):
        return 0.0
    if not found:
        return 1.0
    return sum(distance(one, other) <= _ALIKE for one, other in zip(found, wanted, strict=True)) / len(found)


def _pictures(path: str) -> list[Any]:
    return [picture.image for page in _reader(path).pages for picture in page.images if picture.image is not None]
