"""Metrics of archives, e-books and PDF files."""

from __future__ import annotations

import difflib
import importlib
import io
import logging
import tarfile
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.files import line_ratio
from paragent.osworld.evaluators.metrics.matching import COMPARISONS, ratio
from paragent.osworld.evaluators.metrics.reading import TooLarge, open_package, readable
from paragent.osworld.evaluators.registry import METRICS
from paragent.osworld.evaluators.supported import UnsupportedCheck, check_options, checked, difference_of, one_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pypdf import PdfReader

__all__ = [
    "check_pdf_pages",
    "compare_archive",
    "compare_epub",
    "compare_pdf_images",
    "compare_pdfs",
    "compare_zip_files",
]

require("pypdf", "lxml", "numpy", "PIL")
_log = logging.getLogger(__name__)
_BYTES = 256 << 20
"""Maximum size of an unpacked archive in bytes."""
_MEMBERS = 20_000
_PDF_LIKENESS = 0.95
"""OSWorld's threshold of similarity from which two PDF files in archives count as equal."""
_COMPARERS = {
    "text": "compare_text_file",
    "pdf": "compare_pdfs",
    "docx": "compare_docx_files",
    "ppt": "compare_pptx_files",
    "image": "compare_images",
    "csv": "compare_csv",
    "table": "compare_table",
    "audio": "compare_audios",
    "video": "compare_videos",
}
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")


def compare_zip_files(result: str | None, expected: str, **_: Any) -> bool:
    """Return whether two zip archives have the same files with the same contents; of PDF files, nearly the same text."""
    if not result:
        return False
    first, second = _zip_members(result), _zip_members(expected)
    return first.keys() == second.keys() and all(_same(name, first[name], second[name]) for name in first)


def _zip_members(path: str) -> dict[str, bytes]:
    with open_package(path) as package:
        return {name: package.read(name) for name in package.namelist()}


def _same(name: str, first: bytes, second: bytes) -> bool:
    if not name.lower().endswith(".pdf"):
        return first == second
    return difflib.SequenceMatcher(None, _plain_text(first), _plain_text(second)).ratio() >= _PDF_LIKENESS


def _check_archive(*, file_type: str = "text", **options: Any) -> None:
    if file_type not in _COMPARERS:
        raise UnsupportedCheck(f"files of the type {file_type!r} in archives cannot be compared")
    check_options(METRICS.load(_COMPARERS[file_type]), options)


def _archive_difference(*, file_type: str = "text", **options: Any) -> str:
    return difference_of(METRICS.load(_COMPARERS[file_type]), options)


@checked(options=_check_archive, differs=_archive_difference)
def compare_archive(
    result: str | None, expected: str, *, file_path: str = "", file_type: str = "text", **options: Any
) -> float:
    """Return the average similarity of the entries of a folder in two archives; both must have the same names.

    Subfolders are entries too and have the similarity 0.
    """
    if not result:
        return 0.0
    with TemporaryDirectory() as parent:
        folders = [Path(parent, side) for side in ("one", "other")]
        for folder, path in zip(folders, (result, expected), strict=True):
            _unpack(_members(path), folder)
        first, second = (sorted(path.name for path in folder.joinpath(file_path).iterdir()) for folder in folders)
        if not first or first != second:
            return 0.0
        compare = METRICS.load(_COMPARERS[file_type])
        pairs = [[str(folder / file_path / name) for folder in folders] for name in first]
        return sum(float(compare(*pair, **options)) for pair in pairs) / len(pairs)


def _unpack(members: dict[str, bytes], folder: Path) -> None:
    """Write the entries of an archive into a folder; entries that lead out of it are skipped."""
    for name, data in members.items():
        parts = PurePosixPath(name).parts
        if ".." in parts or name.startswith("/"):
            continue
        path = folder.joinpath(*parts)
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _members(path: str) -> dict[str, bytes]:
    """Return the entries of a zip or tar archive by name; names of folders end with a slash. The file's suffix decides its type.

    Raises:
        TooLarge: the archive unpacks to more than the limit.
        ValueError: the suffix is unknown.
        tarfile.TarError: it is not a tar archive.
        zipfile.BadZipFile: it is not a zip archive.
    """
    if path.lower().endswith(".zip"):
        return _zip_members(path)
    if not path.lower().endswith(_TAR):
        raise ValueError(f"{Path(path).name} does not have the suffix of an archive")
    members: dict[str, bytes] = {}
    size = 0
    with tarfile.open(path) as archive:
        for member in archive:
            size += member.size
            if size > _BYTES or len(members) > _MEMBERS:
                raise TooLarge(f"{Path(path).name} unpacks to more than {_BYTES >> 20} MiB or {_MEMBERS} files")
            if member.isfile():
                members[member.name] = (archive.extractfile(member) or io.BytesIO()).read()
            elif member.isdir():
                members[f"{member.name}/"] = b""
    return members


def compare_epub(result: str | None, expected: str, **_: Any) -> float:
    """Return the share of lines that the files of two e-books have in common, averaged over the result's files."""
    if result is None:
        return 0.0
    first, second = _chapters(result), _chapters(expected)
    if not first:
        return 0.0
    pairs = zip((first[name] for name in sorted(first)), (second[name] for name in sorted(second)), strict=False)
    return sum(line_ratio(one, other) for one, other in pairs) / len(first)


def _chapters(path: str) -> dict[str, str]:
    """Return the texts of an e-book: tables of contents without the parts that differ between programs, and formatted pages.

    Raises:
        ValueError: a page is in a folder.
    """
    from lxml import html

    found = {}
    for name, data in _zip_members(path).items():
        if name in {"toc.ncx", "content.opf"}:
            noise = "navPoint" if name == "toc.ncx" else "dc:identifier"
            found[name] = "\n".join(line for line in data.decode().splitlines() if noise not in line)
        elif name.endswith(".html"):
            if "/" in name:
                raise ValueError(f"OSWorld cannot read a book with pages in folders, like {name}")
            page = html.fromstring(data.decode().replace("\n", "").replace("\r", "").encode())
            found[name] = html.tostring(page, pretty_print=True, encoding="unicode")
    return found


# --- PDF files ------------------------------------------------------------------------------------------------------------

_ALIKE = 5
"""OSWorld's threshold: the number of bits by which the hashes of two similar images may differ."""
_NO_PALETTE = {None, "/ASCIIHexDecode", "/ASCII85Decode", "/LZWDecode"}
"""Filters of images to which pypdf does not apply their palette."""


def _reader(source: str | bytes) -> PdfReader:
    from pypdf import PdfReader

    return PdfReader(io.BytesIO(source) if isinstance(source, bytes) else source)


def _plain_text(source: str | bytes) -> str:
    """Return the text of all pages of a PDF file, given by path or contents, as pypdf extracts it."""
    return "".join(page.extract_text() for page in _reader(source).pages)


def _pdf_text(path: str) -> str:
    """Return the text of all pages of a PDF file, as PyMuPDF extracts it if it is installed, otherwise as pypdf does."""
    library = _pymupdf()
    if library is None:
        return _plain_text(path).strip()
    with library.open(readable(path)) as document:
        return "".join(page.get_text() for page in document).strip()


@cache
def _pymupdf() -> Any:
    """Return the PDF library that OSWorld uses; None if the user has not installed it. It is under the AGPL."""
    with suppress(ImportError):
        return importlib.import_module("pymupdf")
    return None


@checked(rules=one_of("relation", COMPARISONS, "numbers of pages"))
def check_pdf_pages(result: str | None, rules: Mapping[str, Any], **_: Any) -> bool:
    """Return whether the number of pages has the expected relation to the expected number."""
    if result is None:
        return False
    return bool(COMPARISONS[rules["relation"]](len(_reader(result).pages), rules["ref_value"]))


def _text_difference(**_: Any) -> str:
    if _pymupdf() is not None:
        return ""
    return "text of PDF files is extracted by pypdf, not by PyMuPDF; similarities differ by up to 0.06"


@checked(differs=_text_difference)
def compare_pdfs(result: str | list[str | None] | None, expected: str | list[str], **_: Any) -> float:
    """Return the similarity of the texts of two files, or the average over the pairs of two lists; a missing file counts as 0."""
    pairs = [(result, expected)] if isinstance(expected, str) else list(zip(result or [], expected, strict=False))
    return sum(_likeness(one, other) for one, other in pairs) / (1 if isinstance(expected, str) else len(expected))


def _likeness(found: Any, wanted: Any) -> float:
    """Return the similarity of the texts of two files. A missing file has no text; an unreadable one has similarity 0."""
    try:
        return ratio(*(_pdf_text(path) if path else "" for path in (found, wanted)))
    except Exception as error:  # noqa: BLE001 - of a broken file, libraries raise anything
        _log.info("a PDF file cannot be read: %s", error)
        return 0.0


def compare_pdf_images(result: str | None, expected: str | None, **_: Any) -> float:
    """Return the share of a file's images that are similar to those of the other; both must have the same number."""
    from paragent.osworld.evaluators.metrics.images import distance

    if not result or not expected:
        return 0.0
    found, wanted = _images(result), _images(expected)
    if len(found) != len(wanted):
        return 0.0
    if not found:
        return 1.0
    return sum(distance(one, other) <= _ALIKE for one, other in zip(found, wanted, strict=True)) / len(found)


def _images(path: str) -> list[Any]:
    from PIL import Image, UnidentifiedImageError

    library = _pymupdf()
    if library is None:
        read = [_image(file) for page in _reader(path).pages for file in page.images]
        return [image for image in read if image is not None]
    found = []
    with library.open(readable(path)) as document:
        for page in document:
            for entry in page.get_images(full=True):
                with suppress(UnidentifiedImageError):
                    found.append(Image.open(io.BytesIO(document.extract_image(entry[0])["image"])))
    return found


def _image(file: Any) -> Any:
    """Return an image of a PDF file, as pypdf found it; None if it cannot be read."""
    stored = None if file.indirect_reference is None else file.indirect_reference.get_object()
    if stored is None or not _lost_palette(stored):
        return file.image
    from pypdf.generic import DecodedStreamObject

    plain = DecodedStreamObject()
    plain.update({key: value for key, value in stored.items() if key not in {"/Filter", "/DecodeParms", "/Length"}})
    plain.set_data(stored.get_data())
    return plain.flate_encode().decode_as_image()


def _lost_palette(stored: Mapping[str, Any]) -> bool:
    space, filters = stored.get("/ColorSpace"), stored.get("/Filter")
    if isinstance(filters, list):
        filters = filters[-1] if filters else None
    space = None if space is None else space.get_object()
    return filters in _NO_PALETTE and isinstance(space, list) and space[:1] == ["/Indexed"]
