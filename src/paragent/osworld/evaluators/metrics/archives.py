"""Archives: zip, tar and EPUB, compared file by file without unpacking them to disk."""

from __future__ import annotations

import difflib
import io
import tarfile
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from paragent._internal.registry import require
from paragent.osworld.evaluators.metrics.files import line_ratio
from paragent.osworld.evaluators.metrics.reading import TooLarge, open_package
from paragent.osworld.evaluators.metrics.rules import NotUnderstood

__all__ = ["compare_archive", "compare_epub", "compare_zip_files"]

require("pypdf", "lxml")
_BYTES = 256 << 20
"""Of all that an archive unpacks to."""
_MEMBERS = 20_000
_PDF_LIKENESS = 0.95
"""From which two PDF files inside of archives are the same; OSWorld's own."""
_COMPARERS = {
    "text": "files:compare_text_file",
    "pdf": "pdf:compare_pdfs",
    "docx": "documents:compare_docx_files",
    "ppt": "slides:compare_pptx_files",
    "image": "images:compare_images",
    "csv": "files:compare_csv",
    "table": "tables:compare_table",
    "audio": "audio:compare_audios",
    "video": "video:compare_videos",
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
    from paragent.osworld.evaluators.metrics.pdf import plain_text

    return difflib.SequenceMatcher(None, plain_text(first), plain_text(second)).ratio() >= _PDF_LIKENESS


def compare_archive(
    result: str | None, expected: str, *, file_path: str = "", file_type: str = "text", **options: Any
) -> float:
    """Return how alike the entries of a folder of two archives are, on average; they must have the same names.

    Folders in it are entries, too, which are like nothing.

    Raises:
        NotUnderstood: files of this type cannot be compared.
    """
    from paragent._internal.registry import import_object

    if file_type not in _COMPARERS:
        raise NotUnderstood(f"files of the type {file_type!r} in archives cannot be compared")
    if not result:
        return 0.0
    with TemporaryDirectory() as place:
        folders = [Path(place, side) for side in ("one", "other")]
        for folder, path in zip(folders, (result, expected), strict=True):
            _unpack(_members(path), folder)
        first, second = (sorted(path.name for path in folder.joinpath(file_path).iterdir()) for folder in folders)
        if not first or first != second:
            return 0.0
        compare = import_object(f"paragent.osworld.evaluators.metrics.{_COMPARERS[file_type]}")
        pairs = [[str(folder / file_path / name) for folder in folders] for name in first]
        return sum(float(compare(*pair, **options)) for pair in pairs) / len(pairs)


def _unpack(members: dict[str, bytes], folder: Path) -> None:
    """Write the entries of an archive into a folder; those that lead out of it are left out."""
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
    """Return the entries of a zip or tar archive by name, which says what it is; those of folders end with a slash.

    Raises:
        TooLarge: it unpacks to an unbearable size.
        ValueError: its name says neither.
        tarfile.TarError: it is no tar archive.
        zipfile.BadZipFile: it is no zip archive.
    """
    if path.lower().endswith(".zip"):
        return _zip_members(path)
    if not path.lower().endswith(_TAR):
        raise ValueError(f"{Path(path).name} is no name of an archive")
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
    """Return the share of lines that the files of two books have in common, on average over the result's files."""
    if result is None:
        return 0.0
    first, second = _chapters(result), _chapters(expected)
    if not first:
        return 0.0
    pairs = zip((first[name] for name in sorted(first)), (second[name] for name in sorted(second)), strict=False)
    return sum(line_ratio(one, other) for one, other in pairs) / len(first)


def _chapters(path: str) -> dict[str, str]:
    """Return the texts of a book: its tables of contents without what differs between programs, its pages evenly printed.

    Raises:
        ValueError: it has a page in a folder.
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
