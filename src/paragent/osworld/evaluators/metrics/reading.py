"""Files as metrics read them: bounded, and never without an end."""

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
"""Of a text file; the largest that a task of OSWorld asks for has less than one megabyte."""
_PACKAGE_BYTES = 256 << 20
"""Of all that a package unpacks to; a presentation full of pictures has about 100 MB."""
_PACKAGE_MEMBERS = 20_000


class TooLarge(ValueError):
    """A file is larger than any that a task can ask for."""


def readable(path: str) -> str:
    """Return the path of a file that this process may read, for a library or a program that opens it.

    Raises:
        OSError: it cannot be read, or may not (see `paragent.subprocesses.confinement`).
    """
    with Path(path).open("rb"):
        return path


@contextmanager
def open_database(path: str, *, immutable: bool = False) -> Iterator[sqlite3.Connection]:
    """Open an SQLite file for the length of a `with`, for queries that task files name: they can read it and nothing else.

    A connection for reading alone would still attach other files, and write them (`VACUUM INTO`).

    Args:
        path: of the file.
        immutable: whether a log beside the file is left out.

    Raises:
        OSError: it cannot be read.
        sqlite3.Error: it is no database; also for queries that are refused.
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
"""Functions of SQLite, or of programs built on it, that reach beyond the database."""


def bytes_of(path: str) -> bytes:
    """Return a text file's contents as they are.

    Raises:
        TooLarge: it is.
        OSError: it cannot be read.
    """
    file = Path(path)
    if file.stat().st_size > _TEXT_BYTES:
        raise TooLarge(f"{file.name} is larger than {_TEXT_BYTES >> 20} MiB")
    return file.read_bytes()


def text_of(path: str, *, encoding: str = "utf-8") -> str:
    """Return a text file's contents with plain line ends.

    Raises:
        TooLarge: it is.
        UnicodeDecodeError: it has another encoding.
        OSError: it cannot be read.
    """
    return bytes_of(path).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def lines_of(path: str) -> list[str]:
    """Return a text file's lines; one that is no UTF-8 is read as Latin-1.

    Raises:
        TooLarge: it is.
        OSError: it cannot be read.
    """
    try:
        return text_of(path).splitlines()
    except UnicodeDecodeError:
        return text_of(path, encoding="latin-1").splitlines()


def check_package(path: str) -> str:
    """Return the path of an office file or another zip archive if it unpacks to a bearable size.

    Raises:
        TooLarge: it does not.
        zipfile.BadZipFile: it is no zip archive.
        OSError: it cannot be read.
    """
    with open_package(path):
        return path


@contextmanager
def open_package(path: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive for the length of a `with`; raises as `check_package`."""
    with zipfile.ZipFile(path) as package:
        members = package.infolist()
        if len(members) > _PACKAGE_MEMBERS or sum(member.file_size for member in members) > _PACKAGE_BYTES:
            raise TooLarge(
                f"{Path(path).name} unpacks to more than {_PACKAGE_BYTES >> 20} MiB or {_PACKAGE_MEMBERS} files"
            )
        yield package
