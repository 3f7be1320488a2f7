"""Reads untrusted files for metrics, with limits of size."""

from __future__ import annotations

import sqlite3
import zipfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TooLarge", "bytes_of", "check_package", "lines_of", "open_database", "open_package", "readable", "text_of"]

_TEXT_BYTES = 64 << 20
"""Maximum size of a text file; the largest one of OSWorld's tasks has less than 1 MB."""
_PACKAGE_BYTES = 256 << 20
"""Maximum size of an unpacked package; a presentation with many images has about 100 MB."""
_PACKAGE_MEMBERS = 20_000


class TooLarge(ValueError):
    """A file is larger than the limit."""


def readable(path: str) -> str:
    """Return the path of a file after checking that this process may read it, for a library or program that opens it.

    Raises:
        OSError: it cannot be read, or must not be (see `paragent.subprocesses.confinement`).
    """
    with Path(path).open("rb"):
        return path


@contextmanager
def open_database(path: str, *, immutable: bool = False) -> Iterator[sqlite3.Connection]:
    """Open an SQLite file inside a `with` block. Queries come from task files: they can read this database and nothing else.

    A read-only connection is not enough: it could attach other files, and write them (`VACUUM INTO`).

    Args:
        path: of the file.
        immutable: whether a log beside the file is ignored.

    Raises:
        OSError: it cannot be read.
        sqlite3.Error: it is not a database; also for queries that are denied.
    """
    address = f"{Path(readable(path)).resolve().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_authorizer(_reading_only)
        yield connection


def _reading_only(action: int, *names: str | None) -> int:
    allowed = action in _QUERIES and not (action == sqlite3.SQLITE_FUNCTION and (names[1] or "").lower() in _UNSAFE)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


_QUERIES = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_UNSAFE = {"edit", "fts3_tokenizer", "load_extension", "readfile", "writefile"}
"""Functions of SQLite, or of programs that embed it, that access more than the database."""


def bytes_of(path: str) -> bytes:
    """Return the contents of a text file.

    Raises:
        TooLarge: it is larger than the limit.
        OSError: it cannot be read.
    """
    file = Path(path)
    if file.stat().st_size > _TEXT_BYTES:
        raise TooLarge(f"{file.name} is larger than {_TEXT_BYTES >> 20} MiB")
    return file.read_bytes()


def text_of(path: str, *, encoding: str = "utf-8") -> str:
    """Return the text of a file with normalised line ends.

    Raises:
        TooLarge: it is larger than the limit.
        UnicodeDecodeError: it has another encoding.
        OSError: it cannot be read.
    """
    return bytes_of(path).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def lines_of(path: str) -> list[str]:
    """Return the lines of a text file; a file that is not UTF-8 is read as Latin-1.

    Raises:
        TooLarge: it is larger than the limit.
        OSError: it cannot be read.
    """
    try:
        return text_of(path).splitlines()
    except UnicodeDecodeError:
        return text_of(path, encoding="latin-1").splitlines()


def check_package(path: str) -> str:
    """Return the path of an office file or another zip archive after checking its unpacked size.

    Raises:
        TooLarge: it unpacks to more than the limit.
        zipfile.BadZipFile: it is not a zip archive.
        OSError: it cannot be read.
    """
    with open_package(path):
        return path


@contextmanager
def open_package(path: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive inside a `with` block; raises the exceptions of `check_package`."""
    with zipfile.ZipFile(path) as package:
        members = package.infolist()
        if len(members) > _PACKAGE_MEMBERS or sum(member.file_size for member in members) > _PACKAGE_BYTES:
            raise TooLarge(
                f"{Path(path).name} unpacks to more than {_PACKAGE_BYTES >> 20} MiB or {_PACKAGE_MEMBERS} files"
            )
        yield package
