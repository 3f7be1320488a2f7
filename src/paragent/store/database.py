"""Connections to the SQLite file of a run, transactions, and their errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING
from urllib.parse import quote

from paragent.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["connect", "errors_for", "is_writable", "transaction"]

_BUSY_TIMEOUT = 10.0


def connect(path: Path, mode: str, *, one_thread: bool = True) -> sqlite3.Connection:
    """Open a journal. When a transaction of the connection is committed, it is durable.

    Args:
        path: the file.
        mode: `ro` only reads, `rw` also writes, `rwc` also creates the file.
        one_thread: only the calling thread uses the connection; otherwise the caller lets one thread use it at a time.
    """
    address = f"file:{quote(os.fsencode(path))}?mode={mode}"  # names of folders need not be valid Unicode
    if mode == "ro" and not is_writable(path.parent) and not path.with_name(f"{path.name}-wal").exists():
        address += "&immutable=1"  # else SQLite creates the write-ahead log, even to read; without one, nobody writes
    db = sqlite3.connect(address, uri=True, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=one_thread)
    try:
        if mode != "ro":
            db.execute("PRAGMA synchronous = FULL")  # belongs to the connection, not to the file
    except BaseException:
        db.close()
        raise
    return db


def is_writable(folder: Path) -> bool:
    """Return whether this process may create files in a folder."""
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


@contextlib.contextmanager
def errors_for(what: str, path: Path) -> Iterator[None]:
    """Raise `StoreFailed` for errors of SQLite, and for integers that it cannot store."""
    try:
        yield
    except (sqlite3.Error, OverflowError) as error:
        raise StoreFailed(
            f"cannot {what} in {path}: {error}. What was recorded before is safe; when the cause is removed, the "
            "same command continues"
        ) from error


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Execute the block as one transaction that writes; an exception undoes it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # after a full disk SQLite has already rolled back
            db.execute("ROLLBACK")
        raise
